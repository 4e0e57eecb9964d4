"""Pictures for papers: fonts, sizes, units and ticks."""

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from fedapp.figures import TOTAL, find_figure
from fedapp.report.colours import COLOURS, DASHES
from fedapp.report.curves import Look, draw_curves, marked_points, std_band
from fedapp.report.grid import draw_grid
from fedapp.report.panels import Curve, Panel, draw_panels, typeset
from fedapp.report.partition import MAX_DOT, MIN_DOT, dot_areas, draw_partition
from fedapp.report.runs import Run, load_runs
from fedapp.report.similarity import draw_similarities
from fedapp.report.units import UNITS, familiar_unit
from tests.support.commands import Fedapp
from tests.support.reports import texts, write_run


def run(name: str, seed: int = 0, seconds: float = 500, **config: object) -> Run:
    rounds = [
        {"round": k, "test_accuracy": 0.3 + 0.01 * k + 0.1 * seed, "uplink_bytes": 150_000}
        | {"simulated_seconds": seconds}
        for k in range(1, 31)
    ]
    return Run(name, {"algorithm": name.partition("-")[0], "seed": seed, **config}, rounds)


def test_every_look_of_a_curve_is_another() -> None:
    looks = {
        (COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)])
        for k in range(len(COLOURS) * len(DASHES))
    }
    assert looks == set(product(COLOURS, DASHES))


@given(st.sampled_from(sorted(UNITS)), st.floats(0, 1e18))
def test_units_are_familiar(kind: str, value: float) -> None:
    unit, size = familiar_unit(kind, value)
    units = UNITS[kind]
    assert value >= size or (unit, size) == units[0]
    largest = 3 * max(b[1] / a[1] for a, b in pairwise(units))
    assert value / size < largest or (unit, size) == units[-1]


@pytest.fixture(autouse=True)
def text_as_text(command: Fedapp) -> None:
    """Keep the texts of pictures as texts."""


def test_axes_have_familiar_units_and_round_ticks(tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    draw_curves([run("fedavg")], ["bytes", "time"], "test_accuracy", picture)
    shown = texts(picture)
    assert {"uplink, all clients (MB)", "simulated time (hours)", "FedAvg"} <= set(shown)
    ticks = [float(text) for text in shown if re.fullmatch(r"[\d.]+", text)]
    assert len(ticks) >= 8
    for tick in ticks:  # one or two digits that count: 0.5, 2.5, 30
        assert len(f"{tick:g}".replace(".", "").strip("0")) <= 2
    draw_curves([run("fedavg", seconds=1e5)], ["time"], "test_accuracy", picture, Look(log_x=True))
    assert "simulated time (days)" in texts(picture)


def test_ticks_of_bytes_have_familiar_units_on_a_log_scale(tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    rounds = [{"round": k, "test_accuracy": 0.1, "uplink_bytes": 9 * 10**k} for k in range(3, 9)]
    one = Run("fedavg", {"algorithm": "fedavg"}, rounds)
    draw_curves([one], ["bytes"], "test_accuracy", picture, Look(log_x=True))
    shown = texts(picture)
    assert {"10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "uplink bytes, all clients"} <= set(shown)
    for last, among, left_out in (
        (10, {"1 MB"}, {"2 MB", "5 MB"}),
        (7, {"5 MB"}, {"2 MB"}),
        (5, {"2 MB", "5 MB"}, set()),
    ):
        up = [
            {"round": k, "test_accuracy": 0.1, "uplink_bytes": 5e5 * 2 ** (k - 1)}
            for k in range(1, last)
        ]
        draw_curves(
            [Run("fedavg", {"algorithm": "fedavg"}, up)],
            ["bytes"],
            "test_accuracy",
            picture,
            Look(log_x=True),
        )
        assert among <= set(texts(picture))
        assert not left_out & set(texts(picture))


def test_the_legend_says_what_lines_and_bands_are(tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    runs = [run(f"{name}-seed-{seed}", seed) for name in ("fedavg", "fedpaq") for seed in (0, 1, 2)]
    draw_curves(runs, ["rounds"], "test_accuracy", picture)
    assert {"FedAvg", "FedPAQ"} <= set(texts(picture))
    assert "mean ± standard deviation over 3 seeds" in texts(picture)
    draw_curves(runs[:1], ["rounds"], "test_accuracy", picture)
    assert not any("mean" in text for text in texts(picture))


def test_a_band_is_one_standard_deviation_to_each_side(tmp_path: Path) -> None:
    heights = np.array([[1.0, 1e-3], [2.0, 5.0], [4.0, np.nan]])
    mean = np.nanmean(heights, axis=0)
    low, high = std_band(mean, heights, log=False)
    expected = [np.std([1, 2, 4], ddof=1), np.std([1e-3, 5], ddof=1)]
    assert high - mean == pytest.approx(expected)
    assert mean - low == pytest.approx(expected)
    assert std_band(mean, heights, log=True)[0][1] == 1e-3  # no log scale shows what is below 0


def test_width_and_font_size_are_as_asked_for(tmp_path: Path) -> None:
    for width, font in ((3.25, 7), (7, 12)):
        picture = tmp_path / "p.png"
        draw_curves([run("fedavg")], ["rounds"], "test_accuracy", picture, Look(width=width))
        with Image.open(picture) as drawn:
            assert drawn.width == pytest.approx(200 * width, abs=1)
        text = tmp_path / "p.svg"
        look = Look(width=width, font_size=font)
        draw_curves([run("fedavg")], ["rounds"], "test_accuracy", text, look)
        assert re.search(rf"font(-size)?: {font}px", text.read_text())


def test_long_names_stay_in_the_picture(tmp_path: Path) -> None:
    long = [run(f"fedavg-{'x' * 45}-{k}", lr=k) for k in range(3)]
    picture = tmp_path / "p.png"
    draw_curves(long, ["rounds"], "test_accuracy", picture, Look(width=3.3))
    with Image.open(picture) as drawn:
        edge = drawn.convert("L").crop((0, drawn.height * 3 // 4, drawn.width, drawn.height))
        assert min(edge.crop((0, 0, 2, edge.height)).getdata()) > 250
        assert min(edge.crop((edge.width - 2, 0, edge.width, edge.height)).getdata()) > 250


def test_pdf_has_truetype_fonts(tmp_path: Path) -> None:
    picture = tmp_path / "p.pdf"
    partition = partial(draw_partition, np.ones((2, 2), dtype=np.int64), "title")
    similarity = partial(draw_similarities, np.eye(2), "title")
    curves = partial(draw_curves, [run("fedavg")], ["rounds"], "test_accuracy")
    draws: list[Callable[[Path], None]] = [partition, similarity, curves]
    for draw in draws:
        draw(picture)
        written = picture.read_bytes()
        assert b"CIDFontType2" in written
        assert b"Type3" not in written


def test_titles_are_shown_as_they_are(tmp_path: Path) -> None:
    picture, title = tmp_path / "p.svg", "from $5 to $9"
    draw_partition(np.ones((2, 2), dtype=np.int64), title, picture)
    assert title in texts(picture)
    draw_similarities(np.eye(2), title, picture)
    assert title in texts(picture)
    draw_grid([run("a", lr=0.1)], "lr", "algorithm", "test_accuracy", picture, title)
    assert title in texts(picture)


def test_what_a_round_spent_in_both_directions_can_be_drawn(tmp_path: Path) -> None:
    rounds = [{"round": k, "uplink_bytes": 2, "downlink_bytes": 3} for k in (1, 2, 3)]
    picture = tmp_path / "p.svg"
    draw_curves([Run("fedavg", {"algorithm": "fedavg"}, rounds)], ["rounds"], TOTAL, picture)
    assert find_figure(TOTAL).label in texts(picture)


def test_titles_of_panels_say_what_varies(tmp_path: Path, command: Fedapp) -> None:
    for levels, steps in ((1, 5), (4, 5), (1, 10)):
        name = f"x-s-levels-{levels}" if steps == 5 else "x-tau-10"
        write_run(
            tmp_path / "runs", name, {"test_accuracy": [0.1, 0.2]}, algorithm="fedpaq",
            **{"qsgd.levels": levels, "local_steps": steps},
        )  # fmt: skip
    picture = tmp_path / "p.svg"
    words = ["plot", tmp_path / "runs", "--panel", "s", "--panel", "tau=Local steps", "-o", picture]
    assert command(*words, "--label", "x-s-levels-2=coarse") == 2
    assert command(*words, "--label", "x-s-levels-1=coarse") == 0
    said = {"quantization levels", "Local steps", "coarse", "FedPAQ, levels = 4", "FedPAQ"}
    assert said <= set(texts(picture))
    assert command(*words, "--label", "FedPAQ, levels = 4=as the legend says") == 0
    assert "as the legend says" in texts(picture)


def test_a_panel_with_one_setting_has_its_name(tmp_path: Path, command: Fedapp) -> None:
    for name in ("fedavg", "fedprox"):
        for seed in (0, 1):
            at = f"x-{name}-seed-{seed}"
            write_run(tmp_path / "a", at, {"test_accuracy": [0.1]}, algorithm=name, seed=seed)
    write_run(tmp_path / "b", "other", {"test_accuracy": [0.1]}, algorithm="scaffold")
    picture = tmp_path / "p.svg"
    words = ["--panel", "fedavg", "--panel", "x-fedp", "--panel", "Sca", "-o", picture]
    assert command("plot", tmp_path / "a", tmp_path / "b", *words) == 0
    for name in ("FedAvg", "FedProx", "SCAFFOLD"):
        assert texts(picture).count(name) == 2, "in the title and in the legend"


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_every_dot_can_be_seen_and_more_samples_are_not_smaller(one: int, other: int) -> None:
    less, more = sorted((one, other))
    small, large = dot_areas(np.array([less, more]), more)
    assert MIN_DOT <= small <= large
    assert large == max(MAX_DOT, MIN_DOT)
    assert math.isclose(small, max(MAX_DOT * less / more, MIN_DOT))


@given(st.integers(1, 300), st.booleans(), st.floats(1, 1e6))
@example(200, False, 3.0)  # some looks have three marks evenly along the axis, others two
def test_coinciding_curves_have_markers_at_different_points(
    length: int, log: bool, longest: float
) -> None:
    at = np.arange(1.0, length + 1)
    marked = [set(marked_points(at, 1, length * longest, look, log)) for look in range(7)]
    for points in marked:
        assert points
        assert points <= set(range(length))
    if length >= 200 and not log:
        for one, other in pairwise(marked):
            assert not one & other


def test_a_run_that_cannot_be_drawn_changes_no_name_and_no_colour(
    tmp_path: Path, command: Fedapp
) -> None:
    write_run(tmp_path / "runs", "lr-1e9", {}, lr=1e9, num_rounds=1)
    write_run(tmp_path / "runs", "lr-0.1", {"test_accuracy": [0.1, 0.2]}, lr=0.1)
    picture = tmp_path / "p.svg"
    assert command("plot", tmp_path / "runs", "-o", picture) == 0
    assert "FedAvg, lr = 0.1" in texts(picture), "as in the table and on the page"
    names = [run.name for run in load_runs([tmp_path / "runs"])]
    assert COLOURS[names.index("lr-0.1")] in picture.read_text()


def test_texts_of_theorems_are_typeset() -> None:
    for plain_text, shown in {
        "fedbcgd-plus": "FedBCGD+",
        "scaffold, kappa 2": r"SCAFFOLD, $\kappa$ = 2",
        "m-1": "m = 1",
        "tau-10": r"$\tau$ = 10",
        "mean of |grad f|^2": r"mean of $\|\nabla f\|^2$",
        "f(z) - f*": "$f(z) - f^*$",
        "|x^ - mean x_i|^2": r"$\|\hat{x} - \bar{x}\|^2$",
        "|z - x*|^2 + 9 eta~^2 (M/K) C": r"$\|z - x^*\|^2 + 9 \tilde{\eta}^2 (M/K) C$",
        "vectors per client to |x - x*| < 1e-06": r"vectors per client to $\|x - x^*\|$ < $10^{-6}$",
        "1/(tau K)": r"$1/(\tau K)$",
        "bounds dashed": "bounds dashed",
    }.items():
        assert typeset(plain_text) == shown


def test_coinciding_curves_of_theorems_can_be_told_apart(tmp_path: Path) -> None:
    at = np.arange(1.0, 101)
    curves = [Curve(name, at, 1 / at) for name in ("fedavg", "scaffold", "tau-2")]
    picture = tmp_path / "p.svg"
    draw_panels([Panel("", "rounds", "|grad f|", curves)], "FedAvg, theorem 1", picture)
    drawn = picture.read_text()
    assert {"FedAvg", "SCAFFOLD", "FedAvg, theorem 1"} <= set(texts(picture))
    assert (
        len(
            set(
                re.findall(r"stroke-dasharray: ([\d. ,]+); [^\"]*stroke: #(?:e69f00|009e73)", drawn)
            )
        )
        == 2
    )
