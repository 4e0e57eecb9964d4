"""Privacy on the server: whom a round may draw, the noise on the mean, what may be told, and what a run has spent."""

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from flwr.supercore.differential_privacy import compute_stdv
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.doors import is_outside
from fedapp.errors import ConfigError, RunError
from fedapp.privacy.accounting import Numbers, accountant_type, epsilon
from fedapp.privacy.noise import clipped_mean, noise_source, noised
from fedapp.privacy.releases import Releases
from fedapp.problems import kind_of
from fedapp.wire import Update


class Privacy:
    """The server's side of a run without differential privacy: nothing is hidden, and nothing is counted."""

    hides_participants = False  # so that nothing may tell who took part, or how long an update was

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def demand(self, rule_is_a_mean: bool, buffers: int) -> None:
        """Raise ConfigError for a config that the noise would not protect."""

    def demand_facts(self) -> None:
        """Raise ConfigError if nodes must not be asked what their data are like."""

    def warnings(self) -> list[str]:
        """Return what weakens the protection that was asked for."""
        return []

    def notes(self, rounds: int) -> list[str]:
        """Return what to tell the user before `rounds` more rounds."""
        return []

    def keep(self, path: Path, run: str, begun: bool = False, old: bool = False) -> None:
        """Count releases in a file from now on."""

    def min_clients(self, wanted: int) -> int:
        """Return how many updates a round needs."""
        return wanted

    def pool(self, hosted: Sequence[int]) -> tuple[Sequence[int], int]:
        """Return the clients from whom a cohort is drawn, and the seed to draw it by."""
        return hosted, self.config.seed

    def invited(self, clients: Iterable[int]) -> None:
        """Note the cohort once it is sampled, before messages are built."""

    def aggregated(self) -> None:
        """Note that a round's updates are about to be applied to the model."""

    def figures(self, updates: Sequence[Update]) -> dict[str, float]:
        """Return what `rounds.jsonl` may hold of a round: the training loss, and the error of compression."""
        found = {"train_loss": sum(u.train_loss / len(updates) for u in updates)}
        told = [u.uplink_nmse for u in updates if u.uplink_nmse is not None]
        return found | ({"uplink_nmse": sum(nmse / len(told) for nmse in told)} if told else {})


class CountedPrivacy(Privacy):
    """Noise on what is released, and the count of releases: epsilon so far, and a limit to it."""

    ends: ClassVar[str]  # how sure it is that the limit ends the run

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.dp = config.dp
        self.releases = Releases()

    def demand(self, rule_is_a_mean: bool, buffers: int) -> None:
        """Refuse what the noise would not protect."""
        config, name = self.config, self.config.algorithm
        if not rule_is_a_mean:
            raise ConfigError(
                f"{name}'s server does more with its clients' vectors than take one mean, and noise on a mean "
                "would not protect them: choose an algorithm whose rule is a mean, or set dp.clip = 0."
            )
        if config.weighting != "uniform":
            raise ConfigError(
                "With weights no bound on one client's part in the mean holds for all: set "
                'weighting = "uniform", or dp.clip = 0.'
            )
        if config.aggregation != "mean":
            raise ConfigError(
                f"The noise is made for a mean, and a {config.aggregation} can move further: set "
                'aggregation = "mean", or dp.clip = 0.'
            )
        if buffers:
            raise ConfigError(
                "BatchNorm's statistics travel beside the update, without noise: set norm = "
                '"group", or dp.clip = 0.'
            )
        if config.eval_clients:
            raise ConfigError(
                'Metrics of clients\' own samples would be told without noise: set eval-clients = "", or dp.clip = 0.'
            )
        if config.eval_train or "objective" in kind_of(config).metrics(config):
            raise ConfigError(
                "The loss on the clients' own samples would be told without noise: set eval-train = false "
                "and a network as model, or dp.clip = 0."
            )
        if config.valid_share and is_outside(config.problem):
            raise ConfigError(
                "A Problem's validation samples are its clients', and their metrics would have no noise: set "
                "valid-share = 0, or dp.clip = 0."
            )

    def demand_facts(self) -> None:
        """Refuse to ask: what nodes tell has no noise."""
        raise ConfigError(
            "What nodes tell of their samples would have no noise: set server-data = true, or facts to what they "
            "would tell, or dp.clip = 0."
        )

    def warnings(self) -> list[str]:
        """Return what weakens the protection that was asked for."""
        told = []
        if not self.dp.noise_multiplier:
            told.append("dp.noise-multiplier = 0 clips and adds no noise: nothing is protected.")
        if self.dp.noise_from == "seed":
            told.append(
                'dp.noise-from = "seed": whoever knows the seed can take the noise off again, so this '
                "is for research only; epsilon is what secret noise would give."
            )
        if self.dp.delta * self.config.num_clients >= 1:
            told.append(
                f"dp.delta = {self.dp.delta:g} allows that some of {self.config.num_clients} clients are laid "
                "bare: set it well below 1/num-clients."
            )
        return told

    def _charge(self, whose: Sequence[str]) -> None:
        """End the run if one more release of each of these would cost more than dp.max-epsilon."""
        if not self.dp.max_epsilon:
            return
        if (cost := self._cost(self.releases.most(whose) + 1)) > self.dp.max_epsilon:
            raise RunError(
                f"Another round would cost epsilon = {cost:.4g}, which is more than dp.max-epsilon = "
                f"{self.dp.max_epsilon:g}: what the run has so far is saved; to continue, set a larger "
                "dp.max-epsilon and resume = true."
            )

    def keep(self, path: Path, run: str, begun: bool = False, old: bool = False) -> None:
        """Count releases in a file from now on; if the run has begun, start from what the file says."""
        self.releases.keep(path, run, begun, old)

    def figures(self, updates: Sequence[Update]) -> dict[str, float]:
        """Return epsilon; the training loss has no noise."""
        return {"epsilon": self.spent()}

    def notes(self, rounds: int) -> list[str]:
        """Return what the run will have spent after `rounds` more rounds."""
        return [self.forecast(rounds)]

    def spent(self, more: int = 0) -> float:
        """Return epsilon so far, of the client that has spent most; or after `more` releases."""
        return self._cost(self.releases.most() + more)

    @abstractmethod
    def _cost(self, count: int) -> float:
        """Return epsilon after a number of releases of the same client, or of the server."""

    @abstractmethod
    def _cost_in_words(self, rounds: int) -> str:
        """Say what `rounds` more rounds cost."""

    def forecast(self, rounds: int) -> str:
        """Say what the run will have spent after `rounds` more rounds."""
        dp = self.dp
        said = (
            f"Differential privacy ({dp.where}, clip {dp.clip:g}, noise multiplier {dp.noise_multiplier:g}): "
            f"{self._cost_in_words(rounds)}, delta = {dp.delta:g}, for a client replaced by any other."
        )
        if dp.max_epsilon and self.spent(rounds) > dp.max_epsilon:
            low, high = 0, rounds  # the first is affordable, if any is; the last is not
            while high - low > 1:
                middle = (low + high) // 2
                affordable = self.spent(middle) <= dp.max_epsilon
                low, high = (middle, high) if affordable else (low, middle)
            said += f" dp.max-epsilon = {dp.max_epsilon:g} {self.ends} the run after {low} of these rounds."
        return said


class ServerNoise(CountedPrivacy):
    """Noise on the mean of the clipped updates. Sampling adds to the privacy while nobody knows who took part."""

    hides_participants = True
    ends = "will end"

    def demand(self, rule_is_a_mean: bool, buffers: int) -> None:
        """Refuse also what would tell without noise who failed, or how long an update was."""
        super().demand(rule_is_a_mean, buffers)
        config = self.config
        if config.min_clients > 1:
            raise ConfigError(
                "A round that is drawn again while clients fail would tell more of the others than was counted: "
                "set min-clients = 1, or dp.clip = 0."
            )
        if config.max_update_norm:
            raise ConfigError(
                "dp.clip shortens every update already, and how many are refused would be told without "
                "noise: set max-update-norm = 0, or dp.clip = 0."
            )
        if self.dp.noise_multiplier:
            accountant_type()

    def min_clients(self, wanted: int) -> int:
        """Return 0: a client that fails counts as an update of 0, and nobody is drawn in its place."""
        return 0

    def pool(self, hosted: Sequence[int]) -> tuple[Sequence[int], int]:
        """Return all N clients, since sampling protects only if all could be drawn, and a seed that nobody knows."""
        secret = self.dp.noise_from == "system"
        seed = secrets.randbits(128) if secret else self.config.seed
        return range(self.config.num_clients), seed

    def invited(self, clients: Iterable[int]) -> None:
        """End the run if this round would cost too much."""
        self._charge(["server"])

    def aggregated(self) -> None:
        """Count a mean, before anybody sees the model that it makes."""
        self.releases.add(["server"])

    def mean(self, vectors: Sequence[NDArray[Any]], tag: int) -> Numbers:
        """Return the sum of the clipped vectors over clients-per-round, with noise."""
        dp, count = self.dp, self.config.clients_per_round
        deviation = compute_stdv(dp.noise_multiplier, dp.clip, count)
        normals = noise_source(self.config, tag)
        return noised(clipped_mean(vectors, dp.clip, count), deviation, normals)

    def _cost(self, count: int) -> float:
        dp, sample, population = self.dp, self.config.clients_per_round, self.config.num_clients
        return epsilon(dp.noise_multiplier / 2, dp.delta, count, sample, population)

    def _cost_in_words(self, rounds: int) -> str:
        return f"after {rounds} rounds epsilon = {self.spent(rounds):.4g} will have been spent"


class ClientNoise(CountedPrivacy):
    """Noise on each update before it is sent; what counts is how often a client has sent."""

    ends = "may end"

    def invited(self, clients: Iterable[int]) -> None:
        """Count what these clients are about to send; whether it arrives or not, it may be seen."""
        whose = [str(client) for client in clients]
        self._charge(whose)
        self.releases.add(whose)

    def _cost(self, count: int) -> float:
        return epsilon(self.dp.noise_multiplier / 2, self.dp.delta, count)

    def _cost_in_words(self, rounds: int) -> str:
        return (
            f"an update costs its client epsilon = {self._cost(1):.4g}, and one that takes part in all "
            f"{rounds} rounds will have spent {self.spent(rounds):.4g}"
        )


def server_privacy(config: RunConfig) -> Privacy:
    """Return the server's side of the privacy that a config asks for."""
    if not config.dp.clip:
        return Privacy(config)
    return ClientNoise(config) if config.dp.local else ServerNoise(config)
