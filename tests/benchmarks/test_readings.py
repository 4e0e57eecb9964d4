"""The readings of contested lines: what docs/readings.md says is what the command finds."""

from pathlib import Path

import pytest

from benchmarks import readings
from benchmarks.readings import Reading

PAGE = Path(__file__).parents[2] / "docs" / "readings.md"


@pytest.fixture(scope="module")
def rows() -> list[Reading]:
    return readings.readings()


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("\\|", "!").strip("|").split("|")]


@pytest.mark.slow
def test_no_verdict_has_changed(rows: list[Reading]) -> None:
    """Distances of what is exact are rounding errors; the others agree to a factor of three."""
    documented = [line for line in PAGE.read_text().splitlines() if line.startswith("| Fed")]
    found = list(readings.table(rows))[2:]
    assert len(documented) == len(found) == len(rows)
    for line, new, row in zip(documented, found, rows, strict=True):
        said, now = cells_of(line), cells_of(new)
        assert said[:2] + said[3:] == now[:2] + now[3:]
        if row.verdict in ("stalls", "slow"):
            assert 1 / 3 < float(said[2]) / row.distance < 3, line


@pytest.mark.slow
def test_every_line_has_one_default_and_it_is_exact(rows: list[Reading]) -> None:
    neither = [row for row in rows if row.line == "FedPAQ, section 8.1"]  # nothing uses these two
    assert [(row.ours, row.verdict) for row in neither] == [("neither: eq. 81", "exact")] * 2
    for line in {row.line for row in rows if row not in neither}:
        (default,) = [row for row in rows if row.line == line and row.ours == "default"]
        assert default.verdict == "exact"


@pytest.mark.slow
def test_the_papers_bounds_hold_at_the_step_sizes_that_they_allow(rows: list[Reading]) -> None:
    bounds = [row.why for row in rows if "of the bound" in row.why or "of its bound" in row.why]
    shares = [float(why.split(" of the bound")[0].split()[-1]) for why in bounds if "of the" in why]
    shares += [float(why.split(" of its bound")[0].split()[-1]) for why in bounds if "its" in why]
    assert len(shares) == 4
    assert all(0 < share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ([1.0, 1e-7], "exact"),
        ([1.0, 1e-3, 1e-3], "stalls"),
        ([1.0, 1e-2, 1e-5], "slow"),
        ([1.0, 2e3], "diverges"),
        ([float("inf")], "diverges"),
        ([float("nan")], "diverges"),
    ],
)
def test_a_verdict_follows_the_distances(path: list[float], verdict: str) -> None:
    assert Reading("", "", path, "").verdict == verdict
