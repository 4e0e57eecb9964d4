"""Runs that cannot fit into memory are refused before they start, with the bytes that they would need."""

import pytest

from fedapp import memory
from fedapp.errors import ConfigError
from fedapp.tables import Value
from tests.conftest import RunInline

MILLION: dict[str, Value] = {"dataset": "quadratic", "num_clients": 1_000_000}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"algorithm": "gradma", "gradma__memory_size": 1_000_000},
            r"gradma's server holds 1,000,000 updates of 30 numbers, 120 MB together, and this machine has 100 MB of "
            r"memory: lower gradma.memory-size",
        ),
        (
            {"algorithm": "fedcet", "clients_per_round": 1_000_000},
            r"The updates of a round are 1,000,000 times 120 B, 120 MB together, .* lower num-clients, or",
        ),
        (
            {"algorithm": "scaffold", "clients_per_round": 1000, "num_rounds": 2000},
            r"states of up to 1,000,000 clients are at least 120 B each, 120 MB together, .* set state-dir",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_bytes(
    keys: dict[str, Value], told: str, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 100_000_000)
    with pytest.raises(ConfigError, match=told):
        run_inline(**MILLION | keys)


def test_what_fits_is_not_refused(run_inline: RunInline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 10_000)
    keys: dict[str, Value] = {"dataset": "quadratic", "num_rounds": 1, "num_clients": 1000}
    run_inline(algorithm="gradma", **keys, gradma__memory_size=80)
    with pytest.raises(ConfigError, match=r"100 updates of 30 numbers, 12 kB together"):
        run_inline(algorithm="gradma", **keys, gradma__memory_size=100)
    assert memory.machine_memory() == 10_000
    monkeypatch.undo()
    assert memory.machine_memory() > 2**28
