"""FedCET: exact with one vector each way a round, with all clients.

FedCET's supplement: equation 2 with the mixing matrix W(t) and the start (5), in its drift form.

Down: x = z, the mean of all z_i. Up: z_i, as p_i = z_i - x. Client state: z_i and d_i, whose sum over
all clients is zero. The client takes z in only when it is next invited, so an exchange begins at
the end of one round and is completed at the start of the next.
"""

from collections.abc import Mapping, Sequence

from clients.fedcet import exchange_gain, largest_gain
from fedapp.errors import ConfigError, RunError
from fedapp.strategy import FederatedStrategy
from fedapp.wire import Update


class FedCET(FederatedStrategy):
    """x <- mean(z_i)."""

    def setup(self) -> None:
        """Refuse what the method is not made for."""
        config = self.config
        self.demand_all_clients("FedCET")
        self.demand_no_server_lr("FedCET")
        self.demand_uniform_weighting("FedCET's z is the plain mean over all N clients")
        if config.local_epochs:
            raise ConfigError(
                "FedCET needs the same tau for all: set local-steps, local-epochs = 0."
            )
        if not 0 <= self.options.c < largest_gain(config):
            raise ConfigError(
                f"fedcet.c = {self.options.c:g} is not allowed: it must be between 0 and "
                f"2/((tau + 3) lr) = {largest_gain(config):.6g}, or 0 to choose a safe one."
            )
        if not self.options.c:
            self.notes.append(
                f"FedCET uses c = {exchange_gain(config):.6g}, nine tenths of its bound 2/((tau + 3) lr)"
            )
        if config.on_lost_state == "reset":
            raise ConfigError(
                "FedCET's clients cannot do without their states, not even for the round that tells of the loss: set "
                'on-lost-state = "go-on"; the run then ends where a state is lost.'
            )
        self.warn_of_variance()
        self.warn_of_feedback(self.config.error_feedback)
        self.min_clients = config.num_clients

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Take the mean of the z_i."""
        self.x = self.x + self.mean(updates, "p")

    def thin_round(self, round_: int, failures: Mapping[int, str]) -> None:
        """End the run, unless such a round is to be repeated."""
        client, reason = next(iter(failures.items()))
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        mend = "lower lr" if "finite" in reason else (
            'mend that, or set fedcet.on-failure = "skip" to repeat such a round'
        )  # fmt: skip
        if self.options.on_failure == "end":
            raise RunError(
                f"FedCET needs every client in every round, and in round {round_} there was no update "
                f"from client {client} ({reason}){more}: {mend}."
            )
