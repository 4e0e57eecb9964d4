"""Mistakes in an algorithm that several tests make."""

from collections.abc import Sequence

import pytest

from fedapp.wire import Update
from strategies.fedcomgate import FedCOM


def fedcom_ascends(patch: pytest.MonkeyPatch) -> None:
    """FedCOM steps the wrong way."""

    def aggregate(self: FedCOM, updates: Sequence[Update]) -> None:
        self.x = self.x + self.lr * self.server_lr * self.mean(updates, "D")

    patch.setattr(FedCOM, "aggregate", aggregate)
