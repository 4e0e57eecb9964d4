"""What a run leaves on disk: `config.json`, `rounds.jsonl`, `model.safetensors`."""

import itertools
import json
import math
import time
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fedapp import __version__
from fedapp.config import RunConfig, Value, writable_directory
from fedapp.errors import ConfigError
from fedapp.state import write_atomically

# The order of a line; an algorithm's own figures follow.
COLUMNS = [
    "round",
    "test_loss",
    "test_accuracy",
    "train_loss",
    "clients",
    "failures",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bits_nominal",
    "simulated_seconds",
    "simulated_seconds_nominal",
    "wall_seconds",
]


def results_dir(config: RunConfig) -> Path:
    """Return where results go: never relative to the process, which may be Flower's."""
    return Path.home() / Path(config.results_dir or "fedapp-results").expanduser()


def read_rounds(directory: Path) -> list[dict[str, Any]]:
    """Read a run's rounds; a last line that was cut off does not count."""
    lines = (directory / "rounds.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_config(directory: Path) -> dict[str, Value]:
    """Read the config that a run was started with."""
    config: dict[str, Value] = json.loads((directory / "config.json").read_text())["config"]
    return config


def last_record(config: RunConfig) -> dict[str, Any]:
    """Return the last line of a named run; empty if there is none."""
    try:
        rounds = read_rounds(results_dir(config) / config.run_name)
    except OSError:
        rounds = []
    return rounds[-1] if rounds else {}


PARTIAL = ".partial-"


def was_completed(config: RunConfig) -> bool:
    """Tell whether a named run is there, whole; the remains of one that is not are set aside."""
    directory = results_dir(config) / config.run_name
    if not directory.exists():
        return False
    try:
        before, rounds = read_config(directory), read_rounds(directory)
    except (OSError, ValueError, KeyError):  # killed as it began
        before, rounds = config.flat(), []
    # A key that did not exist when the run was made had, in effect, its default.
    if RunConfig().flat() | before != config.flat():
        raise ConfigError(
            f"{directory} holds a run with another config: choose another --out, or remove it."
        )
    reached = config.target_accuracy and rounds and rounds[-1]["test_accuracy"]
    ended = len(rounds) == config.num_rounds or (reached and reached >= config.target_accuracy)
    if ended and (directory / "model.safetensors").is_file():
        return True
    places = (directory.with_name(f"{directory.name}{PARTIAL}{n}") for n in itertools.count(1))
    place = next(place for place in places if not place.exists())
    directory.rename(place)
    print(f"{config.run_name} was not complete: its {len(rounds)} rounds are now in {place.name}")
    return False


class RunDirectory:
    """`<results-dir>/<run-name>/`, which belongs to one run alone."""

    def __init__(self, config: RunConfig) -> None:
        self.path = self._create(config)
        versions = {"fedapp": __version__, "flwr": version("flwr"), "torch": version("torch")}
        text = json.dumps({"config": config.flat(), "versions": versions}, indent=2)
        (self.path / "config.json").write_text(text + "\n")
        self._rounds: IO[str] = (self.path / "rounds.jsonl").open("a")

    @staticmethod
    def _create(config: RunConfig) -> Path:
        parent = writable_directory("results-dir", results_dir(config))
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = config.run_name or f"{config.algorithm}-{config.dataset}-{stamp}"
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
                break
            except FileExistsError:
                if config.run_name:
                    raise ConfigError(
                        f"run-name = {name!r} has results already, in {path}: choose another name, "
                        "or remove them."
                    ) from None
        return path

    def write_round(self, record: dict[str, Any]) -> None:
        """Append one whole line."""
        ordered = {name: record.get(name) for name in COLUMNS} | record
        line = {name: _plain(value) for name, value in ordered.items()}
        self._rounds.write(json.dumps(line) + "\n")
        self._rounds.flush()

    def write_model(self, tensors: dict[str, NDArray[Any]]) -> None:
        """Write the model, all of it or nothing."""
        whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        write_atomically(self.path / "model.safetensors", lambda path: save_file(whole, path))

    def close(self) -> None:
        """Close the file of rounds."""
        self._rounds.close()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
