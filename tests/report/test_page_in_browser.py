"""The HTML report in a browser.

Long, because all its tests share one browser and the functions that read the page.
"""

import csv
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from PIL import Image

from fedapp.manifest import LOCK
from fedapp.report import serve
from fedapp.report.colours import COLOURS, DASHES
from fedapp.report.page import write_report
from fedapp.report.runs import Run, load_runs, reach
from fedapp.report.script import bundle
from fedapp.report.serve import make_server
from tests.conftest import PATIENCE
from tests.support.reports import HOSTILE, ROUNDS, write_run, write_three

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

MISSING = "\N{EN DASH}"


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the browser: they share it, one after the other."""
    marked: Callable[..., None] = pytest.mark.slow(pytest.mark.xdist_group("browser")(test))
    return marked


Show = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium to open the report with")
    quiet = [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ]  # fmt: skip
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=chromium, args=quiet, timeout=1000 * PATIENCE
        )
        yield launched
        launched.close()


@pytest.fixture
def show(browser: "Browser", tmp_path: Path) -> Iterator[Show]:
    """Return a function that opens the report of some runs; no page may complain or ask for more."""
    complaints: list[str] = []
    asked: list[str] = []
    path = tmp_path / "report.html"
    contexts = []

    def opened(
        runs: Sequence[Run], width: int = 1280, dark: bool = False, before: str = "", **how: Any
    ) -> "Page":
        write_report(runs, path, **how)
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        context.add_init_script(before)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    outside = {url.partition("#")[0] for url in asked if not url.startswith(("data:", "blob:"))}
    assert outside == {path.as_uri()}


def row(page: "Page", name: str) -> "Locator":
    return page.locator(f"#runs tbody tr[data-name='{name}']")


def cell(page: "Page", name: str, column: str) -> str:
    return row(page, name).locator(f"[data-column={column}]").inner_text()


def number(text: str) -> float:
    return float(text.replace(",", ""))


def names(page: "Page") -> list[str]:
    rows = page.locator("#runs tbody tr:visible").all()
    return [row.get_attribute("data-name") or "" for row in rows]


def geometry(page: "Page") -> dict[str, list[tuple[float, float]]]:
    """Return the corners of every curve, on the page."""
    return {
        path.get_attribute("data-name") or "": [
            (float(x), float(y))
            for x, y in re.findall(r"([\d.]+),([\d.]+)", path.get_attribute("d") or "")
        ]
        for path in page.locator("#plot path.curve").all()
    }


def choose_axis(page: "Page", name: str) -> None:
    page.get_by_role("radio", name=name).check(force=True)  # its text lies over it


@in_browser
def test_the_script_leaves_no_globals(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    names = re.findall(r"^(?:const|let|class|function) (\w+)", bundle(), re.MULTILINE)
    assert "start" in names
    assert [name for name in names if page.evaluate(f"typeof {name}") != "undefined"] == []


@in_browser
def test_the_header_says_what_this_is(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"), title="Three & <more>")
    assert page.title() == "Three & <more>"
    assert page.locator("h1").inner_text() == "Three & <more>"
    assert re.match(
        r"3 runs · written \d{4}-\d\d-\d\d \d\d:\d\d · fedapp ",
        page.locator("header p").inner_text(),
    )


@in_browser
def test_the_x_axis_can_be_switched(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    label = page.locator("#x-label")
    assert label.inner_html() == "communication rounds"
    by_rounds = geometry(page)
    assert by_rounds["fedavg"][-1][0] == by_rounds["scaffold"][-1][0]
    seen = [by_rounds]
    for name, said, tick in [
        ("Uplink", "uplink bytes, all clients", r"[\d.]+ GB"),
        ("Up + down", "total bytes, all clients", r"[\d.]+ GB"),
        ("Simulated time", "simulated time", r"\d+ min"),
        ("Wall time", "wall time", r"\d+ s"),
    ]:
        choose_axis(page, name)
        assert label.inner_html() == said
        assert re.fullmatch(tick, page.locator("#plot .x-tick").last.inner_html())
        assert geometry(page) not in seen
        seen.append(geometry(page))
    begin, ends = by_rounds["fedavg"][0][1], {n: points[-1][0] for n, points in seen[1].items()}
    assert seen[1]["fedavg"][0][1] == begin  # heights stay
    left = min(float(x) for x in page.locator("#plot line.grid").evaluate_all(
        "lines => lines.map(line => line.getAttribute('x1'))"
    ))  # fmt: skip
    # Rounds cost 5 and 50 MB: the first ends after a tenth of the second's way.
    assert ends["fedavg"] - left == pytest.approx((ends["scaffold"] - left) / 10, abs=0.2)


@in_browser
def test_log_scales(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    page.get_by_label("Metric", exact=True).select_option("train_loss")
    page.get_by_label("log y").set_checked(True)
    assert page.locator("#y-label").inner_html() == "train loss, log scale"
    heights = [y for _, y in geometry(page)["fedavg"]]
    falls = [b - a for a, b in pairwise(heights)]
    assert falls == pytest.approx([falls[0]] * len(falls), abs=0.2)  # exp(-k) is a straight line
    page.get_by_label("log x").check()
    steps = [x for x, _ in geometry(page)["fedavg"]]
    assert steps[3] - steps[1] == pytest.approx(steps[7] - steps[3], abs=0.3)  # rounds 2, 4, 8


@in_browser
def test_a_checkbox_hides_its_curve(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    assert set(geometry(page)) == {"fedavg", "fedpaq", "scaffold"}
    page.get_by_role("checkbox", name="FedPAQ").uncheck()
    assert set(geometry(page)) == {"fedavg", "scaffold"}
    assert page.locator("#count").inner_text() == "2 of 3 shown"
    page.get_by_role("checkbox", name="FedPAQ").press("Space")
    assert set(geometry(page)) == {"fedavg", "fedpaq", "scaffold"}


@in_browser
def test_swatches_are_the_curves_colours(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    stroke = "element => getComputedStyle(element).stroke"
    colours = {}
    for name in ("fedavg", "fedpaq", "scaffold"):
        colours[name] = row(page, name).locator(".swatch line").evaluate(stroke)
        assert page.locator(f"path.curve[data-name={name}]").evaluate(stroke) == colours[name]
    assert len(set(colours.values())) == 3


@in_browser
def test_the_table_sorts_numbers_both_ways_with_missing_ones_last(
    show: Show, tmp_path: Path
) -> None:
    runs = write_three(tmp_path / "runs")
    write_run(tmp_path / "runs", "new", {})
    page = show(load_runs([tmp_path / "runs"]), target=0.7)
    assert len(runs) == 3
    head = page.locator("#runs th[data-column=uplink]")
    assert head.get_attribute("aria-sort") is None
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(page) == ["fedpaq", "fedavg", "scaffold", "new"]
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert names(page) == ["scaffold", "fedavg", "fedpaq", "new"]
    page.locator("#runs th[data-column=target-uplink] button").click()  # scaffold stays below 0.7
    assert names(page)[:2] == ["fedavg", "fedpaq"]
    assert head.get_attribute("aria-sort") is None
    page.locator("#runs th[data-column=name] button").click()
    assert names(page) == ["fedavg", "new", "fedpaq", "scaffold"]


@in_browser
def test_the_table_says_what_a_run_found_and_spent(show: Show, tmp_path: Path) -> None:
    run = write_three(tmp_path / "runs")[1]
    page = show([run])
    assert cell(page, "fedpaq", "algorithm") == "FedPAQ"
    assert cell(page, "fedpaq", "dataset") == "digits"
    assert number(cell(page, "fedpaq", "best")) == pytest.approx(run.best(), abs=1e-4)
    assert number(cell(page, "fedpaq", "rounds")) == ROUNDS
    assert number(cell(page, "fedpaq", "uplink")) == 4.5 * ROUNDS
    assert number(cell(page, "fedpaq", "downlink")) == 2 * ROUNDS
    assert number(cell(page, "fedpaq", "total")) == 6.5 * ROUNDS
    minutes = sum(300 + k for k in range(ROUNDS)) / 60
    assert page.locator("#runs th[data-column=simulated] small").inner_text() == "min"
    assert number(cell(page, "fedpaq", "simulated")) == pytest.approx(minutes, rel=1e-3)
    seconds = sum(0.5 + 0.01 * k for k in range(ROUNDS))
    assert number(cell(page, "fedpaq", "wall")) == pytest.approx(seconds, rel=1e-2)


def check_target(page: "Page", runs: Sequence[Run], target: float) -> None:
    for run in runs:
        reached = reach(run, target)
        cells = [
            cell(page, run.name, f"target-{k}") for k in ("rounds", "uplink", "total", "simulated")
        ]
        if reached is None:
            assert cells == ["never", MISSING, MISSING, MISSING]
        else:
            sent = reached.uplink_bytes / 1e6, reached.total_bytes / 1e6
            expected = [reached.rounds, *sent, reached.seconds / 60]
            assert [number(text) for text in cells] == pytest.approx(expected, rel=6e-3)


@in_browser
def test_the_target_can_be_moved(show: Show, tmp_path: Path) -> None:
    runs = write_three(tmp_path / "runs")
    page = show(runs, target=0.75)
    check_target(page, runs, 0.75)
    lines = [page.locator("#plot .target-line").get_attribute("y1")]
    page.get_by_label("Target as a number").fill("0.55")
    check_target(page, runs, 0.55)
    assert page.get_by_label("Target", exact=True).input_value() == "550"
    lines.append(page.locator("#plot .target-line").get_attribute("y1"))
    page.get_by_label("Target", exact=True).fill("820")
    check_target(page, runs, 0.82)
    assert page.get_by_label("Target as a number").input_value() == "0.82"
    lines.append(page.locator("#plot .target-line").get_attribute("y1"))
    heights = [float(line or "nan") for line in lines]
    assert heights[2] < heights[0] < heights[1]  # up the page is up the scale
    page.get_by_label("Metric", exact=True).select_option("train_loss")
    assert page.locator("#plot .target-line").count() == 0


@in_browser
def test_problems_without_accuracy_are_judged_by_the_figure_that_is_drawn(
    show: Show, tmp_path: Path
) -> None:
    falling = [10.0 ** (-k / 4) for k in range(ROUNDS)]
    slow = [10.0 ** (-k / 8) for k in range(ROUNDS)]
    for name, gap in (("fast", falling), ("slow", slow)):
        figures = {"train_loss": gap, "gap": gap, "distance": [3 * value for value in gap]}
        write_run(tmp_path / "runs", name, figures, dataset="quadratic", lr=0.1 + (name == "slow"))
    page = show(load_runs([tmp_path / "runs"]))
    assert page.locator("#y-label").inner_html() == "gap, log scale"
    assert names(page) == ["fast", "slow"]  # the smallest is the best
    assert number(cell(page, "slow", "best")) == pytest.approx(min(slow), rel=1e-3)
    page.get_by_label("Target as a number").fill("0.05")
    for name, gap in (("fast", falling), ("slow", slow)):
        expected = next(k + 1 for k, value in enumerate(gap) if value <= 0.05)
        assert number(cell(page, name, "target-rounds")) == expected
    page.get_by_label("Metric", exact=True).select_option("distance")
    assert number(cell(page, "slow", "best")) == pytest.approx(3 * min(slow), rel=1e-3)


@in_browser
def test_only_the_keys_in_which_shown_runs_differ_are_compared(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    heads = page.locator("#config thead th")
    assert heads.all_inner_texts() == ["run", "algorithm", "lr"]
    assert page.locator("#config tbody tr").nth(2).locator("th, td").all_inner_texts() == [
        "SCAFFOLD", "SCAFFOLD", "0.25",
    ]  # fmt: skip
    common = page.locator("#common dt")
    assert not common.first.is_visible()
    page.locator("#common summary").click()
    assert common.first.is_visible()
    assert "eval-every" in common.all_inner_texts()
    assert not {"lr", "algorithm"} & set(common.all_inner_texts())
    page.get_by_role("checkbox", name="SCAFFOLD").uncheck()
    assert heads.all_inner_texts() == ["run", "algorithm"]
    assert "lr" in common.all_inner_texts()


BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"


@in_browser
def test_the_button_switches_to_dark_and_keeps_it(show: Show, tmp_path: Path) -> None:
    runs = write_three(tmp_path / "runs")
    page = show(runs)
    assert page.evaluate(BACKGROUND) == LIGHT
    page.get_by_role("button", name="Switch to dark colours").click()
    assert page.evaluate(BACKGROUND) == DARK
    # A reload would now and then come before the browser has stored it, so each half by itself.
    assert page.evaluate("localStorage.getItem('fedapp-theme')") == "dark"
    kept = show(runs, before="localStorage.setItem('fedapp-theme', 'dark')")
    assert kept.evaluate(BACKGROUND) == DARK


@in_browser
def test_the_page_follows_the_readers_system(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"), dark=True)
    assert page.evaluate(BACKGROUND) == DARK
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate(BACKGROUND) == LIGHT


@in_browser
def test_a_browser_that_stores_nothing_can_switch_too(show: Show, tmp_path: Path) -> None:
    refuse = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no') }})"
    page = show(write_three(tmp_path / "runs"), before=refuse)
    page.get_by_role("button", name="Switch to dark colours").click()
    assert page.evaluate(BACKGROUND) == DARK


@in_browser
def test_hostile_text_is_shown_and_nothing_of_it_runs(show: Show) -> None:
    rounds = [{"round": k, "test_accuracy": 0.1 * k, HOSTILE: 0.5 * k} for k in (1, 2)]
    runs = [Run(name, {"model": name}, rounds) for name in (HOSTILE, "other")]
    page = show(runs, title=HOSTILE)
    assert HOSTILE in names(page)
    assert page.locator("h1").inner_text() == HOSTILE
    assert HOSTILE in page.locator("#config td").all_inner_texts()
    page.get_by_label("Metric", exact=True).select_option(HOSTILE)
    assert page.locator("#y-label").inner_html().startswith("&lt;/script&gt;&lt;img")
    page.locator("#plot").hover()
    assert page.locator("#tip strong").inner_text() in (HOSTILE, "other")
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def write_seeds(parent: Path) -> list[Run]:
    for seed, top in enumerate((0.5, 0.7)):
        figures = {"test_accuracy": [top / 2, top]}
        write_run(parent, f"fedavg-seed-{seed}", figures, seed=seed)
    write_run(
        parent, "fedpaq-seed-0", {"test_accuracy": [0.2, 0.3]}, algorithm="fedpaq", seed=0
    )  # fmt: skip
    return load_runs([parent])


@in_browser
def test_seeds_are_averaged_into_a_curve_with_a_band(show: Show, tmp_path: Path) -> None:
    page = show(write_seeds(tmp_path / "runs"), target=0.6)
    assert set(geometry(page)) == {"fedavg", "fedpaq"}
    assert page.locator("#plot path.band").count() == 1
    assert cell(page, "fedavg", "name") == "FedAvg (2 runs)"
    assert cell(page, "fedavg", "best").split() == ["0.6000", "±", "0.1414"]
    assert cell(page, "fedavg", "target-rounds") == "1 of 2 did"
    first, second = (y for _, y in geometry(page)["fedavg"])  # 0.3 and 0.6, the means
    assert first == pytest.approx(geometry(page)["fedpaq"][1][1], abs=0.2)
    outline = page.locator("#plot path.band").get_attribute("d") or ""
    heights = [float(y) for y in re.findall(r",([\d.]+)", outline)]
    deviation = 0.1414 * (first - second) / 0.3
    assert heights[1:3] == pytest.approx([second - deviation, second + deviation], abs=0.3)
    page.get_by_label("average over seeds").uncheck()
    assert set(geometry(page)) == {"fedavg-seed-0", "fedavg-seed-1", "fedpaq-seed-0"}
    assert page.locator("#plot path.band").count() == 0


@in_browser
def test_what_is_no_complete_replicate_has_a_badge(show: Show, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "avg-seed-0", {"test_accuracy": [0.2, 0.4]}, seed=0)
    write_run(tmp_path / "runs", "avg-seed-1", {"test_accuracy": [0.4, 0.6]}, seed=1)
    write_run(tmp_path / "runs", "avg-seed-1-again", {"test_accuracy": [0.4, 0.6]}, seed=1)
    write_run(tmp_path / "runs", "avg-seed-2", {"test_accuracy": [0.9]}, seed=2, num_rounds=2)
    page = show(load_runs([tmp_path / "runs"]))
    rows = page.locator("#runs tbody th").all_inner_texts()
    assert sorted(rows) == [
        "FedAvg (2 runs) 2 of 3 seeds complete",
        "FedAvg, seed = 1 same config and seed as avg-seed-1",
        "FedAvg, seed = 2 interrupted after 1 of 2 rounds",
    ]
    assert page.locator(".badge").count() == 3
    assert number(cell(page, "avg", "best").split()[0]) == 0.5
    page.get_by_label("average over seeds").uncheck()
    assert sorted(page.locator("#runs tbody th").all_inner_texts()) == [
        "FedAvg, seed = 0",
        "FedAvg, seed = 1",
        "FedAvg, seed = 1, again same config and seed as avg-seed-1",
        "FedAvg, seed = 2 interrupted after 1 of 2 rounds",
    ]
    page.get_by_label("Filter").fill("interrupted")
    assert names(page) == ["avg-seed-2"]


@in_browser
def test_hovering_names_the_nearest_run_and_its_values(show: Show, tmp_path: Path) -> None:
    page = show(write_seeds(tmp_path / "runs"))
    tip = page.locator("#tip")
    assert not tip.is_visible()
    x, y = geometry(page)["fedavg"][-1]
    page.locator("#plot").hover(position={"x": x - 3, "y": y + 5})
    assert tip.inner_text().splitlines() == [
        "FedAvg", "test accuracy 0.6000 ± 0.1414", "round 2",
    ]  # fmt: skip
    choose_axis(page, "Uplink")
    x, y = geometry(page)["fedpaq"][0]
    page.locator("#plot").hover(position={"x": x + 3, "y": y - 5})
    assert tip.inner_text().splitlines() == [
        "FedPAQ", "test accuracy 0.2000", "round 1 · uplink 1 MB",
    ]  # fmt: skip
    page.locator("h1").hover()
    assert not tip.is_visible()


@in_browser
def test_what_was_not_finite_is_a_gap_and_what_was_not_evaluated_is_none(
    show: Show, tmp_path: Path
) -> None:
    loss: list[float | None] = [float(k) if k % 2 == 0 else None for k in range(1, 13)]
    broken = [None if k in (5, 11) else value for k, value in enumerate(loss)]
    for name, losses, lr in (("whole", loss, 0.1), ("broken", broken, 0.2)):
        write_run(tmp_path / "runs", name, {"test_loss": losses}, eval_every=2, lr=lr)
    write_run(tmp_path / "runs", "new", {})
    write_run(tmp_path / "runs", "lost", {"test_loss": [None, None]}, lr=0.3)
    page = show(load_runs([tmp_path / "runs"]))
    pieces = {
        name: page.locator(f"path.curve[data-name={name}]").get_attribute("d") or ""
        for name in ("whole", "broken", "new", "lost")
    }
    assert {name: d.count("M") for name, d in pieces.items()} == {
        "whole": 1, "broken": 2, "new": 0, "lost": 0,
    }  # fmt: skip
    assert {name: len(points) for name, points in geometry(page).items()} == {
        "whole": 6, "broken": 4, "new": 0, "lost": 0,
    }  # fmt: skip
    assert cell(page, "new", "rounds") == "0"
    assert cell(page, "lost", "best") == cell(page, "new", "uplink") == MISSING


@in_browser
def test_nothing_to_draw(show: Show, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "new", {})
    page = show(load_runs([tmp_path / "runs"]))
    assert names(page) == ["new"]
    assert page.locator("#plot text").inner_html() == "These runs have no rounds yet."
    assert names(show([])) == []


@in_browser
def test_many_runs_can_be_filtered(show: Show, tmp_path: Path) -> None:
    for k in range(30):
        algorithm = "fedavg" if k % 2 else "fedpaq"
        figures = {"test_accuracy": [0.1, 0.3 + k / 100]}
        write_run(tmp_path / "runs", f"run-{k}", figures, algorithm=algorithm, lr=0.1 + k / 100)
    page = show(load_runs([tmp_path / "runs"]))
    assert set(geometry(page)) == {f"run-{k}" for k in range(20, 30)}  # the best ten
    page.get_by_role("button", name="All", exact=True).click()
    looks = page.locator("path.curve").evaluate_all(
        "all => all.map(path => path.style.stroke + path.style.strokeDasharray)"
    )
    assert len(looks) == len(set(looks)) == 30
    page.get_by_label("Filter").fill("FedAvg")
    assert names(page) == [f"run-{k}" for k in range(29, 0, -2)]
    assert len(geometry(page)) == 15
    page.get_by_role("button", name="None", exact=True).click()
    assert geometry(page) == {}
    page.get_by_label("Filter").fill("lr=0.1")
    assert names(page) == ["run-0"]  # not 0.1 at the beginning of another number
    assert set(geometry(page)) == {"run-0"}
    page.get_by_label("Filter").fill("")
    assert len(geometry(page)) == 15


@in_browser
def test_a_narrow_page_does_not_scroll_sideways(show: Show, tmp_path: Path) -> None:
    runs = write_three(tmp_path / "runs")
    long = Run("x" * 120, runs[0].config | {"model": "y" * 120, "lr": 0.7}, runs[0].rounds)
    page = show([*runs, long], width=400, title="z" * 80)
    page.locator("#common summary").click()
    width = "element => [element.scrollWidth, element.clientWidth]"
    for axis in ("Rounds", "Uplink", "Up + down", "Simulated time", "Wall time"):
        choose_axis(page, axis)
        assert page.locator("html").evaluate(width) == [400, 400]
    for table in ("#runs-scroll",):  # it scrolls in itself
        whole, seen = page.locator(table).evaluate(width)
        assert whole > seen
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.locator("#plot").evaluate("plot => plot.viewBox.baseVal.width") > 1000


@in_browser
def test_curves_have_their_names_at_their_ends(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    ends = {name: points[-1] for name, points in geometry(page).items()}
    for name, label in (("fedavg", "FedAvg"), ("fedpaq", "FedPAQ"), ("scaffold", "SCAFFOLD")):
        text = page.locator(f"#labels text[data-name={name}]")
        assert text.locator("title").text_content() == label
        x, y = (float(text.get_attribute(at) or "nan") for at in "xy")
        assert 0 < x - ends[name][0] < 20
        assert abs(y - ends[name][1]) < 16
    boxes = page.locator("#labels text").evaluate_all("all => all.map(t => t.getBBox().y)")
    assert min(b - a for a, b in pairwise(sorted(boxes))) > 10


@in_browser
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_sixty_labels_do_not_cover_each_other(show: Show, tmp_path: Path, width: int) -> None:
    for k in range(60):
        write_run(
            tmp_path / "runs", f"run-{k}", {"test_accuracy": [0.1, 0.5 + k / 1e3]}, lr=1 / (k + 1)
        )
    page = show(load_runs([tmp_path / "runs"]), width=width)
    page.get_by_role("button", name="All", exact=True).click()
    boxes = page.locator("#labels text").evaluate_all(
        "all => all.map(t => t.getBBox()).map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
    )
    assert (len(boxes) == 0) == (width == 360)
    for k, one in enumerate(boxes):
        assert one[2] <= width
        for other in boxes[:k]:
            assert one[3] - 3 <= other[1] or other[3] - 3 <= one[1], "lines may touch"


@in_browser
def test_dashes_are_those_of_pictures(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    dashes = page.locator("path.curve").evaluate_all("all => all.map(p => p.style.strokeDasharray)")
    lengths = [[float(n) for n in re.findall(r"[\d.]+", text)] for text in dashes]
    assert lengths == [
        pytest.approx([1.7 * n for n in pattern], abs=0.05) for pattern in DASHES[:3]
    ]


@in_browser
def test_runs_that_are_not_complete_are_marked(show: Show, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    states = ("complete", "running", "interrupted", "diverged")
    for k, state in enumerate(states):
        write_run(runs, state, {"test_accuracy": [0.1, 0.2]}, lr=0.1 + k, num_rounds=2 + (k > 0))
    (runs / "diverged" / "diverged.txt").touch()
    lock = FileLock(runs / "running" / LOCK)
    with lock:
        loaded = load_runs([runs])
    page = show(loaded)
    marks = "all => all.map(mark => mark.dataset.state)"
    found = page.locator("#plot .mark").evaluate_all(marks)
    assert sorted(found) == sorted(states[1:])
    for state in states[1:]:
        badge = row(page, state).locator(".badge")
        assert badge.inner_text().strip().startswith(state)
        assert badge.locator(".mark").get_attribute("data-state") == state


@in_browser
def test_what_is_chosen_is_in_the_address(show: Show, tmp_path: Path) -> None:
    page = show(write_seeds(tmp_path / "runs"))
    assert "#" not in page.url
    choose_axis(page, "Uplink")
    page.get_by_label("log x").check()
    page.get_by_label("average over seeds").uncheck()
    page.get_by_label("Target as a number").fill("0.55")
    page.locator("#runs th[data-column=uplink] button").click()
    page.get_by_label("Filter").fill("seed")
    row(page, "fedavg-seed-1").get_by_role("checkbox").uncheck()
    before = geometry(page), names(page)
    page.reload()
    assert (geometry(page), names(page)) == before
    assert set(before[0]) == {"fedavg-seed-0", "fedpaq-seed-0"}
    assert page.get_by_label("Target as a number").input_value() == "0.55"
    assert page.get_by_label("Filter").input_value() == "seed"
    assert page.locator("#runs th[data-column=uplink]").get_attribute("aria-sort") == "ascending"
    assert page.locator("#x-label").inner_html() == "uplink bytes, all clients, log scale"


@in_browser
def test_a_strange_address_does_no_harm(show: Show, tmp_path: Path) -> None:
    page = show(write_three(tmp_path / "runs"))
    odd = (
        "#metric=constructor&x=__proto__&target=x&sort=-&hide=nobody",
        f"#filter={HOSTILE}&x=<b>",
        "#%",
    )
    for address in odd:
        page.evaluate("hash => { location.hash = hash }", address)
        page.get_by_label("Filter").fill("")
        assert set(geometry(page)) == {"fedavg", "fedpaq", "scaffold"}
        assert page.locator("img").count() == 0


@in_browser
def test_the_table_and_the_chart_can_be_saved(show: Show, tmp_path: Path) -> None:
    runs = write_three(tmp_path / "runs")
    sly = Run("sly", runs[0].config | {"algorithm": '=HYPERLINK("x"),a'}, runs[0].rounds)
    page = show([*runs, sly], dark=True)
    page.get_by_label("Filter").fill("a")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save CSV").click()
    with Path(saved.value.path()).open(newline="") as text:
        lines = list(csv.DictReader(text))
    shown = page.locator("#runs tbody tr:visible th").all_inner_texts()
    assert [line["run"].lstrip("'") for line in lines] == shown
    labels = {"FedAvg", "FedPAQ", "SCAFFOLD", "'" + sly.config["algorithm"]}
    assert {line["run"] for line in lines} == labels
    (paq,) = (line for line in lines if line["run"] == "FedPAQ")
    assert float(paq["uplink (bytes)"]) == sum(
        runs[1].column("uplink_bytes")[k] or 0 for k in range(ROUNDS)
    )
    assert float(paq["best test_accuracy"]) == pytest.approx(runs[1].best(), rel=1e-5)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save PNG").click()
    with Image.open(saved.value.path()) as drawn:
        size = page.locator("#plot").evaluate(
            "p => [p.viewBox.baseVal.width, p.viewBox.baseVal.height]"
        )
        assert drawn.size == tuple(2 * n for n in size)
        colours = {colour for _, colour in drawn.convert("RGB").getcolors(1 << 20) or []}
        assert (20, 23, 27) in colours  # the dark paper
        assert len(colours) > 50


@in_browser
def test_the_best_numbers_are_visible_on_a_phone(show: Show, tmp_path: Path) -> None:
    page = show(write_seeds(tmp_path / "runs"), width=360)
    for name in ("fedavg", "fedpaq"):
        box = row(page, name).locator("[data-column=best]").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 344
    scroll = page.locator("#runs-scroll")
    first = row(page, "fedavg").locator("th")
    before = first.bounding_box()
    scroll.evaluate("box => { box.scrollLeft = 300 }")
    assert first.bounding_box() == before, "the names stay while numbers are scrolled"


@in_browser
def test_the_best_column_has_the_round_that_validation_data_choose(
    show: Show, tmp_path: Path
) -> None:
    tested = {"lucky": [0.9, 0.2], "steady": [0.6, 0.5]}
    for name, values in tested.items():
        figures = {"test_accuracy": values, "valid_accuracy": [0.3, 0.4]}
        write_run(tmp_path / "runs", name, figures, lr=values[0])
    page = show(load_runs([tmp_path / "runs"]))
    assert [cell(page, name, "best") for name in tested] == ["0.2000", "0.5000"]
    assert names(page) == ["steady", "lucky"]


@in_browser
def test_bands_are_stronger_on_dark_paper(show: Show, tmp_path: Path) -> None:
    runs = write_seeds(tmp_path / "runs")
    opacity = "band => Number(getComputedStyle(band).fillOpacity)"
    light, dark = (
        show(runs, dark=dark).locator("path.band").evaluate(opacity) for dark in (False, True)
    )
    assert dark > 1.5 * light


@contextmanager
def served(browser: "Browser", runs: Path, before: str = "") -> Iterator["Page"]:
    """Open the page of a server; it may not complain."""
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.add_init_script(before)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    with make_server([runs], "live", 0.9, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
            yield page
        finally:
            page.close()
            server.shutdown()
            thread.join()
    assert complaints == []


def add_round(run: Path) -> None:
    record = {"round": ROUNDS + 1, "test_accuracy": 0.99, "uplink_bytes": 7}
    with (run / "rounds.jsonl").open("a") as lines:
        lines.write(json.dumps(record) + "\n")


@in_browser
def test_a_served_page_shows_new_rounds_and_keeps_what_is_chosen(
    browser: "Browser", tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    write_three(runs)
    with served(browser, runs) as page:
        page.get_by_text("· live").wait_for()
        choose_axis(page, "Uplink")
        page.get_by_role("checkbox", name="SCAFFOLD").uncheck()
        page.get_by_label("Filter").fill("fed")
        add_round(runs / "fedpaq")
        page.locator("#runs tr[data-name=fedpaq] [data-column=best]", has_text="0.9900").wait_for()
        assert set(geometry(page)) == {"fedavg", "fedpaq"}
        assert page.locator("#x-label").inner_html() == "uplink bytes, all clients"
        assert page.evaluate("document.activeElement.id") == "filter"


@in_browser
def test_a_served_page_that_was_opened_in_the_background_is_not_left_behind(
    browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "FRESH", 0.0)
    runs = tmp_path / "runs"
    write_three(runs)
    hidden = "Object.defineProperty(document, 'hidden', { get: () => !window.isSeen })"
    with served(browser, runs, hidden) as page:
        add_round(runs / "fedpaq")
        page.evaluate("window.isSeen = true")
        page.get_by_text("· live").wait_for()
        page.locator("#runs tr[data-name=fedpaq] [data-column=best]", has_text="0.9900").wait_for()


@in_browser
@pytest.mark.parametrize("width", [1280, 1400, 1920])
def test_the_axis_of_rounds_has_several_ticks_at_any_width(
    show: Show, tmp_path: Path, width: int
) -> None:
    for rounds in (20, 40, 100, 200):
        figures = {"test_accuracy": [k / 200 for k in range(rounds)]}
        write_run(tmp_path / str(rounds), "a", figures)
        page = show(load_runs([tmp_path / str(rounds)]), width=width)
        ticks = page.locator("#plot .x-tick").all()
        assert [ticks[0].inner_html(), ticks[-1].inner_html()] == ["0", str(rounds)]
        places = [float(tick.get_attribute("x") or "nan") for tick in ticks]
        assert len(places) >= 5
        assert min(b - a for a, b in pairwise(places)) > 58


@in_browser
def test_a_target_above_the_data_is_not_written_over_the_axis_title(
    show: Show, tmp_path: Path
) -> None:
    page = show(write_three(tmp_path / "runs"), target=0.99)
    box = "text => { const b = text.getBBox(); return [b.x, b.y, b.x + b.width, b.y + b.height] }"
    mark, title = (page.locator(where).evaluate(box) for where in (".target-text", "#y-label"))
    assert mark[0] > title[2] or mark[1] > title[3]
    for name in page.locator("#labels text").all():
        assert mark[2] < name.evaluate(box)[0]


def looks(page: "Page") -> dict[str, str]:
    """Return the colour and the dashes of every curve."""
    return {
        path.get_attribute("data-name") or "": path.evaluate(
            "path => path.style.stroke + ' ' + path.style.strokeDasharray"
        )
        for path in page.locator("path.curve").all()
    }


@in_browser
@pytest.mark.parametrize("count", [20, 60])
def test_a_link_shows_the_colours_of_the_page_it_was_copied_from(
    show: Show, tmp_path: Path, count: int
) -> None:
    for k in range(count):
        figures = {"test_accuracy": [0.1, 0.3 + (37 * k % count) / 100]}
        write_run(tmp_path / "runs", f"run-{k}", figures, lr=0.1 + k / 100)
    page = show(load_runs([tmp_path / "runs"]))
    page.get_by_role("button", name="All", exact=True).click()
    everything = looks(page)
    page.get_by_role("button", name="Best 10", exact=True).click()
    best = looks(page)
    assert len(set(best.values())) == len(best) == 10
    if count < len(COLOURS) * len(DASHES):
        assert best.items() <= everything.items()
    page.reload()
    assert looks(page) == best
