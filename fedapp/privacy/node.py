"""Privacy on a node: what leaves it beside the updates, and what noise the updates carry."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.app import Context

from fedapp.compression import NotFiniteError
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.privacy import budget
from fedapp.privacy.noise import private_update
from fedapp.refusals import Reason, Refusal
from fedapp.state import NO_DIGEST
from fedapp.wire import Update

# The registry imports the strategies, and those import this package; torch takes seconds.
if TYPE_CHECKING:
    from torch import Tensor

    from fedapp.algorithm import Algorithm
    from fedapp.problems.protocols import FederatedProblem

WHY = "and, if it fails, why"
SEE_LOG = "see this node's log"
HIDDEN = f"something is wrong with its data or its config: {SEE_LOG}"


def _without_data(error: Exception) -> str:
    """Return what an error says without quoting a node's data; where it may quote them, its kind alone."""
    told = getattr(error, "told", None)
    if isinstance(error, ConfigError):
        return told or HIDDEN
    return f"{type(error).__name__}: {told or SEE_LOG}"


class NodePrivacy:
    """A node's side of a run without differential privacy: nothing is hidden."""

    shows_samples = True  # tells the server how many samples its clients have
    sent_beside = f"how many examples and steps it used, its training loss {WHY}"  # an update

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def demand(self, algorithm: "Algorithm", problem: "FederatedProblem") -> None:
        """Raise ConfigError if something would leave the node without the noise that the config asks for."""

    def demand_openness(self) -> None:
        """Raise ConfigError if nothing about clients' samples may leave the node without noise."""

    def charge(
        self, context: Context, problem: "FederatedProblem", clients: Sequence[int]
    ) -> dict[int, str]:
        """Count one release of each client; return those that must not answer, with the reason."""
        return {}

    def privatized(self, vector: "Tensor", round_: int, client: int) -> "Tensor":
        """Return what a client sends in place of a vector."""
        return vector

    def shown(self, update: Update) -> Update:
        """Return an update as it may leave the node."""
        return update

    def told(self, error: Exception) -> str:
        """Return what the server is told of an error with a node's data: never text that may quote them."""
        return _without_data(error)

    def refusal(self, client: int, error: Exception) -> Refusal:
        """Return what the server is told of an error in a client's training."""
        reason = Reason.NOT_FINITE if isinstance(error, NotFiniteError) else Reason.FAILED
        return Refusal(client, reason, _without_data(error))


class HiddenSamples(NodePrivacy):
    """A node's side of noise on the server: how much data clients have is private, too."""

    shows_samples = False

    def told(self, error: Exception) -> str:
        """Hide what an error says: which one it is depends on the data, and has no noise."""
        return HIDDEN

    def demand_openness(self) -> None:
        """Refuse metrics and facts: they are functions of clients' samples, and have no noise."""
        raise ConfigError(
            "Under differential privacy neither metrics nor facts of clients' samples leave a node, since they have no "
            'noise: set eval-clients = "" and server-data = true (or facts), or dp.clip = 0.'
        )


class LocalNoise(HiddenSamples):
    """A node's side of noise on each client's update: all that has no noise is hidden."""

    sent_beside = WHY

    def demand(self, algorithm: "Algorithm", problem: "FederatedProblem") -> None:
        """Refuse what would leave without noise, or more often than is counted; a dishonest server would not."""
        if not algorithm.strategy.rule_is_a_mean or len(algorithm.client.sends) != 1:
            raise ConfigError(
                f"{algorithm.name}'s clients send more than one update with noise: choose an algorithm whose rule is a "
                "mean, or set dp.clip = 0."
            )
        if problem.initial()[1].size:
            raise ConfigError(
                'BatchNorm\'s statistics would be sent without noise: set norm = "group", or dp.clip = 0.'
            )

    def charge(
        self, context: Context, problem: "FederatedProblem", clients: Sequence[int]
    ) -> dict[int, str]:
        """Count releases in the node's ledger and in the run's."""
        return budget.charge(context, self.config, clients, problem)

    def privatized(self, vector: "Tensor", round_: int, client: int) -> "Tensor":
        """Clip a vector and add noise."""
        import torch

        numbers = vector.detach().cpu().numpy()
        private = private_update(numbers, self.config, round_, client)
        return torch.from_numpy(private).to(vector)

    def shown(self, update: Update) -> Update:
        """Hide how much data a client has, how well it fits them, and the digest of what it has learned."""
        examples = self.config.batch_size or 1
        return replace(
            update,
            num_examples=examples,
            steps=0,
            train_loss=0.0,
            state_digest=NO_DIGEST,
            uplink_nmse=None,
        )

    def refusal(self, client: int, error: Exception) -> Refusal:
        """Hide what an exception says: it may be about the data, and has no noise."""
        return Refusal(client, Reason.FAILED, "it failed: see its node's log")


def node_privacy(config: RunConfig) -> NodePrivacy:
    """Return a node's side of the privacy that a config asks for."""
    if not config.dp.clip:
        return NodePrivacy(config)
    return LocalNoise(config) if config.dp.local else HiddenSamples(config)
