"""The manifest of a run, `config.json`: which run a directory holds, and with which config.

A directory is a run's only if its manifest says so: it names the format and the run's identity, and is sealed by a
digest. If that file is damaged, the newest intact checkpoint says the same and it is written again. Any other
directory is refused and left as it is. Equal models are equal files, so the manifest holds the model's digest.
"""

import json
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedapp
from fedapp.config import RunConfig, with_new_names
from fedapp.errors import ConfigError
from fedapp.files import (
    DamagedFileError,
    checkpoint_paths,
    checkpoint_round,
    is_leftover,
    load_arrays,
    seal,
    unseal,
    write_text,
)
from fedapp.tables import Value

log = logging.getLogger("flwr")

FORMAT = "fedapp run 2"
# The files of a run's directory:
CONFIG, ROUNDS, MODEL, LOCK = "config.json", "rounds.jsonl", "model.safetensors", ".lock"
DIVERGED, FAILED = "diverged.txt", "failed.txt"
TRACKERS_FILE = "trackers.json"  # the run's ids at trackers of experiments
CHECKPOINTS = "checkpoint"
DEFAULT_RESULTS = Path("~/fedapp-results")
PARTIAL = ".partial-"  # in the name of a directory that was set aside


def results_dir(config: RunConfig) -> Path:
    """Return where results go: never relative to the process, which may be Flower's."""
    return Path.home() / Path(config.results_dir or DEFAULT_RESULTS).expanduser()


def run_path(config: RunConfig) -> Path:
    """Return the directory of a named run."""
    return results_dir(config) / config.run_name


def with_defaults(config: dict[str, Value]) -> dict[str, Value]:
    """Return a config with the defaults of the keys that it lacks."""
    from fedapp.parsing import parse_run_config  # slow to import: torch comes with it

    return with_new_names(parse_run_config({}).flat() | config)


@dataclass(frozen=True)
class Manifest:
    """Which run a directory holds, and the config that it was last started with.

    `identity` is the run's own for as long as it lives: two runs of the same name, in different results directories,
    may share a state-dir.
    """

    identity: str
    config: dict[str, Value]
    checked: bool = True  # its rounds carry checks; those of an older version do not
    model: str = ""  # digest of the model, once there is one
    rounds: int = 0  # that were recorded when the model was written
    old_until: int = 0  # the rounds up to this one were made by a version without digests

    @property
    def full_config(self) -> dict[str, Value]:
        """The config with all keys: one that did not exist when the run started had, in effect, its default."""
        return with_defaults(self.config)

    def write(self, directory: Path) -> None:
        """Write `config.json`, all of it or nothing."""
        from importlib.metadata import version  # slow to import

        versions = {
            "fedapp": fedapp.__version__,
            "flwr": version("flwr"),
            "torch": version("torch"),
        }
        content = {
            "format": FORMAT,
            "identity": self.identity,
            "config": self.config,
            "versions": versions,
            "model": self.model,
            "rounds": self.rounds,
            "old_until": self.old_until,
        }
        write_text(directory / CONFIG, seal(content))


def read_manifest(directory: Path) -> Manifest:
    """Read `config.json`; a file that is not a run's is a ConfigError, a damaged one a DamagedFileError."""
    path = directory / CONFIG
    content = unseal(path)
    if content is None:  # not sealed: of an older version, if it looks exactly like that
        content = json.loads(path.read_text())
        keys = set(content) if isinstance(content, dict) else set()
        if keys - {"identity"} != {"config", "versions"} or not _is_config(content["config"]):
            if {"identity", "format"} & keys:
                raise DamagedFileError(f"{path} has changed since it was written.")
            raise _not_a_run(directory)
        identity = str(content.get("identity", directory.name))
        return Manifest(identity, content["config"], False, old_until=_last_checkpoint(directory))
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has the format {str(content.get('format'))[:40]!r}: use the version of fedapp that wrote it."
        )
    known = {name: content[name] for name in ("model", "rounds", "old_until")}
    return Manifest(content["identity"], content["config"], **known)


def _last_checkpoint(directory: Path) -> int:
    """Return the round of the newest checkpoint; 0 if there is none."""
    paths = checkpoint_paths(directory / CHECKPOINTS)
    return checkpoint_round(paths[0]) if paths else 0


def _is_config(config: Any) -> bool:
    return isinstance(config, dict) and {"algorithm", "num-rounds", "seed"} <= config.keys()


def _not_a_run(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} holds no run of fedapp (there is no run in {directory / CONFIG}), and was left as it is: give the "
        "directory of a run, or choose another run-name."
    )


def identify(directory: Path) -> Manifest | None:
    """Return the manifest of a run's directory, from its checkpoint if need be; None if no run was started there.

    Any other directory is refused; nothing in it is touched.
    """
    if not directory.is_dir():
        raise _not_a_run(directory)
    if not (directory / CONFIG).exists() and all(map(_is_left_by_start, directory.iterdir())):
        return None
    try:
        return read_manifest(directory)
    except DamagedFileError as damage:
        for path in checkpoint_paths(directory / CHECKPOINTS):
            with suppress(DamagedFileError, KeyError, ValueError):
                about = load_arrays(path, {})[1]
                manifest = Manifest(about["run"], json.loads(about["config"]))
                log.warning("%s Continuing with the config that %s holds", damage, path)
                return manifest
        if not (directory / CONFIG).exists():
            raise _not_a_run(directory) from None
        raise DamagedFileError(
            f"{damage} If {directory} is a run, restore that file from a backup, or remove the directory and start "
            "again; if it is not, choose another directory."
        ) from None


def _is_left_by_start(path: Path) -> bool:
    """Tell whether a process that was killed during its start may have left this."""
    empty = path.name in (LOCK, ROUNDS) and path.is_file() and not path.stat().st_size
    return is_leftover(path) or empty


def read_config(directory: Path) -> dict[str, Value]:
    """Read the config that a run was started with, with all keys."""
    return read_manifest(directory).full_config


def different(before: dict[str, Value], config: RunConfig, free: Collection[str]) -> str:
    """Return the first key, except those in `free`, in which two configs differ; or an empty string.

    Facts that a config leaves to the nodes are what these told when the run began.
    """
    now = config.flat()
    if not config.server_data and not config.facts:
        now["facts"] = before.get("facts", "")
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return next((key for key in keys if key not in free), "")
