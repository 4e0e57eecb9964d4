"""The file in which a node counts releases: damaged, on a full disk, and between processes."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedapp.errors import ConfigError
from fedapp.privacy import budget
from fedapp.privacy.budget import LEDGER, LEDGER_ID, Limits, NodeLedger
from tests.support.hostile_server import Hostile, counted


@pytest.mark.parametrize("damage", ["empty", "cut", "digit", "binary", "list", "directory", "lock"])
def test_a_damaged_ledger_is_never_a_new_one(damage: str, tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()
    path = tmp_path / LEDGER
    text = path.read_text()
    if damage == "directory":
        path.unlink()
        path.mkdir()
    elif damage == "lock":
        path.with_suffix(".lock").unlink(missing_ok=True)
        path.with_suffix(".lock").mkdir()
    else:
        spoilt = {
            "empty": b"",
            "cut": text[:-9].encode(),
            "digit": text.replace("[4.0, 1]", "[4.0, 0]").encode(),
            "binary": b"\xff\xfe" + text.encode(),
            "list": b"[]",
        }[damage]
        assert spoilt != text.encode()
        path.write_bytes(spoilt)
    for _ in range(2):
        said = str(server.update())
        assert re.search(r"privacy-ledger\.json (is damaged|cannot be read or written)", said)
        assert "\n" not in said


def test_another_node_s_ledger_is_not_this_node_s(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    spent, fresh = (Hostile(state_dir=str(place), dp_max_releases=2) for place in places)
    spent.update()
    spent.update()
    fresh.update()
    assert "its privacy budget is spent" in str(spent.update())
    own, other = ((place / LEDGER).read_text() for place in places)
    (places[0] / LEDGER).write_text(other)
    for _ in range(2):
        said = str(spent.update())
        assert "is not the ledger that privacy-ledger-id.json names" in said
        assert "\n" not in said and str(tmp_path) not in said
    (places[0] / LEDGER).write_text(OLD)  # nor is one from before ledgers had an identity
    assert "is not the ledger that" in str(spent.update())
    (places[0] / LEDGER).unlink()
    assert "privacy-ledger.json is missing" in str(spent.update())
    (places[0] / LEDGER).write_text(own)
    assert "its privacy budget is spent" in str(spent.update())
    (places[0] / LEDGER_ID).write_text((places[1] / LEDGER_ID).read_text())
    assert "is not the ledger that" in str(spent.update())
    assert counted(places[0]) == {"0": 2}


@pytest.mark.parametrize("damage", ["empty", "cut", "digit", "list", "directory"])
def test_a_damaged_identity_lets_nothing_out(damage: str, tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()
    path = tmp_path / LEDGER_ID
    text = path.read_text()
    digit = text.replace("1", "2") if "1" in text else text.replace("3", "4")
    path.unlink()
    if damage == "directory":
        path.mkdir()
    else:
        path.write_text({"empty": "", "cut": text[:-9], "digit": digit, "list": "[]"}[damage])
    assert "privacy-ledger-id.json is damaged" in str(server.update())
    assert counted(tmp_path) == {"0": 1}


def test_a_crash_before_the_identity_was_written_loses_no_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()
    (tmp_path / LEDGER_ID).unlink()
    server.update()
    assert "Taking over a ledger" in caplog.text
    assert (tmp_path / LEDGER_ID).is_file()
    server.update()
    assert counted(tmp_path) == {"0": 3}
    assert caplog.text.count("Taking over a ledger") == 1


# Of clients 0 and 1, which released twice and once, as versions wrote it whose divisions had other names.
OLD = (
    '{"format": 1, "digest": "7e83b0982cf1902c", "releases": {"0123456789abcdef": {"0": [[4.0, 2]], "1": [[4.0, 1]]}}}'
    "\n"
)


def test_what_an_older_version_counted_stays_counted(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text(OLD)
    server = Hostile(state_dir=str(tmp_path), dp_max_releases=4)
    for client in (0, 3):  # any of the three releases may have been of its samples
        assert f"client.{client}" in server.ask(client)
        assert f"client.{client}" not in server.ask(client)
    assert counted(tmp_path) == {"0": 3, "1": 1, "3": 1}
    assert (tmp_path / LEDGER_ID).is_file()


def test_a_new_ledger_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()
    server.update()
    assert caplog.text.count("Starting a new ledger") == 1


def test_a_full_disk_lets_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in str(server.update())
    monkeypatch.undo()
    server.update()
    assert counted(tmp_path) == {"0": 2}


CHARGE = """
import sys
from pathlib import Path
from fedapp.privacy.budget import Limits, NodeLedger
ledger = NodeLedger(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    limit, times = map(int, line.split())
    limits = Limits.model_validate({"dp-max-releases": limit})
    for _ in range(times):
        print("refused" if ledger.charge("division", [0], 4.0, limits) else "released", flush=True)
"""


@pytest.mark.slow
def test_processes_lose_no_count_when_two_write_and_when_one_is_killed(tmp_path: Path) -> None:
    arguments, pipe = [sys.executable, "-c", CHARGE, str(tmp_path)], subprocess.PIPE
    processes = [subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]

    def tell(process: subprocess.Popen[str], limit: int, times: int) -> None:
        assert process.stdin
        process.stdin.write(f"{limit} {times}\n")
        process.stdin.flush()

    def lines(process: subprocess.Popen[str], count: int) -> list[str]:
        assert process.stdout
        return [process.stdout.readline().strip() for _ in range(count)]

    try:
        assert [lines(process, 1) for process in processes] == [["ready"]] * 2
        for process in processes:
            tell(process, 60, 40)
        said = Counter(line for process in processes for line in lines(process, 40))
        assert said == {"released": 60, "refused": 20}
        assert counted(tmp_path) == {"0": 60}
        tell(processes[0], 10**9, 10**9)
        lines(processes[0], 20)
        processes[0].send_signal(signal.SIGKILL)
        assert processes[0].stdout
        released = 20 + processes[0].stdout.read().count("released\n")
        assert 60 + released <= counted(tmp_path)["0"] <= 61 + released
        before = counted(tmp_path)["0"]
        tell(processes[1], 10**9, 1)
        assert lines(processes[1], 1) == ["released"]
        assert counted(tmp_path) == {"0": before + 1}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_lock_that_is_held_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr(budget, "WAIT", 0.1)
    with FileLock((tmp_path / LEDGER).with_suffix(".lock")), pytest.raises(ConfigError) as told:
        NodeLedger(tmp_path).charge("division", [0], 4.0, Limits())
    assert "held by another process" in str(told.value)
