"""What a run has spent: failures, repeated rounds and resumed runs count too."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fedapp import registry
from fedapp.algorithm import Algorithm
from fedapp.errors import ConfigError
from fedapp.privacy.accounting import epsilon
from fedapp.registry import ALGORITHMS
from tests.conftest import RunInline, read_rounds
from tests.support.private import KEYS, S, Z


def test_the_records_say_what_was_spent_so_far(run_inline: RunInline) -> None:
    rounds = read_rounds(run_inline(**KEYS))
    expected = [epsilon(Z / 2, 1e-5, k, S, 8) for k in (1, 2, 3)]
    assert [r["epsilon"] for r in rounds] == expected
    assert expected[0] < expected[1] < expected[2]
    local = run_inline(**KEYS, dp__where="client")
    counts = json.loads((local / "privacy.json").read_text())["releases"]
    assert sum(counts.values()) == 3 * S
    most = max(counts.values())
    assert read_rounds(local)[-1]["epsilon"] == epsilon(Z / 2, 1e-5, most)


def failing_once(round_: int, failed: list[int]) -> Algorithm:
    """Return FedAvg whose first client in a round fails."""
    fedavg = ALGORITHMS["fedavg"]

    class Once(fedavg.client):  # type: ignore[misc, name-defined]
        def train(self, received: Any, buffers: Any) -> Any:
            if self.round == round_ and not failed:
                failed.append(self.client)
                raise ValueError("out of luck")
            return super().train(received, buffers)

    return replace(fedavg, client=Once)


def test_what_clients_sent_in_a_round_with_too_few_updates_counts(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round, the first attempt fails: the server has seen what the others sent."""
    failed: list[int] = []
    monkeypatch.setitem(registry.ALGORITHMS, "fedavg", failing_once(2, failed))
    keys = KEYS | {"dp__where": "client", "min_clients": 8, "clients_per_round": 8}
    directory = run_inline(**keys)
    assert failed
    counts = json.loads((directory / "privacy.json").read_text())["releases"]
    assert counts == {str(client): 4 for client in range(8)}
    spent = [r["epsilon"] for r in read_rounds(directory)]
    assert spent == [epsilon(Z / 2, 1e-5, k) for k in (1, 3, 4)]


@pytest.mark.slow
def test_nobody_is_drawn_in_place_of_a_client_that_fails(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or those who do not fail would be in more rounds than is counted, of which every one is released."""
    fedavg = ALGORITHMS["fedavg"]

    class Ill(fedavg.client):  # type: ignore[misc, name-defined]
        def train(self, received: Any, buffers: Any) -> Any:
            if self.client >= 1:
                raise ValueError("out of luck")
            return super().train(received, buffers)

    monkeypatch.setitem(registry.ALGORITHMS, "fedavg", replace(fedavg, client=Ill))
    directory = run_inline(**KEYS | {"clients_per_round": 2, "num_rounds": 40})
    rounds = read_rounds(directory)
    took_part = sum(r["clients"] for r in rounds)
    # 2 of 8 clients are drawn: 10 times is usual, 40 if somebody must be there.
    assert 2 <= took_part <= 20
    assert {r["clients"] + r["failures"] for r in rounds} == {2}
    assert json.loads((directory / "privacy.json").read_text())["releases"] == {"server": 40}
    with pytest.raises(ConfigError, match="set min-clients = 1"):
        run_inline(**KEYS | {"min_clients": 2})


def test_what_is_run_again_counts_again(run_inline: RunInline) -> None:
    keys = KEYS | {"run_name": "run", "checkpoint_every": 2}
    directory = run_inline(**keys | {"num_rounds": 5})  # the last checkpoint is that of round 4
    run_inline(**keys | {"num_rounds": 7, "resume": True})
    spent = [r["epsilon"] for r in read_rounds(directory)]
    assert spent == [epsilon(Z / 2, 1e-5, k, S, 8) for k in (1, 2, 3, 4, 6, 7, 8)]
    before = (directory / "privacy.json").read_text()
    run_inline(**keys | {"num_rounds": 7, "resume": True})  # complete already
    assert (directory / "privacy.json").read_text() == before
    for damage in ("", "{}", None):
        (directory / "privacy.json").unlink()
        if damage is not None:
            (directory / "privacy.json").write_text(damage)
        with pytest.raises(ConfigError, match="does not say what this run has spent"):
            run_inline(**keys | {"num_rounds": 9, "resume": True})
        (directory / "privacy.json").write_text(before)
