"""The notebook of the examples: it runs, shows what it says, and is kept without outputs."""

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import ROOT
from tests.conftest import PATIENCE

NOTEBOOK = ROOT / "examples" / "comparison.ipynb"


def read_notebook() -> Any:
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in code_cells(read_notebook()):
        assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.slow
def test_the_notebook_runs_and_compares_bytes(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = read_notebook()
    nbclient.NotebookClient(
        notebook,
        timeout=int(PATIENCE),
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "round 5/5  test accuracy" in printed
    assert "\x1b" not in printed  # a progress bar would leave escape codes
    shown = [output.data for output in outputs if "data" in output]
    assert sum("image/png" in data for data in shown) == 1
    table = next(data["text/plain"] for data in shown if "kB until" in data.get("text/plain", ""))
    costs = {name: float(cost) for name, cost in re.findall(r"^(\S+) +(\d+\.\d)", table, re.M)}
    assert costs.keys() == {"FedAvg", "FedPAQ", "top-k", "FedCOMGATE"}
    assert max(costs, key=lambda name: costs[name]) == "FedAvg"
    assert costs["FedPAQ"] < 0.1 * costs["FedAvg"]
