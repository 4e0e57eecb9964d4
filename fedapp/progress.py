"""How far the run in a directory is: which rounds it has, whether these are all, and whether its model is there.

Nothing here writes to a directory.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.figures import accuracy_of
from fedapp.files import (
    DamagedFileError,
    arrays_digest,
    checkpoint_paths,
    checkpoint_round,
    load_arrays,
    unseal,
)
from fedapp.manifest import (
    CHECKPOINTS,
    DIVERGED,
    FAILED,
    MODEL,
    ROUNDS,
    Manifest,
    different,
    identify,
    read_manifest,
    run_path,
)
from fedapp.rounds_file import Record, read_rounds

log = logging.getLogger("flwr")

# Where a run computes, is kept and is shown; replicates may differ in it.
COMPUTES_NOTHING = frozenset({
    "run-name", "results-dir", "state-dir", "resume", "checkpoint-every", "tensorboard", "tracker", "device", "compile", "node-timeout",
    "require-all-clients", "node-partitions",
})  # fmt: skip
# What may change when a run continues: how long and where it runs, and which updates it waits for.
MAY_CHANGE = COMPUTES_NOTHING | {
    "num-rounds", "target-accuracy", "eval-every", "eval-train", "eval-clients", "eval-finetune", "data-dir", "on-lost-state", "round-timeout",
    "min-clients", "dp.max-epsilon", "max-update-ratio",
    "options",  # the keys that it carries are compared themselves
}  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """What is there of a run."""

    rounds: list[Record]
    ended: bool  # these are all the rounds that the config asks for
    damage: list[str]  # a sentence for each file that is missing or not as it was written

    @property
    def complete(self) -> bool:
        """Whether all rounds and the model are there, as they were written."""
        return self.ended and not self.damage


def progress_of(directory: Path, manifest: Manifest, config: RunConfig) -> Progress:
    """Return how far the run in a directory is."""
    try:
        rounds = read_rounds(directory)
    except (OSError, DamagedFileError) as error:
        return Progress([], False, [str(error)])
    ended = has_ended(rounds, config.num_rounds, config.target_accuracy)
    damage = model_damage(directory, manifest) if ended else ""
    return Progress(rounds, ended, [damage] if damage else [])


def has_ended(rounds: Sequence[Record], num_rounds: int, target_accuracy: float) -> bool:
    """Tell whether these are all the rounds: as many as asked for, or the last one reached the target."""
    reached = accuracy_of(rounds[-1]) if rounds else 0.0
    return len(rounds) >= num_rounds or 0 < target_accuracy <= reached


def model_damage(directory: Path, manifest: Manifest) -> str:
    """Say why a run's model cannot be used; an empty string if it is there as it was written."""
    try:
        model = load_arrays(directory / MODEL, {}, old=True)[0]
    except DamagedFileError as error:
        return str(error)
    if manifest.checked and arrays_digest(model, {}) != manifest.model:
        return f"{directory / MODEL} is not what this run wrote."
    return ""


def diverged_since(directory: Path, manifest: Manifest) -> int | None:
    """Return the round whose updates made a run diverge, 0 if that is not known; None if it did not.

    A note of another run does not count. A damaged one is a DamagedFileError: without it the run would continue from
    what made it diverge.
    """
    path = directory / DIVERGED
    if not path.exists():
        return None
    old = not manifest.checked or manifest.old_until > 0  # that version noted a sentence only
    try:
        note = unseal(path)
        if not note or not {"since", "run"} <= note.keys():
            raise DamagedFileError(f"{path} has changed since it was written.")
        return int(note["since"]) if note["run"] == manifest.identity else None
    except DamagedFileError as damage:
        if old:
            return 0
        raise DamagedFileError(
            f"{damage} It says since when the run diverged: restore it from a backup, or remove it to continue from the "
            "newest checkpoint."
        ) from None


def failure_of(directory: Path) -> str:
    """Return the error that ended the run in a directory; an empty string if none did. A note of another run does not count."""
    path = directory / FAILED
    if not path.exists():
        return ""
    try:
        note = unseal(path)
        if note and note["run"] == read_manifest(directory).identity:
            return str(note["message"])
    except (OSError, ConfigError, KeyError, ValueError):
        pass
    return ""


def skip_reason(config: RunConfig) -> str:
    """Say why a named run need not be run: it is complete, or it diverged; an empty string if it must be.

    A directory that holds another run is a ConfigError.
    """
    directory = run_path(config)
    manifest = identify(directory) if directory.exists() else None
    if not manifest:
        return ""
    if different(manifest.full_config, config, {"resume"}):
        raise ConfigError(
            f"{directory} holds a run with another config: choose another --out, or remove it."
        )
    progress = progress_of(directory, manifest, config)
    if progress.complete:
        return "is complete already"
    if diverged_since(directory, manifest) is not None:
        return f"diverged after {len(progress.rounds)} rounds, and would again"
    return ""


def check_continuation(path: Path, config: RunConfig, found: Manifest) -> None:
    """Refuse to continue a run with another config, or without what is needed to continue it."""
    before = found.full_config
    fixed = {"num-rounds"} if config.lr_schedule == "inverse-sqrt" else set()
    if key := different(before, config, MAY_CHANGE - fixed):
        raise ConfigError(
            f"The run in {path} cannot go on with another {key}: set it to "
            f"{before.get(key)!r}, or start a new run."
        )
    _check_divergence(path, found)
    if before.get("checkpoint-every") or checkpoint_paths(path / CHECKPOINTS):
        return
    try:
        rounds = read_rounds(path)
    except FileNotFoundError:
        rounds = []
    ended = has_ended(rounds, config.num_rounds, config.target_accuracy)
    lost = [ROUNDS] if len(rounds) < found.rounds else []
    if ended and (damage := model_damage(path, found)):
        log.warning("%s", damage)
        lost.append(MODEL)
    if lost:
        raise DamagedFileError(
            f"{path / lost[0]} is damaged and the run has no checkpoint: restore the file from a backup, or "
            "remove the directory and start again."
        )
    if rounds and not ended:
        raise ConfigError(
            f"The run in {path} was made without checkpoints and cannot go on: remove it, or choose "
            "another run-name."
        )


def _check_divergence(path: Path, found: Manifest) -> None:
    """Refuse to continue a diverged run that has no checkpoint from before it began to diverge.

    If the round is not known, the newest checkpoint is suspect.
    """
    since = diverged_since(path, found)
    rounds = [checkpoint_round(checkpoint) for checkpoint in checkpoint_paths(path / CHECKPOINTS)]
    if since is None or not rounds or min(rounds) < (since or max(rounds)):
        return
    begun = (
        f"diverged from round {since} on, and all its checkpoints are from then or later"
        if since
        else "diverged, and its only checkpoint may be from after that began"
    )
    raise ConfigError(
        f"The run in {path} {begun}: start a new run under another run-name, or remove that directory and start again; "
        "set max-update-ratio, or a lower lr."
    )


def last_record(config: RunConfig) -> Record:
    """Return the last round of a named run; empty if there is none."""
    try:
        rounds = read_rounds(run_path(config))
    except (OSError, ConfigError):
        rounds = []
    return rounds[-1] if rounds else {}
