"""Which updates of a round are used: `admit` returns them, and a refusal for each of the others."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from fedapp.config import RunConfig
from fedapp.errors import DivergedError, RunError
from fedapp.ledger import MOST_LOSSES, StateLedger
from fedapp.lengths import Measured, UpdateLengths
from fedapp.models.layout import Layout
from fedapp.problems.protocols import Vector
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Update


class Admission:
    """The limits of a run, and the usual lengths of its updates.

    With central differential privacy, updates are clipped instead, and `lengths` is None.
    """

    def __init__(
        self,
        config: RunConfig,
        names: tuple[str, ...],
        layout: Layout,
        ledger: StateLedger,
        lengths: UpdateLengths | None,
        checks_steps: bool = False,
    ) -> None:
        self.config, self.names, self.layout = config, names, layout
        self.ledger, self.lengths = ledger, lengths
        self.checks_steps = checks_steps  # the number of local steps decides what an update counts
        self._measured: Measured | None = None  # the updates of the attempt under way
        self._all_too_long = False  # each update of every attempt at this round

    def begin(self, attempt: int) -> None:
        """Begin an attempt at a round."""
        self._all_too_long = self._all_too_long or attempt == 0

    def admit(self, updates: Sequence[Update], x: Vector) -> tuple[list[Update], list[Refusal]]:
        """Return the updates that may be used, in the order of client ids, and why the others may not."""
        bounded = [self._bounded(update) for update in updates]
        refusals = [one for one in bounded if isinstance(one, Refusal)]
        within = sorted(
            (one for one in bounded if isinstance(one, Update)), key=lambda update: update.client
        )
        too_long: list[Refusal] = []
        if self.lengths:
            self._measured = self.lengths.measure(within, x)
            too_long = self.lengths.refused(self._measured)
        self._all_too_long &= len(within) == len(too_long) > 0
        refused = {refusal.client for refusal in too_long}
        used = [update for update in within if update.client not in refused]
        if self.lengths and refused:  # what is usual must not depend on what was refused
            self._measured = self.lengths.measure(used, x)
        return used, refusals + too_long

    def accept(self, updates: Sequence[Update], round_: int) -> None:
        """Count the lengths of updates that the round uses."""
        if self.lengths and self._measured:
            self.lengths.accept(self._measured, [update.client for update in updates], round_)

    def _bounded(self, update: Update) -> Update | Refusal:
        """Return an update within the limits of the config, or why it is refused."""

        def refusal(reason: Reason, text: str) -> Refusal:
            return Refusal(update.client, reason, text)

        if self.ledger.has_lost_too_often(update):
            text = f"it has lost its state more than {MOST_LOSSES} times"
            return refusal(Reason.NOT_CREDIBLE, text)
        most = self.config.max_examples
        if most and update.num_examples > most:
            text = f"it claims more examples than max-examples = {most}"
            return refusal(Reason.NOT_CREDIBLE, text)
        expected = self.config.local_work.num_steps(update.num_examples)
        if self.checks_steps and update.steps != expected:
            text = f"it claims {update.steps} local steps, and the config asks for {expected}"
            return refusal(Reason.NOT_CREDIBLE, text)
        if update.arrays and has_negative_variance(update["buffers"], self.layout):
            return refusal(Reason.NOT_CREDIBLE, "a variance among its buffers is negative")
        if not (limit := self.config.max_update_norm):
            return update
        arrays = dict(update.arrays)
        for name in self.names:
            length = float(np.linalg.norm(arrays[name].astype(np.float64)))
            if length <= limit:
                continue
            if self.config.on_long_update == "reject":
                text = f"'{name}' is longer than max-update-norm = {limit:g}"
                return refusal(Reason.TOO_LONG, text)
            arrays[name] = (arrays[name] * (limit / length)).astype(arrays[name].dtype)
        return replace(update, arrays=arrays)

    def divergence(self, text: str) -> DivergedError:
        """Return the error that ends a diverging run."""
        return self.lengths.divergence(text) if self.lengths else DivergedError(text)

    def too_few_updates(self, round_: int, least: int) -> RunError:
        """Return the error that ends a run after the last attempt at a round with fewer than `least` updates."""
        retries = self.config.round_retries
        attempts = f"each of {retries + 1} attempts" if retries else "its only attempt"
        if self._all_too_long:
            return self.divergence(
                f"Every update of round {round_} was more than max-update-ratio = {self.config.max_update_ratio:g} "
                f"times as long as usual, in {attempts}: lower lr, or raise max-update-ratio."
            )
        return RunError(
            f"Round {round_} had fewer than min-clients = {least} updates in {attempts}: the log says why clients failed."
        )


def has_negative_variance(buffers: Vector, layout: Layout) -> bool:
    """Return whether a variance among the model's statistics is negative."""
    return any((buffers[a:b] < 0).any() for a, b in layout.variances)


def all_diverged(refusals: Collection[Refusal]) -> bool:
    """Return whether every update was lost to numbers out of bounds, and at least one was not finite."""
    reasons = {refusal.reason for refusal in refusals}
    return Reason.NOT_FINITE in reasons <= {Reason.NOT_FINITE, Reason.UNUSUALLY_LONG}
