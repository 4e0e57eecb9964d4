"""Documents that cannot go stale: every figure and table names what gave it, and a cheap cell of each is run again."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import emnist_digits, evidence
from benchmarks.evidence import Cell, Entry, data_of, digest_at, digest_of, load_entries, measure

DOCS = evidence.DOCS
PAGES = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
ENTRIES = load_entries()
WITH_CELLS = [entry for entry in ENTRIES if entry.cell]
ON_REAL_DATA = [entry for entry in WITH_CELLS if data_of(entry)]
ON_OTHERS = [entry for entry in WITH_CELLS if not data_of(entry)]
SHARED = (DOCS.parent.parent / "shared" / "data").resolve()


def section_of(entry: Entry) -> str:
    """Return the text under an entry's heading, up to the next heading of the same or a higher level."""
    text = (DOCS / entry.document).read_text()
    found = re.search(rf"^(#+) {re.escape(entry.section)}$", text, re.M)
    assert found, f"{entry.document} has no heading {entry.section!r}: correct docs/evidence.json"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.M)
    return rest[: following.start()] if following else rest


def test_every_picture_in_the_documents_has_an_entry() -> None:
    shown = {
        picture.removeprefix("docs/")
        for page in PAGES
        for picture in re.findall(r"!\[[^\]]*\]\(([^):]+\.(?:png|svg))\)", page.read_text())
    }
    listed = {picture for entry in ENTRIES for picture in entry.figures} | evidence.illustrations()
    assert shown - listed == set(), (
        "add them to docs/evidence.json with the command that draws them"
    )
    assert all((DOCS / picture).is_file() for picture in listed)


def test_every_table_in_the_documents_has_an_entry_or_only_describes() -> None:
    found = {f"{page.name}/{heading}" for page in PAGES for heading, _ in evidence.tables(page)}
    measured = {
        f"{Path(e.document).name}/{heading}" for e in ENTRIES for heading in (e.section, *e.also)
    }
    described = evidence.descriptions()
    pages = {name.removesuffix("/*") for name in described if name.endswith("/*")}
    open_ones = {table for table in found if table.partition("/")[0] not in pages}
    assert open_ones - measured - described == set(), (
        "add each to docs/evidence.json with the command that gives it, or to its descriptions if it measures nothing"
    )
    assert described - found - {f"{page}/*" for page in pages} == set()
    assert not measured & described


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_table_or_picture_is_as_it_was_when_it_was_stamped(entry: Entry) -> None:
    assert evidence.seals().get(entry.name) == evidence.seal_of(entry), (
        f"a table or a picture of {entry.document}, {entry.section}, was changed without its evidence: after "
        f"`{entry.command}`, `python -m benchmarks.evidence --stamp {entry.name}`; --seal if no number has changed"
    )


def test_every_entry_has_a_seal_and_every_seal_an_entry() -> None:
    """An entry that is removed is noticed, even where another one has tables under the same heading."""
    assert set(evidence.seals()) == {entry.name for entry in ENTRIES}


def test_a_change_of_any_number_or_picture_breaks_the_seal(tmp_path: Path) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == "gradma.md/digits")
    pictured = replace(entry, figures=["gradma/memory.png"])
    page, picture = tmp_path / "gradma.md", tmp_path / "gradma" / "memory.png"
    picture.parent.mkdir()
    shutil.copy(DOCS / "gradma" / "memory.png", picture)
    text = (DOCS / "gradma.md").read_text()
    page.write_text(text.replace(" | ", "  |  ") + "\nMore words.\n")
    assert evidence.seal_of(pictured, tmp_path) == evidence.seal_of(pictured)
    (rows, *_) = (rows for heading, rows in evidence.tables(page) if heading == entry.section)
    *_, number = re.findall(r"\d\.\d+", rows[-1])
    page.write_text(text.replace(number, number[:-1] + str(9 - int(number[-1]))))
    assert evidence.seal_of(entry, tmp_path) != evidence.seal_of(entry)
    page.write_text(text)
    assert evidence.seal_of(entry, tmp_path) == evidence.seal_of(entry)
    picture.write_bytes(picture.read_bytes() + b" ")
    assert evidence.seal_of(pictured, tmp_path) != evidence.seal_of(pictured)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_is_complete_and_its_sweep_file_is_unchanged(entry: Entry) -> None:
    assert entry.command
    assert entry.seeds
    assert entry.machine
    text = section_of(entry)
    assert bool(entry.cell) != bool(entry.why_no_cell)
    assert bool(entry.commit) != (entry.command == "bash .ci/run")
    assert bool(entry.digest) == bool(entry.preset)
    if entry.preset:
        assert digest_of(entry.preset) == entry.digest, (
            f"{entry.preset} has changed since {entry.document} was written: run it again, correct the document, and "
            f"`python -m benchmarks.evidence --stamp {entry.name}`"
        )
    if entry.cell and entry.cell.shown:
        assert entry.cell.shown in text
        if "e" in entry.cell.shown:
            assert f"{entry.cell.value:.0e}" == entry.cell.shown
            return
        # The document rounds it, or has the mean over several seeds.
        number = float(entry.cell.shown.split()[0])
        assert number == pytest.approx(entry.cell.value / unit(entry.cell.shown), rel=0.02)


@pytest.mark.skipif(
    b"true" in evidence.git("rev-parse", "--is-shallow-repository")
    or not evidence.git("rev-parse", "HEAD"),
    reason="needs the history",
)
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.digest], ids=lambda entry: entry.name)
def test_the_commit_of_an_entry_has_its_sweep_file(entry: Entry) -> None:
    assert digest_at(entry.commit, entry.preset) == entry.digest


def unit(shown: str) -> float:
    """Return what one of the unit is that a document writes behind a number."""
    return {"kB": 1e3, "MB": 1e6, "GB": 1e9}.get(shown.partition(" ")[2], 1.0)


@pytest.mark.parametrize("entry", ON_OTHERS, ids=lambda entry: entry.name)
def test_a_cell_of_the_document_comes_out_again(entry: Entry, tmp_path: Path) -> None:
    check(entry, measure(entry, tmp_path))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the directories of real data: those that are here, and EMNIST's digits made of FEMNIST's."""
    made = tmp_path_factory.mktemp("digits")
    emnist_digits.main(["--data-dir", str(SHARED), "--out", str(made)])
    return [SHARED, made]


@pytest.mark.slow
@pytest.mark.xdist_group("real data")  # each data set is decoded once
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")
@pytest.mark.parametrize("entry", ON_REAL_DATA, ids=lambda entry: entry.name)
def test_a_cell_on_real_data_comes_out_again(
    entry: Entry, places: list[Path], tmp_path: Path
) -> None:
    check(entry, measure(entry, tmp_path, places))


def check(entry: Entry, value: float) -> None:
    """Compare a cell with the document."""
    assert entry.cell
    assert not evidence.differs(entry.cell, value), (
        f"{entry.document}, {entry.section}: {entry.cell.take} {entry.cell.metric} is {value:.6g} now, and the document "
        f"was written with {entry.cell.value:.6g}: run `{entry.command}` again and correct it"
    )


def test_another_rule_or_another_file_is_noticed(tmp_path: Path) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == "fedcom.md/exactness")
    assert entry.cell
    changed = replace(entry, cell=replace(entry.cell, keys=entry.cell.keys | {"local-steps": 5}))
    assert evidence.differs(entry.cell, measure(changed, tmp_path))
    assert evidence.differs(Cell("", "gap", "last", 0.5, "0.5"), float("nan"))
    copy = tmp_path / "other.toml"
    copy.write_text((DOCS.parent / entry.preset).read_text().replace("lr = 0.3", "lr = 0.31"))
    assert digest_of(str(copy)) != digest_of(entry.preset)
    copy = tmp_path / Path(entry.preset).name
    copy.write_text("# a comment\n" + (DOCS.parent / entry.preset).read_text())
    assert digest_of(str(copy)) == digest_of(entry.preset)
