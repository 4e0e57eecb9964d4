"""Tables as Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from typing import Any

from fedapp.report.table import Line, Number, Results, values_in_words


def as_markdown(table: Results) -> str:
    """Write a table, and what a reader must know below it."""
    heads, rows = _texts(table)
    lines = [_row(heads), "|" + "---|" * len(heads), *map(_row, rows)]
    return "\n".join([*lines, *([""] if table.notes else []), *table.notes])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_latex(table: Results) -> str:
    """Write a tabular for the package booktabs; notes are comments."""
    heads, rows = _texts(table)
    body = [" & ".join(map(_latex, cells)) + r" \\" for cells in rows]
    return "\n".join(
        [
            *(f"% {note}" for note in table.notes),
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip


def _latex(text: str) -> str:
    return re.sub("|".join(map(re.escape, LATEX)), lambda found: LATEX[found[0]], text)


def as_csv(table: Results) -> str:
    """Write one row for each line, numbers without units: bytes and seconds; columns for means and deviations."""
    records = [_record(line, table) for line in table.lines]
    heads = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, heads, restval="", lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: _cell(value) for key, value in record.items()})
    return text.getvalue().rstrip("\n")


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return " ".join(f"{key}={found}" for key, found in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    # A spreadsheet would take a name that begins so for a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def as_json(table: Results) -> str:
    """Write lines and notes; numbers without units: bytes and seconds."""
    content = {
        "metric": table.metric,
        "chosen_on": table.chosen_on,
        "notes": table.notes,
        "lines": [_record(line, table) for line in table.lines],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


FORMATS: dict[str, Callable[[Results], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}


def _texts(table: Results) -> tuple[list[str], list[list[str]]]:
    """Return the heads and cells of a table for people."""
    seeds = any(line.seeds > 1 for line in table.lines)
    choice = any(line.settings for line in table.lines)
    heads = ["method", *(["seeds"] if seeds else []), *(["settings", "chosen"] if choice else [])]
    times = {column: _middle_time(table, column) for column in table.columns}
    rows = []
    for line in table.lines:
        cells = [line.method, *([str(line.seeds)] if seeds else [])]
        cells += [str(line.settings), values_in_words(line.chosen, line.at_edge)] if choice else []
        rows.append(cells + [_text(line.cells.get(c, "-"), times[c]) for c in table.columns])
    return [*heads, *table.columns], rows


def _middle_time(table: Results, column: str) -> float | None:
    """Return the time in whose unit a column is written, so that it has one; None if it has no times."""
    cells = [line.cells.get(column) for line in table.lines]
    times = sorted(c.mean for c in cells if isinstance(c, Number) and c.figure.unit == "seconds")
    return times[len(times) // 2] if times else None


def _text(cell: Number | str, like: float | None) -> str:
    return cell if isinstance(cell, str) else cell.text(like)


def _record(line: Line, table: Results) -> dict[str, Any]:
    """Return a line for programs: names without spaces, numbers, and None where there is none."""
    record: dict[str, Any] = {
        "method": line.method,
        "algorithm": line.algorithm,
        "seeds": line.seeds,
    }
    for column in table.columns:
        name = re.sub(r"\W+", "_", column.replace("%", "percent")).strip("_")
        cell = line.cells.get(column)
        known = cell if isinstance(cell, Number) else Number(math.nan, math.nan)
        record |= {f"{name}_mean": _finite(known.mean), f"{name}_std": _finite(known.std)}
    if line.settings:
        record |= {
            "settings": line.settings,
            "chosen": line.chosen,
            "at_edge": list(line.at_edge),
            "never_varied": list(line.never_varied),
            "chosen_on": table.chosen_on,
        }
    return record


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
