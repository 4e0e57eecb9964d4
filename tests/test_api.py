"""The Python API: runs and sweeps from Python, with objects where the config has names."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
import torch
from pydantic import Field
from torch import Tensor, nn

import fedapp
from clients.averaging import FedAvgClient
from deploy.processes import BIN, ROOT
from fedapp import (
    Algorithm,
    FederatedStrategy,
    Problem,
    RunResult,
    Table,
    Update,
    make_client_app,
    make_strategy,
)
from fedapp.compression.floats import Float16
from fedapp.compression.sparsifiers import TopK
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.keywords import as_values
from fedapp.manifest import read_config
from fedapp.registry import ALGORITHMS
from tests.conftest import PATIENCE, RunInline, read_rounds
from tests.support.runs import assert_same

run, sweep = partial(fedapp.run, show=False), partial(fedapp.sweep, show=False)
SMALL: dict[str, Any] = {"num_rounds": 2, "num_clients": 4, "clients_per_round": 2}


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    return SMALL | {"results_dir": tmp_path}


class Net(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layers(images)
        return found


class SignOptions(Table):
    """Mean of signs."""

    step: float = Field(0.01, gt=0, description="how far the server goes")


class SignMean(FederatedStrategy[SignOptions]):
    def aggregate(self, updates: Sequence[Update]) -> None:
        self.x = self.x - self.options.step * np.sign(self.mean(updates))


SIGNS = Algorithm("my_signs", "signs", SignMean, FedAvgClient, options=SignOptions)


class MyHalves(Float16):
    """Half precision as somebody else's compressor."""

    name: ClassVar[str] = "my-halves"
    codec: ClassVar[int] = 200
    repeat: int = Field(1, ge=1, description="changes nothing")


class Line(Problem):
    """Linear regression, made in Python."""

    def __init__(self, slope: float = 3.0) -> None:
        self.slope = slope

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def client_data(self, client: int) -> tuple[Any, Any]:
        x = np.linspace(-1, 1, 20, dtype=np.float32)[:, None] + client
        return x, (self.slope * x).astype(np.float32)

    def test_data(self) -> tuple[Any, Any]:
        return self.client_data(0)

    def loss(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[-1])

    def metrics(self, outputs: Tensor, batch: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"loss": float(((outputs - batch[-1]) ** 2).sum())}


def same_model(one: RunResult, other: RunResult) -> bool:
    names = one.model.keys() | other.model.keys()
    return all(torch.equal(one.model[name], other.model[name]) for name in names)


# What a run gives.


def test_a_run_gives_records_a_frame_a_state_dict_and_its_directory(
    small: dict[str, Any], tmp_path: Path
) -> None:
    result = run(small, algorithm="fedcomgate")
    assert result.directory.parent == tmp_path
    assert result.rounds == read_rounds(result.directory)
    frame = result.frame()
    assert list(frame["round"]) == [1, 2]
    assert frame["test_accuracy"].iloc[-1] == result.rounds[-1]["test_accuracy"]
    assert result.config.algorithm == "fedcomgate"
    assert all(isinstance(tensor, Tensor) for tensor in result.model.values())
    assert "2 rounds of fedcomgate" in repr(result)


def test_a_run_from_python_has_the_bits_of_the_command(
    small: dict[str, Any], run_inline: RunInline
) -> None:
    keys = {"algorithm": "scaffold", "num_rounds": 3, "num_clients": 4, "clients_per_round": 2}
    result = run(small | keys)
    expected = read_rounds(run_inline(**keys))
    assert [r | {"wall_seconds": 0} for r in result.rounds] == [
        r | {"wall_seconds": 0} for r in expected
    ]


def test_keys_are_written_as_python_writes_them() -> None:
    keys = {
        "num_rounds": np.int64(3),
        "fedprox__mu": 0.5,
        "qsgd": {"levels": 4, "entropy_coding": True},
        "my_table.my_key": 1,
        "results-dir": Path("/there"),
        "compressor": TopK(ratio=0.25),
    }
    found = as_values(keys)
    assert found["num-rounds"] == 3
    assert type(found["num-rounds"]) is int
    assert (found["fedprox.mu"], found["qsgd.levels"], found["qsgd.entropy-coding"]) == (
        0.5,
        4,
        True,
    )
    assert (found["my-table.my-key"], found["results-dir"]) == (1, "/there")
    assert (found["compressor"], found["topk.ratio"]) == ("topk", 0.25)
    assert as_values({"compressor": TopK, "algorithm": ALGORITHMS["scaffold"]}) == {
        "compressor": "topk",
        "algorithm": "scaffold",
    }


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_rounds": 1, "num-rounds": 2}, "num-rounds is given twice"),
        ({"lr": [1, 2]}, r"lr = \[1, 2\] is not allowed: it should be a number"),
        ({"model": 3}, "model = 3 is not allowed: give a name or an object"),
        ({"num_round": 3}, r"There is no config key 'num-round' \(did you mean 'num-rounds'"),
        ({"engine": "flower"}, 'choose "inline" or "ray"'),
        ({"algorithm": Net}, "does not name an Algorithm"),
    ],
)
def test_a_mistake_is_one_sentence(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    engine = {"engine": keys.pop("engine")} if "engine" in keys else {}
    with pytest.raises(ConfigError, match=said):
        run(keys | {"results_dir": tmp_path}, **engine)
    assert not list(tmp_path.iterdir())


# Objects.


def make_net(facts: Any) -> nn.Module:
    return Net(int(facts.num_classes))


@pytest.mark.parametrize(
    "model", [Net, make_net, Net(7), lambda: Net(3)], ids=["class", "function", "network", "lambda"]
)
def test_a_model_is_given_as_an_object(model: Any, small: dict[str, Any]) -> None:
    result = run(small, model=model)
    width = {id(Net): 5, id(make_net): 10}.get(id(model), 7 if isinstance(model, Net) else 3)
    Net(width).load_state_dict(result.model)


def test_a_network_that_is_given_is_where_training_begins_and_stays_as_it_is(
    small: dict[str, Any],
) -> None:
    network = Net()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    result = run(small, model=network, lr=1e-30)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.allclose(result.model[name], before[name])


def test_an_algorithm_is_given_as_an_object(small: dict[str, Any]) -> None:
    result = run(small, algorithm=SIGNS, dataset="quadratic", my_signs={"step": 0.5})
    assert set(result.model["x"].tolist()) <= {-1.0, 0.0, 1.0}  # two steps of 0.5 from 0
    assert result.config.flat()["my-signs.step"] == 0.5


def test_a_compressor_is_given_as_a_class_or_with_its_settings(small: dict[str, Any]) -> None:
    one = run(small, compressor=MyHalves)
    two = run(small, compressor=MyHalves(repeat=2))
    reference = run(small, compressor="float16")
    assert same_model(one, reference)
    assert same_model(two, reference)
    assert two.config.flat()["my-halves.repeat"] == 2
    assert one.rounds[0]["uplink_bytes"] == reference.rounds[0]["uplink_bytes"]


def test_a_problem_is_given_as_an_object(small: dict[str, Any]) -> None:
    result = run(small, problem=Line(), num_rounds=20, lr=0.05)
    assert result.rounds[-1]["test_loss"] < 0.1 * result.rounds[0]["test_loss"]
    other = run(small, problem=Line(-3.0), num_rounds=20, lr=0.05)
    assert float(other.model["weight"]) < 0 < float(result.model["weight"])


def table() -> tuple[Any, Any]:
    inputs = np.random.default_rng(0).normal(size=(60, 3))
    return inputs, inputs @ np.array([1.0, -2.0, 0.5])


@pytest.mark.parametrize(
    "data",
    [
        table,
        lambda: {"train": table(), "test": table()},
        table(),
        {"train": table(), "test": table()},
        pandas.DataFrame(table()[0], columns=["a", "b", "c"]).assign(y=table()[1]),
    ],
    ids=["function", "function of splits", "arrays", "splits", "frame"],
)
def test_data_are_given_as_an_object(data: Any, small: dict[str, Any]) -> None:
    result = run(small, dataset=data, model="logreg", partition="iid", num_rounds=10, lr=0.1)
    losses = result.frame()["test_loss"]
    assert losses.iloc[-1] < 0.1 * losses.iloc[0]


def test_objects_work_under_flowers_start(small: dict[str, Any]) -> None:
    keys = {k: v for k, v in small.items() if k != "results_dir"}
    keys |= {"model": Net, "algorithm": "scaffold"}
    strategy = make_strategy(keys)
    strategy.start(InlineGrid(make_client_app(keys), {}, 2), strategy.arrays(), 2)
    result = run(small, **keys)
    trained = torch.cat([tensor.reshape(-1) for tensor in result.model.values()])
    assert sorted(trained.tolist()) == sorted(strategy.x.tolist())


def test_a_run_with_objects_is_resumed_by_giving_them_again(small: dict[str, Any]) -> None:
    keys = small | {"algorithm": "scaffold", "run_name": "mine", "checkpoint_every": 1}
    torch.manual_seed(0)
    run(keys, model=Net())
    torch.manual_seed(0)
    resumed = run(keys, model=Net(), num_rounds=4, resume=True)
    torch.manual_seed(0)
    whole = run(keys | {"run_name": "whole"}, model=Net(), num_rounds=4)
    assert same_model(resumed, whole)
    assert len(resumed.rounds) == 4
    with pytest.raises(ConfigError, match="cannot go on with another model"):
        run(keys, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), num_rounds=5, resume=True)


def test_the_command_says_that_such_a_run_is_for_python(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = small | {"run_name": "mine", "checkpoint_every": 1, "num_rounds": 1}
    directory = run(keys, model=Net()).directory
    model = read_config(directory)["model"]
    script = (
        "from fedapp.cli import main; import sys; sys.exit(main(['run', '--engine', 'inline', '-c', "
        f"'model=\"{model}\" run-name=\"mine\" resume=true', '--out', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert "was given as a Python object and cannot be imported: give it again" in done.stderr


# Where it is called.


def test_what_a_run_changes_in_the_process_is_as_before(small: dict[str, Any]) -> None:
    logger = logging.getLogger("flwr")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), logger.level
    output = sys.stdout
    run(small, dataset="quadratic")
    with pytest.raises(RunError):
        run(small, dataset="quadratic", lr=1e30)
    sweep(small, {"seed": [0]}, dataset="quadratic")
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), logger.level
    assert after == before
    assert sys.stdout is output


def test_sigterm_saves_the_rounds_so_far(small: dict[str, Any], tmp_path: Path) -> None:
    class Impatient(Line):
        def test_data(self) -> tuple[Any, Any]:
            if (tmp_path / "mine").exists():  # not in a rehearsal
                os.kill(os.getpid(), signal.SIGTERM)
            return super().test_data()

    with pytest.raises(KeyboardInterrupt):
        run(small, problem=Impatient(), run_name="mine")
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_a_run_works_in_a_thread_and_in_a_running_event_loop(small: dict[str, Any]) -> None:
    results: list[RunResult] = []
    thread = threading.Thread(target=lambda: results.append(run(small, dataset="quadratic")))
    thread.start()
    thread.join(PATIENCE)

    async def cell() -> None:
        results.append(run(small, dataset="quadratic"))

    asyncio.run(cell())
    assert same_model(*results)


def test_show_decides_what_is_printed(
    small: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(small, dataset="quadratic")
    assert capsys.readouterr().out == ""
    fedapp.run(small, dataset="quadratic")
    assert "round 2/2" in capsys.readouterr().out


# Sweeps.


def test_a_sweep_gives_a_frame_of_all_runs(small: dict[str, Any]) -> None:
    axes: dict[str, Any] = {"algorithm": ["fedavg", SIGNS], "seed": [0, 1]}
    found = sweep(small, axes, model=Net)
    frame = found.frame()
    assert len(found) == 4
    assert list(frame.columns[:4]) == ["run", "algorithm", "seed", "round"]
    assert len(frame) == 8
    assert set(frame["seed"]) == {0, 1}
    assert frame.groupby(["algorithm", "seed"])["test_accuracy"].last().notna().all()
    assert found[0].config.seed == 0
    assert found.failed == {}


def test_a_sweep_over_tables_and_models(small: dict[str, Any]) -> None:
    axes = {
        "method": [
            {"name": "plain", "algorithm": "fedavg"},
            {"name": "sparse", "algorithm": "fedavg", "compressor": TopK(ratio=0.1)},
        ],
        "model": [Net, make_net],
    }
    frame = sweep(small, axes).frame()
    sent = frame.groupby(["method", "model"])["uplink_bytes"].sum()
    assert sent["sparse", "Net"] < sent["plain", "Net"]
    assert sent["plain", "Net"] < sent["plain", "make_net"]


def test_a_named_sweep_skips_what_is_complete(small: dict[str, Any]) -> None:
    keys = small | {"dataset": "quadratic"}
    first = sweep(keys, {"seed": [0, 1]}, name="mine")
    written = [r.directory.joinpath("model.safetensors").stat().st_mtime_ns for r in first]
    second = sweep(keys, {"seed": [0, 1, 2]}, name="mine")
    assert [r.directory.joinpath("model.safetensors").stat().st_mtime_ns for r in second][:2] == (
        written
    )
    assert len(second) == 3
    other = sweep(keys | {"lr": 0.01}, {"seed": [0]}, name="mine")
    assert len(other) == 0
    assert "holds a run with another config (lr)" in next(iter(other.failed.values()))
    assert other.frame().empty


def test_a_run_of_a_sweep_that_fails_does_not_end_the_others(small: dict[str, Any]) -> None:
    found = sweep(small, {"lr": [1e30, 0.1]}, dataset="quadratic", name="mine")
    assert list(found.failed) == ["mine-lr-1e30"]
    assert found[-1].config.lr == 0.1
    assert len(found[-1].rounds) == 2


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "A sweep needs axes"),
        ({"seed": 3}, "The axis seed should be a list"),
        ({"seed": []}, "The axis seed should be a list"),
        ({"method": [{"lr": 1.0}]}, "Every point of the axis method needs a name"),
        ({"seed": [0], "m": [{"name": "a", "seed": 1}]}, "Two axes of this sweep set seed"),
        ({"seed": [0, 0]}, "have the same name"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_sentence(
    axes: dict[str, Any], said: str, small: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep(small, axes)


# Other processes.


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_objects_that_cannot_be_imported_reach_rays_workers(small: dict[str, Any]) -> None:
    class Local(Net):
        """Only this function knows it."""

    keys = small | {"algorithm": SIGNS, "compressor": MyHalves, "model": Local}
    assert same_model(run(keys), run(keys, engine="ray", workers=1))
    locked = Line()
    vars(locked)["lock"] = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to Ray's workers .* engine=\"inline\""):
        run(small, problem=locked, engine="ray", workers=1)


def test_runs_of_a_sweep_with_objects_run_sequentially(
    small: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"model": [lambda: Net(2), lambda: Net(3)]}
    for one, two in zip(fedapp.sweep(small, axes, workers=2), sweep(small, axes), strict=True):
        assert same_model(one, two)
    assert "Runs with Python objects run sequentially." in capsys.readouterr().out


MINE = """
from torch import nn

def net(facts):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_the_command_finds_what_lies_in_the_current_directory(tmp_path: Path) -> None:
    """On both engines, with the same bits."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "strategies.py").write_text("raise RuntimeError('this hides a package of ours')")
    keys = 'model="mine:net" algorithm="mifam" num-rounds=4 run-name="run"'
    for engine in (["inline"], ["ray", "--workers", "1"]):
        results = str(tmp_path / engine[0])
        done = subprocess.run(
            [BIN / "fedapp", "run", "--engine", *engine, "--out", results, "-c", keys],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert len(read_rounds(tmp_path / "ray" / "run")) == 4
    assert_same(tmp_path / "ray" / "run", tmp_path / "inline" / "run")


# The package.


def test_everything_that_is_exported_is_there() -> None:
    for name in fedapp.__all__:
        assert getattr(fedapp, name) is not None
    assert callable(fedapp.sweep)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedapp.nothing  # noqa: B018


def test_importing_the_package_is_quick() -> None:
    code = (
        "import sys, fedapp; sys.exit(any(m in sys.modules for m in ('torch', 'flwr', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE).returncode == 0
