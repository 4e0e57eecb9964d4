"""What clients remember, and which version of it counts."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from fedapp import registry
from fedapp.algorithm import Algorithm
from fedapp.client import Client
from fedapp.engine import InlineGrid
from fedapp.problems.keys import QuadraticKeys
from fedapp.state import ContextStore, DirectoryStore, StateError, StateStore
from fedapp.tables import Value
from tests.conftest import RunInline, read_rounds

Make = Callable[[Path], StateStore]
STORES: list[Make] = [lambda _: ContextStore(RecordDict()), DirectoryStore]


@pytest.mark.parametrize("make", STORES)
def test_two_versions_are_kept(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path)
    one, two, three = ({"g": np.full(3, value, np.float32)} for value in (1, 2, 3))
    assert store.load(5, 1) is None
    store.save(5, 1, one, keep=[0])
    store.save(5, 2, two, keep=[1])
    store.save(15, 1, three, keep=[0])
    np.testing.assert_array_equal((store.load(5, 1) or {})["g"], one["g"])
    store.save(5, 3, three, keep=[1])  # 2 was not accepted
    assert store.load(5, 2) is None
    np.testing.assert_array_equal((store.load(5, 1) or {})["g"], one["g"])
    np.testing.assert_array_equal((store.load(5, 3) or {})["g"], three["g"])
    np.testing.assert_array_equal((store.load(15, 1) or {})["g"], three["g"])


@pytest.mark.parametrize("make", STORES)
def test_a_late_attempt_does_not_undo_a_newer_one(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path)
    state = {"g": np.ones(3, np.float32)}
    store.save(1, 5, state, keep=[0])
    store.save(1, 7, state, keep=[5])
    store.save(1, 6, state, keep=[5])  # given up by the server, and late
    assert store.load(1, 7) is not None


def test_what_a_killed_process_left_is_removed_in_time(tmp_path: Path) -> None:
    """Only what `write_atomically` named: a directory, in which libraries may leave files of their own."""
    store = DirectoryStore(tmp_path)
    store.save(1, 1, {"g": np.ones(3, np.float32)}, keep=[0])
    old, new = (f".2.safetensors-{digit * 32}" for digit in "ab")
    for name, age in ((old, 7200), (new, 10)):
        (tmp_path / "1" / name).mkdir()
        (tmp_path / "1" / name / ".tmpXyZ").write_bytes(b"half of a state")
        os.utime(tmp_path / "1" / name, (time.time() - age,) * 2)
    (tmp_path / "1" / ".env").write_bytes(b"a stranger's")
    os.utime(tmp_path / "1" / ".env", (time.time() - 7200,) * 2)
    store.save(1, 3, {"g": np.ones(3, np.float32)}, keep=[1])
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == [new, ".env", "1.safetensors", "3.safetensors"]


def test_a_damaged_state_is_refused_not_restarted(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    digest = store.save(1, 5, {"g": np.ones(3, np.float32)}, keep=[0])
    other = store.save(2, 5, {"g": np.zeros(3, np.float32)}, keep=[0])
    assert store.load(1, 5, digest) is not None
    with pytest.raises(StateError, match="not the state that the server accepted"):
        store.load(1, 5, other)
    path = tmp_path / "1" / "5.safetensors"
    for content in (
        b"damaged",
        b"",
        path.read_bytes()[:-1],
        (tmp_path / "2" / path.name).read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(StateError, match=r"5\.safetensors .*Restore that file"):
            store.load(1, 5)
    path.unlink()
    assert store.load(1, 5, digest) is None


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    store.save(1, 1, {"g": np.ones(3, np.float32)}, keep=[0])

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedapp.files.save_file", full_disk)
    with pytest.raises(StateError, match=r"\(No space left on device\): make space there"):
        store.save(1, 2, {"g": np.zeros(3, np.float32)}, keep=[1])
    assert [p.name for p in (tmp_path / "1").iterdir()] == ["1.safetensors"]


KEYS: dict[str, Value] = {"algorithm": "mifam", "dataset": "quadratic", "num_rounds": 12, "lr": 0.1}


def test_a_state_dir_gives_the_same_run(run_inline: RunInline, tmp_path: Path) -> None:
    in_memory = run_inline(**KEYS)
    on_disk = run_inline(**KEYS, state_dir=str(tmp_path / "state"), run_name="named")
    a, b = (load_file(d / "model.safetensors")["x"] for d in (in_memory, on_disk))
    np.testing.assert_array_equal(a, b)
    identity = json.loads((on_disk / "config.json").read_text())["identity"]
    assert re.fullmatch("named-[0-9a-f]{8}", identity)
    assert [place.name for place in (tmp_path / "state").iterdir()] == [identity]


class Forgetful(registry.ALGORITHMS["mifam"].client):  # type: ignore[misc]
    """Sends an update that the server must refuse, in some rounds; its state has moved on by then."""

    def train(self, received, buffers):  # type: ignore[no-untyped-def]
        update = super().train(received, buffers)
        if self.round in (4, 7) and self.client % 2:
            update.arrays["d"] = np.full_like(update["d"], np.nan)
        return update


def test_a_refused_update_is_undone_at_the_client(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """d = mean of g_old over all clients must hold, whatever the server refused."""
    strategies = []
    original = registry.ALGORITHMS["mifam"]

    class Watched(original.strategy):  # type: ignore[name-defined,misc]
        def setup(self) -> None:
            super().setup()
            strategies.append(self)

    faulty: type[Client] = Forgetful
    algorithm = Algorithm("mifam", "", Watched, faulty, stateful=True)
    monkeypatch.setitem(registry.ALGORITHMS, "mifam", algorithm)
    contexts: list[Context] = []
    keep = InlineGrid.__init__

    def watch(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        keep(self, *args, **kwargs)
        contexts.extend(self.contexts.values())

    monkeypatch.setattr(InlineGrid, "__init__", watch)
    records = read_rounds(run_inline(**KEYS))
    assert sum(r["failures"] for r in records) > 0
    (strategy,) = strategies
    store = ContextStore(contexts[0].state)
    dim = QuadraticKeys().dim
    held = [
        (store.load(c, tag) or {})["g_old"]
        if (tag := strategy.ledger.accepted.get(c))
        else np.zeros(dim)
        for c in range(20)
    ]
    np.testing.assert_allclose(strategy.d, np.mean(held, axis=0), atol=1e-5)


def test_lost_state_is_said_once_and_the_run_goes_on(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ContextStore, "load", lambda *_: None)
    with caplog.at_level("WARNING", logger="flwr"):
        records = read_rounds(run_inline(**KEYS))
    assert len(records) == 12
    assert sum("CLIENT STATE IS LOST" in m for m in caplog.messages) == 1
