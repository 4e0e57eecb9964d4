"""The table of docs/theory.md is what the shipped presets give, for all theorems that are played."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedapp.report.commands import PRESETS
from fedapp.theory import THEOREMS
from fedapp.theory.check import markdown, play
from fedapp.theory.outcome import Finding

TABLE = Path(__file__).parents[2] / "docs" / "theory.md"
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
ROUNDING = 1e-9  # measured values below it are zeros, but for rounding
BRIEF = {
    "fedcet-32",
    "fedcet-44",
    "gradma-lemmas",
    "fedcom-d8",
    "fedcom-d9",
    "fedcomgate-e6",
}  # a second
PLAYED = [
    pytest.param(name, marks=() if name in BRIEF else pytest.mark.slow)
    for name, theorem in THEOREMS.items()
    if theorem.play
]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def printed(name: str, text: str) -> dict[str, list[str]]:
    """Return the rows of a theorem by their first cells."""
    rows = [cells(line) for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row for row in rows if row[0].startswith(f"{THEOREMS[name].title}: ")}


def alike(shown: str, found: str) -> bool:
    """Tell whether two cells say the same: words exactly, numbers to two digits, the last rounded either way."""
    said, now = (np.array(NUMBER.findall(text), float) for text in (shown, found))
    if NUMBER.sub("#", shown) != NUMBER.sub("#", found) or len(said) != len(now):
        return False
    second_digit = 10 ** np.floor(np.log10(np.maximum(np.abs(said), ROUNDING)) - 1)
    allowed = np.maximum(0.06 * np.abs(now), 1.01 * second_digit) + ROUNDING
    return bool(np.all(np.abs(said - now) <= allowed))


@pytest.mark.parametrize("name", PLAYED)
def test_the_table_shows_what_the_presets_give(name: str, tmp_path: Path) -> None:
    findings = play(name, PRESETS, tmp_path).findings
    found = printed(name, markdown([(THEOREMS[name].title, finding) for finding in findings]))
    shown = printed(name, TABLE.read_text())
    assert list(shown) == list(found)
    for claim, row in shown.items():
        assert row[2] == found[claim][2], claim
        assert alike(row[3], found[claim][3]), (claim, row[3], found[claim][3])
        assert row[4] == found[claim][4] == "yes"


@pytest.mark.parametrize(
    ("shown", "found", "same"),
    [
        ("0.43 to 0.49", "0.43 to 0.49", True),
        ("0.43 to 0.49", "0.44 to 0.49", True),
        ("0.43 to 0.49", "0.43 to 0.55", False),
        ("0.43 to 0.49", "0.43", False),
        ("0.13", "0.12", True),  # 0.125, rounded either way
        ("0.13", "0.11", False),
        ("1e-13", "4e-12", True),
        ("1e-13", "1e-3", False),
        ("7.9e-07 to 5.6e-05", "7.9e-06 to 5.6e-05", False),
    ],
)
def test_cells_that_differ_are_noticed(shown: str, found: str, same: bool) -> None:
    assert alike(shown, found) == same


def test_rows_are_found_by_their_theorem() -> None:
    finding = Finding("mean |x|", "at most 1", "0.5", True)
    text = markdown([(THEOREMS["fedcet-32"].title, finding)])
    assert list(printed("fedcet-32", text)) == [r"FedCET, theorem 1: mean \|x\|"]
    assert not printed("fedcet-44", text)
