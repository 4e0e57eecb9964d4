"""Figures that say why a run goes as it does, from what the server sees anyway; they change nothing.

Where clients' single vectors never arrive (nodes add up), only those that need sums are there; with differential privacy, none.
See docs/evaluation.md for what each of them is.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapp.aggregation import PER_STEP, Summed
from fedapp.wire import Arrays, Update

if TYPE_CHECKING:
    from fedapp.strategy import FederatedStrategy

# What is told of single vectors, and not, or not to the last digit, of sums.
OF_SINGLE_VECTORS = (
    "uplink_gq",
    "tracking_sum",
    "consensus_error",
    "local_drift",
    "control_change",
)
LARGEST = 2_000_000  # numbers of a model up to which a sum over all clients' states is kept
Numbers = NDArray[np.float64]


class Explanations:
    """The figures of a strategy's rounds, and the sum over all clients of what they track."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again, with nothing tracked."""
        self._sum: Numbers | None = None  # sum of what clients track; None: nothing yet
        self._c: NDArray[Any] | None = None  # SCAFFOLD's c before the round
        self._known = True  # False: a state was lost, or a round's change was not known

    def before(
        self, strategy: "FederatedStrategy[Any]", updates: Sequence[Update], round_: int, lost: bool
    ) -> dict[str, float]:
        """Return what can be told before a round's updates are applied."""
        self._known &= not lost
        self._c = getattr(strategy, "c", None)
        if strategy.config.dp.clip or not strategy.algorithm.stateful:
            return {}
        ledger = strategy.ledger
        tags = ledger.accepted.at([update.client for update in updates])
        ages = round_ - tags[tags > 0] // ledger.attempts
        return {"control_age": float(ages.mean())} if len(ages) else {}

    def after(
        self, strategy: "FederatedStrategy[Any]", updates: Sequence[Update]
    ) -> dict[str, float]:
        """Return what can be told once a round's updates have been applied."""
        if strategy.config.dp.clip or not updates:
            return {}
        name, figures = strategy.algorithm.name, {}
        single = all(update.arrays for update in updates) and not strategy.known
        if single and name.startswith("fedbcgd"):
            figures["local_drift"] = _mean_square(updates, "u")
        if single and name in ("fedbcgd-plus", "scaffold"):
            figures["control_change"] = _mean_square(updates, "dc")
        if single and name == "fedcet":
            figures["consensus_error"] = consensus_error([update["p"] for update in updates])
        if single:
            figures |= self._quantization(strategy, updates)
        active = getattr(getattr(strategy, "D", None), "active", None)  # of GradMA's memory
        if active is not None:
            figures["active_constraints"] = active
        figures |= self._tracked(strategy, updates, single)
        return {key: value for key, value in figures.items() if math.isfinite(value)}

    def _quantization(
        self, strategy: "FederatedStrategy[Any]", updates: Sequence[Update]
    ) -> dict[str, float]:
        """Return the G_q of a round, where compression is unbiased and vectors are whole."""
        compressor = strategy.compressor
        names = strategy.algorithm.client.sends
        whole = all(update[name].size == strategy.x.size for update in updates for name in names)
        told = [update.uplink_nmse for update in updates if update.uplink_nmse is not None]
        if not (compressor and compressor.unbiased and whole and len(told) == len(updates)):
            return {}
        vectors = [[update[name] for update in updates] for name in names]
        squares = np.sum([[square(v) for v in sent] for sent in vectors], axis=0)
        means = [np.asarray(np.mean(sent, axis=0, dtype=np.float64)) for sent in vectors]
        of_mean = float(np.sum([square(mean) for mean in means]))
        return {"uplink_gq": realised_gq(squares, np.array(told), of_mean)}

    def _tracked(
        self, strategy: "FederatedStrategy[Any]", updates: Sequence[Update], single: bool
    ) -> dict[str, float]:
        """Return |sum delta_i|, or of SCAFFOLD |sum c_i - N c|: 0, up to rounding, if tracking is right."""
        change = self._change(strategy, updates, single)
        if change is None or not self._known:
            self._known = False  # a sum of later rounds alone is not that of the clients
            return {}
        self._sum = change if self._sum is None else self._sum + change
        return {"tracking_sum": math.sqrt(square(self._sum))}

    def _change(
        self, strategy: "FederatedStrategy[Any]", updates: Sequence[Update], single: bool
    ) -> Numbers | None:
        """Return by what a round changes the sum over all clients; None if that is not known."""
        name, size = strategy.algorithm.name, strategy.x.size
        if (
            size > LARGEST
            or strategy.known
            or (strategy.config.weighting == "examples" and not single)
        ):
            return None
        options: Any = strategy.options
        if name == "scaffold":
            return self._change_of_scaffold(strategy, updates, single)
        if name == "fedgate" or (name == "fedcomgate" and options.track == "sent"):
            return self._change_of_gate(strategy, updates, single)
        return None

    def _change_of_scaffold(
        self, strategy: Any, updates: Sequence[Update], single: bool
    ) -> Numbers | None:
        """Return by how much more the sum of the c_i changes than N c."""
        from strategies.fedcomgate import damping

        a = damping(strategy.options.damping, strategy.compressor, strategy.x.size)
        moved: Numbers = np.asarray(strategy.c, np.float64) - np.asarray(self._c, np.float64)
        return np.asarray(
            a * self._total(updates, "dc", single) - strategy.config.num_clients * moved
        )

    def _change_of_gate(
        self, strategy: Any, updates: Sequence[Update], single: bool
    ) -> Numbers | None:
        """Return the sum over the round's clients of a (D_i / tau_i - T), T as they will receive it."""
        from strategies.fedcomgate import damping

        a = damping(strategy.options.damping, strategy.compressor, strategy.x.size)
        lr = strategy.lr if strategy.vector == "u" else 1.0
        delivered, name = strategy.delivered, strategy.vector
        steps = {update.steps for update in updates}
        if not {"T", name} & delivered.keys():  # on a grid, and coded
            return None
        if "T" in delivered:
            received = np.asarray(delivered["T"], np.float64)
        else:
            received = np.asarray(delivered[name], np.float64) / (lr * min(steps))
        if len(steps) > 1:
            sent = self._total(updates, name + PER_STEP, single)
        else:
            sent = self._total(updates, name, single) / min(steps)
        return np.asarray(a * (sent / lr - len(updates) * received))

    def _total(self, updates: Sequence[Update], key: str, single: bool) -> Numbers:
        """Return the plain sum of the vectors of a name."""
        if not single:
            assert isinstance(updates, Summed)
            return updates.sums.exact[key].total()
        name, per_step = key.removesuffix(PER_STEP), key.endswith(PER_STEP)
        total = np.zeros(len(updates[0][name]))
        for update in updates:
            total += update[name] / np.float64(update.steps if per_step else 1)
        return total

    def saved(self) -> Arrays:
        """Return the sum, for a checkpoint."""
        found: Arrays = {"known": np.array([self._known])}
        return found if self._sum is None else found | {"sum": self._sum}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned; a checkpoint of a version without it leaves the sum unknown."""
        self._known = bool(saved["known"][0]) if "known" in saved else False
        self._sum = saved.get("sum")


def square(vector: NDArray[Any]) -> float:
    """Return |v|^2, in float64."""
    exact = vector.astype(np.float64, copy=False)
    return float(np.einsum("i,i->", exact, exact))


def _mean_square(updates: Sequence[Update], name: str) -> float:
    return sum(square(update[name]) for update in updates) / len(updates)


def consensus_error(vectors: Sequence[NDArray[Any]]) -> float:
    """Return the mean over clients of |z_i - z|^2, z the mean of the z_i."""
    mean = np.mean(vectors, axis=0, dtype=np.float64)
    return sum(square(vector - mean) for vector in vectors) / len(vectors)


def realised_gq(sent: Numbers, nmse: Numbers, of_mean: float) -> float:
    """Estimate |mean Q(v_i)|^2 - E|Q(mean v_i)|^2 (G_q of FedCOM's Assumption 5) from what was sent.

    `sent` are the |Q(v_i)|^2, `nmse` each client's |Q(v_i) - v_i|^2 / |v_i|^2, `of_mean` is |mean Q(v_i)|^2. Compression
    is unbiased, so |v_i|^2 is about |Q(v_i)|^2 / (1 + nmse), and the errors of different clients add up as squares.
    """
    exact = sent / (1 + nmse)
    errors, count = float((exact * nmse).sum()), len(sent)
    noise = errors / count**2
    q = errors / float(exact.sum()) if exact.any() else 0.0
    return noise - q * max(of_mean - noise, 0.0)
