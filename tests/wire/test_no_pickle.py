"""Nothing that comes from outside is unpickled or run: no code of ours could, and what is tried is refused."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedapp import wire
from fedapp.building import make_strategy
from fedapp.checkpoint import Checkpoints
from fedapp.compression import PayloadError
from fedapp.compression.payload import seal
from fedapp.data.cache import mapped
from fedapp.errors import ConfigError
from fedapp.models.vit import file_weights
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.state import ContextStore, DirectoryStore, StateError
from fedapp.wire import WireError
from tests.support.compressors import COMPRESSORS

ROOT = Path(__file__).parents[2]
SHIPPED = ["fedapp", "strategies", "clients", "deploy", "run_simulation.py"]
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def dangers(source: str) -> Iterator[str]:
    """Yield what in a source could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if MODULES & set(name.split(".")))
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        told = {k.arg: ast.unparse(k.value) for k in node.keywords}
        if called in ("eval", "exec", "__import__") or called.startswith("yaml."):
            yield called
        if told.get("allow_pickle", "False") != "False":
            yield "allow_pickle"
        if called.endswith("torch.load") and told.get("weights_only") != "True":
            yield "torch.load"


def sources() -> list[Path]:
    places = [ROOT / name for name in SHIPPED]
    return sorted(f for p in places for f in ([p] if p.is_file() else p.rglob("*.py")))


def test_no_code_of_ours_unpickles_or_evaluates() -> None:
    assert len(sources()) > 60
    found = {str(p.relative_to(ROOT)): list(dangers(p.read_text())) for p in sources()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "import os, cloudpickle", "from joblib import load", "import dill as d",
        "from ray import cloudpickle", "import shelve", "import marshal", "eval('1')", "exec(x)",
        "np.load(p, allow_pickle=True)", "np.load(p, allow_pickle=flag)", "torch.load(p)",
        "torch.load(p, weights_only=False)", "yaml.load(text)", "def f():\n    import pickle.loads",
    ],
)  # fmt: skip
def test_the_search_finds(source: str) -> None:
    assert list(dangers(source))


def test_the_search_leaves_the_harmless_alone() -> None:
    harmless = "model.eval()\nnp.load(p, allow_pickle=False)\ntorch.load(p, weights_only=True)"
    assert not list(dangers(harmless))


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Path]:
    """Give the file that a bomb would create, and see that none did."""
    path = tmp_path / "exploded"
    pickle.loads(pickle.dumps(Bomb(path)))
    assert path.exists(), "bombs work"
    path.unlink()
    yield path
    assert not path.exists()


def bombs(trace: Path) -> list[bytes]:
    """Return a bomb in every wrapping that some library would unpickle."""
    directory = trace.parent / "bombs"
    directory.mkdir()
    np.save(directory / "a.npy", np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    np.savez(directory / "b.npz", x=np.array([Bomb(trace)], dtype=object))
    torch.save({"x": Bomb(trace)}, directory / "c.pth")
    torch.save({"x": Bomb(trace)}, directory / "d.pth", _use_new_zipfile_serialization=False)
    return [pickle.dumps(Bomb(trace)), *(p.read_bytes() for p in sorted(directory.iterdir()))]


def test_as_an_array_or_a_payload_of_a_reply(trace: Path) -> None:
    float32, empty = np.dtype(np.float32), wire.encode(np.zeros(0, np.float32))
    spec: wire.Spec = {"u": (float32, (5,)), "buffers": (float32, (0,))}
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    asked = Message(RecordDict(), 7, "train")
    metrics = MetricRecord({"num-examples": 1, "steps": 1, "train-loss": 0.5})
    for bomb in bombs(trace):
        sealed = [seal(c.codec, 5, bomb, c.key) for c in COMPRESSORS]
        as_bytes = [wire.encode(np.frombuffer(data, np.uint8)) for data in (bomb, *sealed)]
        for array in (Array("object", (1,), "numpy.ndarray", bomb), *as_bytes):
            content = RecordDict(
                {"client.0": ArrayRecord({"u": array, "buffers": empty}), "metrics.0": metrics}
            )
            message = Message(content, reply_to=asked)
            for compressor in (None, *COMPRESSORS):
                kind = {"u": wire.Compressed(compressor, 5, float32)} if compressor else {}
                reply = wire.unpack_reply(message, {0: {**spec, **kind}})
                assert [refusal.client for refusal in reply.refusals] == [0]
        for compressor, data in zip(COMPRESSORS, sealed, strict=True):
            with pytest.raises(PayloadError):
                compressor.decode(data, 5)


def test_as_what_a_client_remembers(trace: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "state")
    store.save(1, 5, {"g": np.ones(3, np.float32)}, keep=[0])
    for bomb in bombs(trace):
        (tmp_path / "state" / "1" / "5.safetensors").write_bytes(bomb)
        with pytest.raises(StateError, match="damaged"):
            store.load(1, 5)
        array = Array("object", (1,), "numpy.ndarray", bomb)
        with pytest.raises(WireError):
            ContextStore(RecordDict({"state.1.5": ArrayRecord({"g": array})})).load(1, 5)


def test_as_a_checkpoint(trace: Path, tmp_path: Path) -> None:
    config = parse_run_config({"dataset": "quadratic"})
    strategy, checkpoints = make_strategy(config, make_problem(config)), Checkpoints(tmp_path)
    checkpoints.write(1, strategy)
    (path,) = checkpoints.paths()
    assert checkpoints.restore(strategy).round == 1
    for bomb in bombs(trace):
        path.write_bytes(bomb)
        with pytest.raises(ConfigError, match="No checkpoint"):
            checkpoints.restore(strategy)


def test_as_a_cached_array(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "train_images.npy"
    np.save(path, np.arange(3))
    assert mapped(path).sum() == 3
    for bomb in (*bombs(trace), b""):
        path.write_bytes(bomb)
        with pytest.raises(ConfigError, match=r"cannot be read .*: remove"):
            mapped(path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_as_the_weights_of_a_model(trace: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for bomb in bombs(trace):
        path.write_bytes(bomb)
        with pytest.raises(ConfigError, match=r"vit.weights = .* cannot be read"):
            file_weights(str(path))
