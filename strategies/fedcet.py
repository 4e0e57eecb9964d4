"""FedCET: exact with one vector each way a round, with all clients.

Liu and Wang, Communication Efficient Federated Learning with Linear Convergence on Heterogeneous Data, 2025
(arXiv 2503.15804). Equation 2 of its supplement with the mixing matrix W(t) and the start (5), in its drift form.

Down: x = z, the mean of all z_i. Up: z_i, as p_i = z_i - x. Client state: z_i and d_i, whose sum over
all clients is zero. The client takes z in only when it is next invited, so an exchange begins at
the end of one round and is completed at the start of the next.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, RunError
from fedapp.models.layout import Layout
from fedapp.refusals import Reason, Refusal
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Update


class Options(Table):
    """FedCET."""

    c: float = Field(
        0.0, description="gain of the exchange, below 2/((tau + 3) lr); 0: nine tenths of that"
    )
    on_failure: Literal["end", "skip"] = Field(
        "end",
        description='a client gives no update: "end" the run, or "skip": repeat the round',
    )


def largest_gain(config: RunConfig) -> float:
    """Return what c must stay below: 2/((tau + 3) alpha)."""
    return 2 / ((config.local_steps + 3) * config.largest_lr)


def exchange_gain(c: float, config: RunConfig) -> float:
    """Return c; if it is 0, nine tenths of what is allowed, which was fastest."""
    return c or 0.9 * largest_gain(config)


class FedCET(FederatedStrategy[Options]):
    """x <- mean(z_i)."""

    only_sums = True
    # Otherwise the sum of all d_i would keep what rounding took off the first x.
    begins_on_grid = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Take the mean of the z_i."""
        self.x = self.x + self.mean(updates, "p")

    def on_too_few_updates(self, round_: int, refusals: Sequence[Refusal]) -> None:
        """End the run, unless such a round is to be repeated."""
        first = refusals[0]
        more = f" and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        remedy = "lower lr" if first.reason is Reason.NOT_FINITE else (
            'fix that, or set fedcet.on-failure = "skip" to repeat such a round'
        )  # fmt: skip
        if self.options.on_failure == "end":
            raise RunError(
                f"FedCET needs every client in every round, and in round {round_} there was no update "
                f"from client {first.client} ({first.text}){more}: {remedy}."
            )


def check(config: RunConfig) -> None:
    """Refuse a gain beyond its bound, and states that are reset."""
    c = config.table(Options).c
    if not 0 <= c < largest_gain(config):
        raise ConfigError(
            f"fedcet.c = {c:g} is not allowed: it must be between 0 and "
            f"2/((tau + 3) lr) = {largest_gain(config):.6g}, or 0 to choose a safe one."
        )
    if config.on_lost_state == "reset":
        raise ConfigError(
            "FedCET's clients cannot do without their states, not even for the round that tells of the loss: set "
            'on-lost-state = "go-on"; the run then ends where a state is lost.'
        )


def notes(config: RunConfig, layout: Layout) -> list[str]:
    """Say which gain is used, if it is not given."""
    c = config.table(Options).c
    gain = exchange_gain(c, config)
    return [] if c else [f"FedCET uses c = {gain:.6g}, nine tenths of its bound 2/((tau + 3) lr)"]


ALGORITHM = Algorithm(
    "fedcet",
    "exact, one vector each way, all clients",
    FedCET,
    "clients.fedcet:FedCETClient",
    options=Options,
    needs=Needs(
        all_clients=True,
        every_update=True,
        no_server_lr=True,
        uniform_weighting="FedCET's z is the plain mean over all N clients",
        equal_local_steps=True,
        low_variance=True,
        no_second_feedback=True,
        plain_sgd="FedCET's d_i and its gain c are made for steps of length lr along g + d_i",
    ),
    stateful=True,
    check=check,
    notes=notes,
)
