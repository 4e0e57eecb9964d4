"""Trackers of experiments: W&B and MLflow in their offline modes, and what all trackers share."""

import logging
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.manifest import TRACKERS_FILE
from fedapp.parsing import parse_run_config
from fedapp.progress import MAY_CHANGE
from fedapp.trackers import TRACKERS
from fedapp.trackers.log import TrackerLog, find_trackers
from fedapp.trackers.tracker import TrackedRun, Tracker
from tests.conftest import RunInline, read_rounds

SMALL: dict[str, Any] = {"dataset": "quadratic", "num_clients": 4, "clients_per_round": 2}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves this machine."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


# Weights & Biases.


def wandb_records(directory: Path) -> list[Any]:
    """Read what W&B wrote for `wandb sync`: a log in the format of LevelDB, of protobuf messages."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    records = []
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        for data in _leveldb(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            records.append(record)
    return records


def _leveldb(data: bytes, block: int = 32768, header: int = 7) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    place, parts = header, b""
    while place + header <= len(data):
        if block - place % block < header:  # the rest of a block is padding
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def wandb_history(records: list[Any], name: str) -> list[tuple[int, float]]:
    found = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): item.value_json
                for item in record.history.item
            }
            if name in items:
                found.append((int(items["_step"]), float(items[name])))
    return found


def test_wandb_has_config_figures_model_and_report(run_inline: RunInline) -> None:
    pytest.importorskip("wandb")
    directory = run_inline(**SMALL, num_rounds=3, tracker="wandb", run_name="mine")
    records = wandb_records(directory)
    run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.display_name, run.project) == ("mine", "fedapp")
    config = {item.key: item.value_json for item in run.config.update}
    assert (config["num-rounds"], config["dataset"]) == ("3", '"quadratic"')
    rounds = read_rounds(directory)
    assert wandb_history(records, "round/gap") == [(r["round"], r["gap"]) for r in rounds]
    total = sum(r["uplink_bytes"] for r in rounds)
    assert wandb_history(records, "total/uplink_bytes")[-1] == (3, total)
    kinds = {r.request.log_artifact.artifact.type for r in records if r.HasField("request")}
    kinds |= {r.artifact.type for r in records if r.HasField("artifact")}
    assert {"model", "report"} <= kinds


def test_a_resumed_run_continues_its_wandb_run(run_inline: RunInline) -> None:
    pytest.importorskip("wandb")
    keys = SMALL | {"run_name": "run", "checkpoint_every": 2, "tracker": "wandb"}
    run_inline(**keys, num_rounds=2)
    directory = run_inline(**keys, num_rounds=4, resume=True)
    files = list(directory.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # the id is in the name
    history = wandb_history(wandb_records(directory), "round/gap")
    assert [step for step, _ in history] == [1, 2, 3, 4]


# MLflow.


def mlflow_client(results: Path) -> Any:
    return pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{results / 'mlflow.db'}")


def mlflow_runs(results: Path) -> list[Any]:
    client = mlflow_client(results)
    return list(client.search_runs([e.experiment_id for e in client.search_experiments()]))


def mlflow_history(results: Path, run: Any, name: str) -> list[tuple[int, float]]:
    history = mlflow_client(results).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in history]


def test_mlflow_has_config_figures_model_and_report(run_inline: RunInline, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    directory = run_inline(**SMALL, num_rounds=3, tracker="mlflow", run_name="mine")
    [run] = mlflow_runs(tmp_path)
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert (run.data.params["num-rounds"], run.data.params["dp.clip"]) == ("3", "0.0")
    expected = [(r["round"], r["gap"]) for r in read_rounds(directory)]
    assert mlflow_history(tmp_path, run, "round/gap") == expected
    artifacts = tmp_path / "mlflow-artifacts" / run.info.run_id / "artifacts"
    model = (artifacts / "model" / "model.safetensors").read_bytes()
    assert model == (directory / "model.safetensors").read_bytes()
    assert "mine" in (artifacts / "report" / "report.html").read_text()


def test_a_resumed_run_continues_its_mlflow_run_with_every_round_once(
    run_inline: RunInline, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    keys = SMALL | {"run_name": "run", "checkpoint_every": 2, "tracker": "mlflow"}
    run_inline(**keys, num_rounds=3)  # round 3 is after the last checkpoint, and is run again
    directory = run_inline(**keys, num_rounds=5, resume=True)
    [run] = mlflow_runs(tmp_path)
    expected = [(r["round"], r["gap"]) for r in read_rounds(directory)]
    assert mlflow_history(tmp_path, run, "round/gap") == expected
    assert run.info.status == "FINISHED"


def test_a_tracker_that_is_added_later_gets_the_rounds_before(
    run_inline: RunInline, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    keys = SMALL | {"run_name": "run", "checkpoint_every": 2}
    run_inline(**keys, num_rounds=2)
    directory = run_inline(**keys, num_rounds=4, resume=True, tracker="mlflow")
    [run] = mlflow_runs(tmp_path)
    sent = [r["uplink_bytes"] for r in read_rounds(directory)]
    totals = [(round_, sum(sent[:round_])) for round_ in range(1, 5)]
    assert mlflow_history(tmp_path, run, "total/uplink_bytes") == totals


@pytest.mark.parametrize("damage", [b"{", b'{"run": "another"}', b"[]", None])
def test_a_damaged_note_of_ids_begins_another_mlflow_run(
    damage: bytes | None, run_inline: RunInline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    # MLflow keeps a connection for each path, and pytest gives a path to one test after the other.
    results = tmp_path / f"{abs(hash(damage)):x}"
    keys = SMALL | {"run_name": "run", "checkpoint_every": 1, "tracker": "mlflow"}
    keys["results_dir"] = str(results)
    note = run_inline(**keys, num_rounds=1) / TRACKERS_FILE
    if damage is None:
        note.unlink()
    else:
        note.write_bytes(damage)
    directory = run_inline(**keys, num_rounds=2, resume=True)
    assert len(mlflow_runs(results)) == 2
    assert ("rackers begin a new run" in caplog.text) == (damage is not None)
    assert len(read_rounds(directory)) == 2


# All of them.


def without_time(directory: Path) -> list[dict[str, Any]]:
    return [r | {"wall_seconds": None} for r in read_rounds(directory)]


def test_trackers_change_nothing_in_a_run(run_inline: RunInline) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        pytest.importorskip(name)
    keys = {"num_rounds": 3, "num_clients": 4, "clients_per_round": 2, "algorithm": "scaffold"}
    plain = run_inline(**keys)
    tracked = run_inline(**keys, tracker="wandb mlflow tensorboard")
    assert without_time(tracked) == without_time(plain)
    one, two = (load_file(run / "model.safetensors") for run in (plain, tracked))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one.keys() | two.keys())


def test_a_tracker_that_does_not_start_is_one_sentence_and_leaves_no_run(
    run_inline: RunInline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at/all")
    keys = SMALL | {"num_rounds": 2, "run_name": "run", "tracker": "mlflow"}
    with pytest.raises(ConfigError, match=r"^MLflow does not start \(.*\): fix that, or take mlf"):
        run_inline(**keys)
    assert not (tmp_path / "run").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert len(read_rounds(run_inline(**keys))) == 2


def test_a_run_that_exists_stays_when_a_tracker_does_not_start(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    keys = SMALL | {"run_name": "run", "checkpoint_every": 1}
    directory = run_inline(**keys, num_rounds=2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at/all")
    with pytest.raises(ConfigError, match="does not start"):
        run_inline(**keys, num_rounds=3, resume=True, tracker="mlflow")
    assert len(read_rounds(directory)) == 2


def test_where_the_page_has_no_parts_trackers_get_the_model_alone(
    run_inline: RunInline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in a bundle of `flwr run`, which holds no files of that kind."""
    pytest.importorskip("mlflow")
    monkeypatch.setattr("fedapp.report.page.WEB", tmp_path / "nothing")
    run_inline(**SMALL, num_rounds=1, tracker="mlflow")
    [run] = mlflow_runs(tmp_path)
    artifacts = mlflow_client(tmp_path).list_artifacts(run.info.run_id)
    assert ([a.path for a in artifacts], run.info.status) == (["model"], "FINISHED")
    assert "without the report page" in capsys.readouterr().out


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_one_sentence(
    name: str, run_inline: RunInline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs the package .* 'fedapp\[{name}\]'"):
        run_inline(**SMALL, tracker=name)
    assert not list(tmp_path.iterdir())


def test_a_config_names_trackers_it_knows() -> None:
    def trackers(**keys: Any) -> list[str]:
        return parse_run_config(keys).trackers

    assert trackers() == trackers(tracker=" ") == []
    assert trackers(tracker="mlflow wandb mlflow") == ["mlflow", "wandb"]
    assert trackers(tracker="tensorboard", tensorboard=True) == ["tensorboard"]
    with pytest.raises(ConfigError, match="wandb, mlflow, tensorboard, separated by spaces"):
        trackers(tracker="wandb neptune")
    assert {"tracker", "tensorboard"} <= MAY_CHANGE
    assert find_trackers(RunConfig()) == []


class Failing(Tracker):
    """Fails when it logs the second round."""

    name, title = "failing", "Failing"

    def __init__(self) -> None:
        self.logged: list[int] = []
        self.finished = False

    def start(self, run: TrackedRun) -> str:
        return "id"

    def place(self) -> str:
        return "nowhere"

    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        self.logged.append(round_)
        if round_ == 2:
            raise TimeoutError("the server has gone")

    def finish(self, files: Mapping[str, Path], complete: bool) -> None:
        self.finished = True


def test_a_tracker_that_fails_later_is_warned_of_once_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Failing()
    log = TrackerLog(tracker, tmp_path)
    with caplog.at_level(logging.WARNING, "flwr"):
        for round_ in range(1, 5):
            log.on_round({"round": round_, "clients": 1})
        log.on_end(None)
    assert tracker.logged == [1, 2]
    assert not tracker.finished
    [warning] = caplog.messages
    assert warning == "Failing failed, and the run goes on without it: the server has gone"


def test_a_store_that_is_lost_during_the_run_does_not_end_it(
    run_inline: RunInline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    logged = mlflow.MlflowClient.log_batch

    def lose(self: Any, *arguments: Any, **named: Any) -> None:
        logged(self, *arguments, **named)
        if named.get("metrics"):  # after the first round
            (tmp_path / "mlflow.db").write_bytes(b"not a database" * 1000)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", lose)
    directory = run_inline(**SMALL, num_rounds=3, tracker="mlflow")
    assert len(read_rounds(directory)) == 3
    assert (directory / "model.safetensors").is_file()
