"""Power loss: what was not synced is gone, and a resumed run still ends with the same model.

A disk that forgets everything it was not told to keep: of a file, what it held when it was last synced; of a
directory, the entries that it had then. The power fails at every point at which a run syncs something, and what such a
disk would hold then is put in place of what is there.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.damage import KEYS, run
from fedapp import files
from fedapp.errors import ConfigError
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value


class PowerLoss(BaseException):
    """The power fails."""


class ForgetfulDisk:
    """Knows what survives a power loss below a place; the power fails at sync number `fatal`."""

    def __init__(self, place: Path, fatal: int) -> None:
        self.place, self.fatal, self.syncs = place, fatal, 0
        self.contents: dict[int, bytes] = {}  # inode -> what it held when it was synced
        self.entries: dict[int, dict[str, int]] = {}  # inode of a directory -> names -> inodes
        self.fsync = files.fsync

    def sync(self, path: Path) -> None:
        """Stand in for `fedapp.files.fsync`."""
        self.fsync(path)
        inode = path.stat().st_ino
        if path.is_dir():
            self.entries[inode] = {entry.name: entry.stat().st_ino for entry in os.scandir(path)}
        else:
            self.contents[inode] = path.read_bytes()
        self.syncs += 1
        if self.syncs == self.fatal:
            raise PowerLoss

    def lose_power(self, directory: Path | None = None) -> None:
        """Leave below a place only what is durable."""
        directory = directory or self.place
        durable = self.entries.get(directory.stat().st_ino, {})
        if directory == self.place:  # made before the run
            durable = {entry.name: entry.stat().st_ino for entry in os.scandir(directory)}
        for entry in list(os.scandir(directory)):
            path, inode = Path(entry.path), entry.stat().st_ino
            kept = durable.get(entry.name) == inode
            if entry.is_dir():
                if kept:
                    self.lose_power(path)
                else:
                    remove(path)
            elif kept:
                path.write_bytes(self.contents.get(inode, b""))
            else:
                path.unlink()


def remove(directory: Path) -> None:
    for path in directory.iterdir():
        remove(path) if path.is_dir() else path.unlink()
    directory.rmdir()


KINDS: dict[str, dict[str, Value]] = {
    "scaffold": {"algorithm": "scaffold"},
    "fedcomgate": {"algorithm": "fedcomgate", "num-clients": 12, "clients-per-round": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_survives_a_power_loss_at_any_moment(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.deliveries.IN_MEMORY", 2)
    keys = KEYS | KINDS[kind] | {"num-rounds": 7}
    whole = run(tmp_path / "whole", keys)
    fatal, resumed_after = 0, set()
    while True:
        fatal += 1
        place = tmp_path / str(fatal)
        (place / "results").mkdir(parents=True)
        (place / "states").mkdir()
        disk = ForgetfulDisk(place, fatal)
        with monkeypatch.context() as patch:
            for module in ("files", "checkpoint", "run_directory", "rounds_file", "deliveries"):
                patch.setattr(f"fedapp.{module}.fsync", disk.sync)
            try:
                run(place, keys)
                break  # there are no more places to fail at
            except PowerLoss:
                disk.lose_power()
        resumed_after.add(len(list((place / "results" / "run").glob("checkpoint/round-*"))))
        model = run(place, keys | {"resume": True})
        for name, tensor in whole.items():
            np.testing.assert_array_equal(model[name], tensor)
        rounds = read_rounds(place / "results" / "run")
        assert [record["round"] for record in rounds] == list(range(1, 8))
    assert fatal > 20
    assert {0, 1, 2} <= resumed_after


def test_without_syncing_states_a_power_loss_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk really forgets: if states were not synced, no checkpoint could be used."""
    keys = KEYS | KINDS["scaffold"]
    disk = ForgetfulDisk(tmp_path, fatal=0)
    (tmp_path / "results").mkdir()
    (tmp_path / "states").mkdir()
    with monkeypatch.context() as patch:
        for module in ("files", "run_directory", "rounds_file", "deliveries"):
            patch.setattr(f"fedapp.{module}.fsync", disk.sync)
        run(tmp_path, keys, until=6)
        disk.lose_power()
    with pytest.raises(ConfigError, match=r"No checkpoint in .* can be used"):
        run(tmp_path, keys | {"resume": True})
