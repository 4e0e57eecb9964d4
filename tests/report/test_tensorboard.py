"""The figures of a run for TensorBoard."""

import sys
from pathlib import Path

import pytest

from fedapp.errors import ConfigError
from fedapp.report.tensorboard import TensorBoardLog
from tests.conftest import RunInline, read_rounds
from tests.support.watching import record


def test_tensorboard_holds_what_was_written(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra tensorboard is not installed",
    )
    log = TensorBoardLog(tmp_path)
    log.on_start()
    records = [
        record(1, test_accuracy=None, gap=1e-9, uplink_bytes=5),
        record(2, test_accuracy=0.5, gap=float("nan"), uplink_bytes=7),
        record(4, test_accuracy=0.75, gap=1e-12, uplink_bytes=None),
    ]
    for line in records:
        log.on_round(line)

    def read_back() -> dict[str, list[tuple[int, float]]]:
        events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        return {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }

    found = read_back()
    log.on_end(None)
    assert found == read_back()  # all was there before the end
    figures = set(records[0]) - {"round"}
    totals = {"total/uplink_bytes", "total/downlink_bytes"}
    assert set(found) == {f"round/{name}" for name in figures} | totals
    assert found["round/test_accuracy"] == [(2, 0.5), (4, 0.75)]
    assert found["round/uplink_bytes"] == [(1, 5), (2, 7)]
    gaps = dict(found["round/gap"])
    assert gaps == pytest.approx({1: 1e-9, 4: 1e-12}, rel=1e-6, abs=0)
    assert found["round/clients"] == [(1, 5), (2, 5), (4, 5)]
    assert found["total/uplink_bytes"] == [(1, 5), (2, 12), (4, 12)]
    assert found["total/downlink_bytes"] == [(1, 3000), (2, 6000), (4, 9000)]


def test_tensorboard_that_is_missing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        ConfigError, match=r"needs the package: pip install 'fedapp\[tensorboard\]'"
    ):
        TensorBoardLog(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_logs_to_tensorboard_when_asked(run_inline: RunInline) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    directory = run_inline(dataset="quadratic", num_rounds=3, tensorboard=True)
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("round/gap")]
    assert logged == pytest.approx([r["gap"] for r in read_rounds(directory)], rel=1e-6)
    assert not (run_inline(dataset="quadratic", num_rounds=1) / "tensorboard").exists()
