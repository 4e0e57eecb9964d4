"""Pictures of a few curves each, side by side."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from fedapp.names import display_name
from fedapp.report.curves import line_style, marked_points
from fedapp.report.pictures import save_picture

Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A labelled curve: a "line", "points" on one, or a "guide" to compare with."""

    label: str
    x: Numbers
    y: Numbers
    kind: str = "line"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = True
    log_y: bool = True


def draw_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Draw panels side by side into one picture."""
    size = (0.6 + 4.4 * len(panels), 4.2)
    figure = Figure(figsize=size, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
        above = [title, panel.title] if len(panels) == 1 else [panel.title]
        axes.set_title(typeset("\n".join(filter(None, above))))
    if len(panels) > 1:
        figure.suptitle(typeset(title))
    save_picture(figure, path, dpi=130)


# What theorems write plainly, as a terminal shows it.
FORMULA = re.compile(
    r"\|[^|]+\|(\^2)?( \+ 9 eta~\^2 \(M/K\) C)?|f(\(z\))? - f\*|1/sqrt\(T\)|1/\(tau K\)|1/k|k_0"
    r"|\b(tau|alpha|sigma|kappa)\b(\^2)?|1e-0*\d+"
)
IN_TEX = {
    r"\|": r"\\|",
    r"\bgrad\b": r"\\nabla",
    r"\b(tau|alpha|sigma|kappa)\b": r"\\\1",
    r"eta~": r"\\tilde{\\eta}",
    r"mean x_i": r"\\bar{x}",
    r"x\^ ": r"\\hat{x} ",
    r"\*": "^*",
    r"sqrt\(T\)": r"\\sqrt{T}",
    r"1e-0*(\d+)": r"10^{-\1}",
}


def typeset(text: str) -> str:
    """Write a plain text as papers do: an algorithm's name, "m-1" as "m = 1", "|grad f|^2" as a formula."""
    text = re.sub(r"^[\w-]+", lambda found: display_name(found[0]), text)
    text = re.sub(r"^(\w+)-([\d.]+)$", r"\1 = \2", text)
    text = re.sub(r"\b(kappa|noise) ([\d.]+)", r"\1 = \2", text)
    return FORMULA.sub(lambda found: f"${_tex(found[0])}$", text)


def _tex(formula: str) -> str:
    for pattern, tex in IN_TEX.items():
        formula = re.sub(pattern, tex, formula)
    return formula


def _draw(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        if curve.kind == "guide":
            label = typeset(curve.label) or None
            axes.plot(curve.x, curve.y, "--", color="0.55", lw=1, label=label, zorder=1)
    curves = [curve for curve in panel.curves if curve.kind != "guide"]
    left, right = (f(f(curve.x) for curve in curves) for f in (min, max))
    for look, curve in enumerate(curves):
        at = np.asarray(curve.x, dtype=float)
        marked = marked_points(at, left, right, look, panel.log_x)
        every = list(range(len(at))) if curve.kind == "points" else marked
        axes.plot(at, curve.y, label=typeset(curve.label), markevery=every, **line_style(look))
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    points = [curve.x for curve in panel.curves if curve.kind == "points"]
    if points and len(points[0]) < 8:  # say where they are; powers of ten would be too few
        axes.set_xticks(points[0], [f"{x:g}" for x in points[0]])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=typeset(panel.x_label), ylabel=typeset(panel.y_label))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, handlelength=3.2)
