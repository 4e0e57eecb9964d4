"""`rounds.jsonl`: what is written, what is damaged, and what a checkpoint's copy restores."""

from pathlib import Path

import pytest

from fedapp.files import DamagedFileError
from fedapp.manifest import Manifest
from fedapp.rounds_file import (
    Record,
    RoundsFile,
    add_checks,
    format_line,
    parse_line,
    read_rounds,
)
from fedapp.tables import Value

CONFIG: dict[str, Value] = {"algorithm": "fedavg", "num-rounds": 3, "seed": 0}
ROUNDS: list[Record] = [{"round": number, "test_loss": 1 / number} for number in (1, 2, 3)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return the directory of a run of three rounds."""
    Manifest("mine", CONFIG).write(tmp_path)
    file = RoundsFile(tmp_path, "mine")
    assert file.is_empty()
    for record in ROUNDS:
        file.append(record)
        assert read_rounds(tmp_path)[-1] == record  # at once
    file.close()
    return tmp_path


def test_a_line_is_of_one_run_and_whole() -> None:
    line = format_line(ROUNDS[0], "mine")
    assert parse_line(line, "mine") == ROUNDS[0]
    for changed in (line.replace("1.0", "2.0"), format_line(ROUNDS[0], "another")):
        with pytest.raises(ValueError, match="its check does not fit"):
            parse_line(changed, "mine")
        with pytest.raises(ValueError, match="its check does not fit"):
            parse_line(changed, "mine", checked=False)
    old = '{"round": 1, "test_loss": 1.0}'
    assert parse_line(old, "mine", checked=False) == ROUNDS[0]
    with pytest.raises(ValueError, match="its check does not fit"):
        parse_line(old, "mine")


@pytest.mark.parametrize("line", ["[1]", '{"round": "1"}', '{"round": true}', "{}", "null"])
def test_what_is_not_a_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not the record of a round"):
        parse_line(line, "mine", checked=False)


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    Manifest("mine", CONFIG).write(tmp_path)
    file = RoundsFile(tmp_path, "mine")
    file.append({"round": 1, "gap": float("inf"), "train_loss": float("nan"), "clients": 3})
    file.close()
    assert read_rounds(tmp_path) == [{"round": 1, "gap": None, "train_loss": None, "clients": 3}]


def test_a_line_that_was_cut_off_does_not_count(written: Path) -> None:
    path = written / "rounds.jsonl"
    path.write_text(path.read_text()[:-10])
    assert read_rounds(written) == ROUNDS[:2]


def test_a_damaged_or_missing_line_is_named(written: Path) -> None:
    path = written / "rounds.jsonl"
    first, second, third = path.read_text().splitlines(keepends=True)
    path.write_text(first + second.replace("0.5", "0.6") + third)
    with pytest.raises(DamagedFileError, match=r"Line 2 of .* \(its check does not fit\)"):
        read_rounds(written)
    path.write_text(first + third)
    with pytest.raises(DamagedFileError, match=r"Line 2 of .* \(it is of round 3\)"):
        read_rounds(written)


def test_a_copy_stands_in_for_damaged_lines_and_later_rounds_are_dropped(written: Path) -> None:
    path = written / "rounds.jsonl"
    copy = path.read_text()
    path.write_text("damaged\n" + "".join(copy.splitlines(keepends=True)[1:]))
    file = RoundsFile(written, "mine")
    with pytest.raises(DamagedFileError, match="Round 1 is missing or damaged"):
        file.rounds_until(2)
    file.rewrite(file.rounds_until(2, copy))
    assert read_rounds(written) == ROUNDS[:2]
    file.append(ROUNDS[2])
    file.close()
    assert path.read_text() == copy


def test_an_older_version_s_lines_get_checks_unless_one_is_damaged(tmp_path: Path) -> None:
    path, old = tmp_path / "rounds.jsonl", Manifest("old", CONFIG, checked=False)
    path.write_text('{"round": 1}\n{"round": 2}\n')
    add_checks(tmp_path, old)
    Manifest("old", CONFIG).write(tmp_path)
    assert read_rounds(tmp_path) == [{"round": 1}, {"round": 2}]
    path.write_text('{"round": 1}\nwhat\n')
    add_checks(tmp_path, old)
    assert path.read_text() == '{"round": 1}\nwhat\n'
