"""What a full disk does, tried on one: `python -m tests.disk_scenarios DIRECTORY [--limit]`; prints what came of it as JSON.

Where it may, it mounts small disks of its own, for which it should have a mount namespace (`unshare --mount`);
elsewhere, or with --limit, files may not grow beyond a limit, which fails the same writes.

Long, because it is one command with one function for each scenario.
"""

import contextlib
import io
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from fedapp import cli, client_app, server_app
from fedapp.checkpoint import Checkpoints
from fedapp.data import cache
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.parsing import parse_run_config
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value

SIZE = 4 << 20  # bytes
PAGE = 4096
KEYS: dict[str, Value] = {
    "algorithm": "scaffold",
    "model": "mlp-100",
    "num-clients": 6,
    "clients-per-round": 4,
    "local-steps": 1,
    "lr": 0.05,
    "num-rounds": 8,
    "eval-every": 4,
    "checkpoint-every": 2,
    "run-name": "run",
}
LONG: dict[str, Value] = {"num-rounds": 40, "eval-every": 40, "model": "logreg"}
Event = Callable[[], None]


class Disk:
    """A small disk, or a limit to what files may grow to."""

    def __init__(self, path: Path, may_mount: bool) -> None:
        self.path = path
        path.mkdir()
        self.mounted = may_mount and self._mount()
        self.filler = path / "filler"

    def _mount(self) -> bool:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.path)]
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self, left: int = 0) -> None:
        """Leave this number of bytes free."""
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (left, resource.RLIM_INFINITY))
            return
        with self.filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(PAGE)):
                pass
        if left:
            os.truncate(self.filler, self.filler.stat().st_size // PAGE * PAGE - left)

    def free(self) -> None:
        """Make space again."""
        if self.mounted:
            self.filler.unlink(missing_ok=True)
        else:
            unlimited = resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))


class EventfulGrid(InlineGrid):
    """Something happens before a round; the answers of node 2 may be lost in some."""

    events: dict[int, Event] = {}  # noqa: RUF012
    deaf: tuple[int, ...] = ()

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        rounds = {m.content["round"]["round"] for m in messages if "round" in m.content}
        round_ = max(rounds, default=0)
        self.events.pop(round_, lambda: None)()
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return [r for r in replies if round_ not in self.deaf or r.metadata.src_node_id != 2]


def run(
    place: Path,
    events: dict[int, Event] | None = None,
    deaf: tuple[int, ...] = (),
    node_2: str = "",
    /,
    **more: Value,
) -> Path:
    """Run on two nodes."""
    keys = {key.replace("_", "-"): value for key, value in more.items()}
    config = parse_run_config(KEYS | keys | {"results-dir": str(place)})
    grid = EventfulGrid(client_app.app, config.flat(), 2)
    grid.events, grid.deaf = events or {}, deaf
    if node_2:
        grid.contexts[2].node_config["state-dir"] = node_2
    return server_app.run(grid, config).path


class Said(logging.Handler):
    """Keeps what is logged, tracebacks included."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    handler = Said()
    handler.setLevel(logging.WARNING)
    logging.getLogger("flwr").addHandler(handler)
    try:
        yield handler.texts
    finally:
        logging.getLogger("flwr").removeHandler(handler)


def error_of(work: Callable[[], object]) -> list[str]:
    """Return the kind and the text of what ended it; a kind that is not ours is a mistake."""
    try:
        work()
    except (ConfigError, RunError) as error:
        return [type(error).__name__, str(error)]
    except Exception as error:
        return [type(error).__name__, repr(error)]
    return []


def result(directory: Path) -> list[Any]:
    rounds = [record | {"wall_seconds": 0} for record in read_rounds(directory)]
    model = {n: a.tobytes().hex() for n, a in load_file(directory / "model.safetensors").items()}
    return [model, rounds]


def whole_files(directory: Path) -> dict[str, Any]:
    """Say what can be read of a run."""
    return {
        "rounds": len(read_rounds(directory)),
        "checkpoints": [
            Checkpoints(directory).load(path)[0].round for path in Checkpoints(directory).paths()
        ],
        "strays": [p.name for p in directory.rglob(".*") if p.name != ".lock"],
        "config": bool(json.loads((directory / "config.json").read_text())["identity"]),
    }


def rounds(disk: Disk, work: Path) -> dict[str, Any]:
    """The disk is full from round 6 on; states are elsewhere."""
    place, states = disk.path / "rounds", str(work / "states")
    said = error_of(lambda: run(place, {6: disk.fill}, state_dir=states, **LONG))
    seen = whole_files(place / "run")
    disk.free()
    resumed = run(place, state_dir=states, resume=True, **LONG)
    return {"said": said, **seen, "same": result(resumed) == result(run(work / "rounds", **LONG))}


def model(disk: Disk, work: Path) -> dict[str, Any]:
    """It is full in the last round: there is place for its line, but not for the model."""
    place, states = disk.path / "model", str(work / "states")
    said = error_of(lambda: run(place, {8: lambda: disk.fill(2 * PAGE)}, state_dir=states))
    seen = whole_files(place / "run")
    disk.free()
    resumed = run(place, state_dir=states, resume=True, num_rounds=9)
    whole = result(run(work / "model", num_rounds=9))
    return {"said": said, **seen, "same": result(resumed) == whole}


def checkpoint(disk: Disk, work: Path) -> dict[str, Any]:
    """There is no place for checkpoints in rounds 4 to 6; states are elsewhere."""
    place, states = disk.path / "checkpoint", str(work / "states")
    events = {4: lambda: disk.fill(2 * PAGE), 7: disk.free}
    with listening() as texts:
        path = run(place, events, state_dir=states, num_rounds=7)
    whole = result(run(work / "checkpoint", num_rounds=7))
    return {"said": texts, **whole_files(path), "same": result(path) == whole}


def client_state(disk: Disk, work: Path) -> dict[str, Any]:
    """The disk of node 2 is full in rounds 4 and 5: as if its clients had merely failed."""
    events: dict[int, Event] = {4: disk.fill, 6: disk.free}
    states, elsewhere = str(disk.path / "states"), str(work / "elsewhere")
    with listening() as texts:
        full = run(work / "full", events, (), states, state_dir=elsewhere)
    deaf = run(work / "deaf", None, (4, 5), state_dir=elsewhere)
    figures = [[r["clients"], r["failures"]] for r in read_rounds(full)]
    model_full, model_deaf = (result(path)[0] for path in (full, deaf))
    same = figures == [[r["clients"], r["failures"]] for r in read_rounds(deaf)]
    strays = [p.name for p in disk.path.rglob("states/**/.*")]
    return {
        "said": texts,
        "figures": figures,
        "same": same and model_full == model_deaf,
        "strays": strays,
    }


def data_cache(disk: Disk, work: Path) -> dict[str, Any]:
    """There is no place for the data."""
    before = os.environ["FEDAPP_CACHE"]
    os.environ["FEDAPP_CACHE"] = str(disk.path / "cache")
    try:
        disk.fill()
        (disk.path / "cache").mkdir()
        said = error_of(lambda: cache.load_images("digits", ""))
        left = [p.name for p in (disk.path / "cache").rglob("*") if not p.name.endswith(".lock")]
        disk.free()
        return {
            "said": said,
            "left": left,
            "images": len(cache.load_images("digits", "").train_images),
        }
    finally:
        os.environ["FEDAPP_CACHE"] = before


def start(disk: Disk, work: Path) -> dict[str, Any]:
    """There is no place for config.json, by the command line."""
    place = disk.path / "start"
    place.mkdir()
    config = [f"{key}={json.dumps(value)}" for key, value in KEYS.items()]
    command = [
        "run",
        "--engine",
        "inline",
        "--out",
        str(place),
        "-c",
        " ".join(config),
    ]
    errors, out = io.StringIO(), io.StringIO()
    disk.fill()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
        code = cli.main(command)
    left = [path.name for path in place.iterdir()]
    disk.free()
    with contextlib.redirect_stdout(io.StringIO()):
        again = cli.main(command)
    return {"said": errors.getvalue(), "code": code, "left": left, "again": again}


def resume(disk: Disk, work: Path) -> dict[str, Any]:
    """A finished run is to be made longer: first not even config.json, then the shorter rounds do not fit."""
    place = disk.path / "resume"
    path = run(place, **LONG)
    before = result(path)
    longer = LONG | {"num_rounds": 45, "resume": True}
    del longer["num-rounds"]
    disk.fill()
    said = [error_of(lambda: run(place, **longer))]
    disk.free()
    disk.fill(2 * PAGE)
    said += [error_of(lambda: run(place, **longer))]
    kept = result(path) == before
    disk.free()
    whole = result(run(work / "resume", **(LONG | {"num-rounds": 45})))
    return {"said": said, "kept": kept, "same": result(run(place, **longer)) == whole}


def divergence(disk: Disk, work: Path) -> dict[str, Any]:
    """A run diverges where nothing can be written."""
    place = disk.path / "divergence"
    keys: dict[str, Value] = {"algorithm": "fedavg", "dataset": "quadratic", "lr": 100.0}
    keys["checkpoint-every"] = 0
    with listening() as texts:
        said = error_of(lambda: run(place, {2: disk.fill}, num_rounds=40, **keys))
    disk.free()
    return {
        "said": said,
        "logged": texts,
        "files": sorted(p.name for p in (place / "run").iterdir()),
    }


SCENARIOS = (rounds, model, checkpoint, client_state, data_cache, start, resume, divergence)


def main() -> None:
    """Try all scenarios, each on an empty disk."""
    work, *_ = map(Path, sys.argv[1:])
    found: dict[str, Any] = {}
    limited = "--limit" in sys.argv
    if limited:  # which holds for all the files of a process: nothing is "elsewhere"
        KEYS["algorithm"] = "fedavgm"
    for scenario in SCENARIOS:
        if limited and scenario is client_state:
            continue
        disk = Disk(work / f"disk-{scenario.__name__}", may_mount=not limited)
        place = work / scenario.__name__
        place.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            found[scenario.__name__] = scenario(disk, place)
        found["mounted"] = disk.mounted
    Path(work / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
