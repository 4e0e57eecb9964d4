"""Every local step has a mini-batch of its own."""

from typing import Any

import pytest
import torch

from fedapp.problems.quadratic import ClientQuadratic
from tests.support.cases import CASES, TAU, N, config_for, trajectory

SEVERAL_STEPS = sorted({c.algorithm for c in CASES.values()} - {"qsgd", "diana", "vrdiana"})


@pytest.mark.parametrize("algorithm", SEVERAL_STEPS)
def test_no_two_local_steps_share_a_mini_batch(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[bytes] = set()
    gradient = ClientQuadratic.loss_gradient

    def noted(self: ClientQuadratic, y: torch.Tensor, batch: torch.Tensor) -> Any:
        seen.add(batch.numpy().tobytes())
        return gradient(self, y, batch)

    monkeypatch.setattr(ClientQuadratic, "loss_gradient", noted)
    trajectory(config_for(algorithm, clients_per_round=N, num_rounds=2, quadratic__noise=0.5))
    assert len(seen) > N * TAU  # in both rounds; the first of FedCET has two steps
