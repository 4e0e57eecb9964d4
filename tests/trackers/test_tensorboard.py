"""TensorBoard as a tracker."""

from pathlib import Path
from typing import Any

import pytest

from fedapp.trackers.log import TrackerLog
from fedapp.trackers.tensorboard import TensorBoardTracker
from fedapp.trackers.tracker import TrackedRun
from tests.conftest import RunInline, read_rounds

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard itself reads: (step, value) of each series."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    names: list[str] = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def record(round_: int, **figures: Any) -> dict[str, Any]:
    return {"round": round_, "clients": 5, "downlink_bytes": 3000} | figures


def test_tensorboard_holds_what_was_written(tmp_path: Path) -> None:
    tracker = TensorBoardTracker()
    tracker.start(TrackedRun(tmp_path, {"lr": 0.1}))
    log = TrackerLog(tracker, tmp_path)
    log.on_round(record(1, gap=1e-9, uplink_bytes=5, test_loss=float("inf")))
    log.on_round(record(2, gap=None, uplink_bytes=7))
    log.on_round(record(4, gap=1e-12))
    log.on_end(None)
    found = scalars(tmp_path)
    assert found["round/uplink_bytes"] == [(1, 5), (2, 7)]
    assert dict(found["round/gap"]) == pytest.approx({1: 1e-9, 4: 1e-12}, rel=1e-6, abs=0)
    assert found["round/clients"] == [(1, 5), (2, 5), (4, 5)]
    assert found["total/uplink_bytes"] == [(1, 5), (2, 12), (4, 12)]
    assert found["total/downlink_bytes"] == [(1, 3000), (2, 6000), (4, 9000)]
    assert not {"round/round", "round/test_loss"} & found.keys()


@pytest.mark.parametrize("keys", [{"tensorboard": True}, {"tracker": "tensorboard"}])
def test_a_run_logs_to_tensorboard_when_asked(
    keys: dict[str, Any], run_inline: RunInline, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run_inline(dataset="quadratic", num_rounds=3, **keys)
    logged = [value for _, value in scalars(directory)["round/gap"]]
    assert logged == pytest.approx([r["gap"] for r in read_rounds(directory)], rel=1e-6)
    hint = 'it is now tracker = "tensorboard"'
    assert (hint in capsys.readouterr().out) == ("tensorboard" in keys)
    assert not (run_inline(dataset="quadratic", num_rounds=1) / "tensorboard").exists()


def test_a_resumed_run_has_every_round_once_and_totals_go_on(run_inline: RunInline) -> None:
    keys: dict[str, Any] = {"dataset": "quadratic", "run_name": "run", "checkpoint_every": 2}
    run_inline(num_rounds=3, tracker="tensorboard", **keys)
    directory = run_inline(num_rounds=5, tracker="tensorboard", resume=True, **keys)
    found, rounds = scalars(directory), read_rounds(directory)
    assert [step for step, _ in found["round/gap"]] == [1, 2, 3, 4, 5]
    sent = [r["uplink_bytes"] for r in rounds]
    assert found["total/uplink_bytes"][-1] == (5, sum(sent))
