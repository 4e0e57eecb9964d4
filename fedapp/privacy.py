"""Differential privacy of whole clients: clipping, Gaussian noise, and what a run has spent.

Two runs are neighbours if they differ in one client, replaced by any other: all its data, or that it fails. So the
sum of a round's updates, each no longer than `clip`, moves by at most 2 clip, and so does the one
update that a client sends. `dp.noise-multiplier` z is the noise on that over clip, as in Flower; the accountant counts
noise over what can move, which is z/2.

server: the sum is divided by clients-per-round s, however many answer, so that an absent client is
  an update of 0; the noise on this mean has the standard deviation z clip/s. Every round's s clients are drawn from
  all N, also from those that no node hosts now.
client: noise of z clip on each update before it is sent. The server knows who sent it, so there is no
  gain from sampling: what counts is how often a client has sent.
"""

import json
import math
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore.differential_privacy import compute_stdv
from numpy.typing import NDArray
from scipy.special import ndtri

from fedapp.accounting import Numbers, accountant_type, epsilon
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, RunError
from fedapp.files import brief, seal, unseal, write_text
from fedapp.problems import kind_of
from fedapp.randomness import generator

Normals = Callable[[int], Numbers]  # draws N standard normal numbers


def system_normals(size: int) -> Numbers:
    """Draw standard normal numbers from the operating system's entropy; all are finite.

    52 bits give a probability (k + 1/2) 2^-53 below one half, which is exact, and one bit the sign. A probability near
    1 would be rounded to 1, and its quantile is infinite.
    """
    bits = np.frombuffer(os.urandom(8 * size), np.uint64)
    lower = ndtri(((bits >> np.uint64(12)) + 0.5) * 2.0**-53)
    return np.asarray(np.where(bits & np.uint64(1), lower, -lower))


def clipped(vector: NDArray[Any], clip: float) -> Numbers:
    """Return a vector, shortened to the length `clip` if it is longer; one of no finite length is 0."""
    whole = vector.astype(np.float64)
    length = float(np.linalg.norm(whole))
    if not math.isfinite(length):
        return np.zeros_like(whole)
    return whole * (clip / length) if length > clip else whole


def clipped_mean(vectors: Iterable[NDArray[Any]], clip: float, count: int) -> Numbers:
    """Return the sum of clipped vectors over `count`, whether there are `count` of them or fewer."""
    return np.asarray(sum(clipped(vector, clip) for vector in vectors)) / count


def noised(vector: Numbers, deviation: float, normals: Normals) -> Numbers:
    """Add Gaussian noise of a standard deviation to every number."""
    return vector + deviation * normals(vector.size)


class Privacy:
    """One run's differential privacy, on the server: who takes part, the noise, and what was spent."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.dp = config, config.dp
        self._releases: Counter[str] = Counter()  # of each client; central: of the server
        self._path: Path | None = None
        self._run = ""

    def demand(self, rule_is_a_mean: bool, buffers: int) -> None:
        """Refuse what would not be protected."""
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
        if self.dp.central and config.min_clients > 1:
            raise ConfigError(
                "A round that is drawn again while clients fail would tell more of the others than was counted: "
                "set min-clients = 1, or dp.clip = 0."
            )
        if self.dp.central and config.max_update_norm:
            raise ConfigError(
                "dp.clip shortens every update already, and how many are refused would be told without "
                "noise: set max-update-norm = 0, or dp.clip = 0."
            )
        kind = kind_of(config)
        if config.eval_train or "objective" in kind.metrics(config):
            raise ConfigError(
                "The loss on the clients' own samples would be told without noise: set eval-train = false "
                "and a network as model, or dp.clip = 0."
            )
        if self.dp.central and self.dp.noise_multiplier:
            accountant_type()

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

    def pool(self, hosted: list[int]) -> tuple[list[int], int]:
        """Return the clients from whom a cohort is drawn, and the seed to draw it by.

        Sampling protects only while nobody knows who took part, and if all N could be drawn.
        """
        if not self.dp.central:
            return hosted, self.config.seed
        secret = self.dp.noise_from == "system"
        return list(range(self.config.num_clients)), (
            secrets.randbits(128) if secret else self.config.seed
        )

    def mean(self, vectors: Sequence[NDArray[Any]], tag: int) -> Numbers:
        """Return the mean that the server goes on with, in place of that of the vectors."""
        dp, count = self.dp, self.config.clients_per_round
        deviation = compute_stdv(dp.noise_multiplier, dp.clip, count)
        normals = noise_source(self.config, tag)
        return noised(clipped_mean(vectors, dp.clip, count), deviation, normals)

    def invited(self, clients: Iterable[int]) -> None:
        """Count what these clients are about to send; whether it arrives or not, it may be seen.

        End the run if this round would cost more than dp.max-epsilon.
        """
        whose = [str(client) for client in clients] if self.dp.local else ["server"]
        most = max((self._releases[one] for one in whose), default=0)
        if self.dp.max_epsilon and (next_ := self._cost(most + 1)) > self.dp.max_epsilon:
            raise RunError(
                f"Another round would cost epsilon = {next_:.4g}, which is more than dp.max-epsilon = "
                f"{self.dp.max_epsilon:g}: what the run has so far is saved; to continue, set a larger "
                "dp.max-epsilon and resume = true."
            )
        if self.dp.local:
            self._count(whose)

    def aggregated(self) -> None:
        """Count a mean, before anybody sees the model that it makes."""
        if self.dp.central:
            self._count(["server"])

    def _count(self, whose: Iterable[str]) -> None:
        self._releases.update(whose)
        if self._path:
            text = seal({"run": self._run, "releases": self._releases})
            try:
                write_text(self._path, text)
            except OSError as error:
                raise RunError(
                    f"{self._path} cannot be written ({error.strerror}), and nothing may be released that is not "
                    "counted: fix that, and continue with resume = true."
                ) from None

    def keep(self, path: Path, run: str, begun: bool = False, old: bool = False) -> None:
        """Keep count in a file from now on; if the run has begun, start from what it says.

        A round that is run again counts again. The count of an `old` run may have no digest.
        """
        self._path, self._run = path, run
        if not begun and not path.exists():
            return
        try:
            content = unseal(path)
            if content is None and old:
                content = json.loads(path.read_text())
            if not isinstance(content, dict):
                raise ValueError("it has no digest")
            counts = content["releases"]
            if content.keys() - {"run"} != {"releases"} or content.get("run", run) != run:
                raise ValueError("it is not this run's count")
            if not all(type(count) is int and count >= 0 for count in counts.values()):
                raise ValueError("it holds something else than counts")
            self._releases = Counter(counts)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} does not say what this run has spent ({brief(error)}): restore it from a backup, or start a "
                "new run."
            ) from None

    def spent(self, more: int = 0) -> float:
        """Return epsilon so far, of the client that has spent most; or after `more` releases."""
        return self._cost(max(self._releases.values(), default=0) + more)

    def _cost(self, count: int) -> float:
        dp = self.dp
        if dp.local:
            return epsilon(dp.noise_multiplier / 2, dp.delta, count)
        sample, population = self.config.clients_per_round, self.config.num_clients
        return epsilon(dp.noise_multiplier / 2, dp.delta, count, sample, population)

    def forecast(self, rounds: int) -> str:
        """Say what the run will have spent after `rounds` more rounds."""
        dp, whole = self.dp, self.spent(rounds)
        if dp.local:
            each = epsilon(dp.noise_multiplier / 2, dp.delta, 1)
            cost = (
                f"an update costs its client epsilon = {each:.4g}, and one that takes part in all "
                f"{rounds} rounds will have spent {whole:.4g}"
            )
        else:
            cost = f"after {rounds} rounds epsilon = {whole:.4g} will have been spent"
        said = (
            f"Differential privacy ({dp.where}, clip {dp.clip:g}, noise multiplier {dp.noise_multiplier:g}): "
            f"{cost}, delta = {dp.delta:g}, for a client replaced by any other."
        )
        if dp.max_epsilon and whole > dp.max_epsilon:
            low, high = 0, rounds  # the first is affordable, if any is; the last is not
            while high - low > 1:
                middle = (low + high) // 2
                affordable = self.spent(middle) <= dp.max_epsilon
                low, high = (middle, high) if affordable else (low, middle)
            said += (
                f" dp.max-epsilon = {dp.max_epsilon:g} "
                + ("may end" if dp.local else "will end")
                + f" the run after {low} of these rounds."
            )
        return said


def noise_source(config: RunConfig, round_: int, client: int = 0) -> Normals:
    """Return where a release's noise comes from."""
    if config.dp.noise_from == "system":
        return system_normals
    return generator(config.seed, "privacy", round_, client).standard_normal


def private_update(vector: NDArray[Any], config: RunConfig, round_: int, client: int) -> Numbers:
    """Return what a client sends in place of its update."""
    dp = config.dp
    deviation = compute_stdv(dp.noise_multiplier, dp.clip, 1)
    return noised(clipped(vector, dp.clip), deviation, noise_source(config, round_, client))
