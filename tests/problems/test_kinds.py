"""What the problems say about themselves agrees with what they do."""

import subprocess
import sys

import pytest

from fedapp.figures import FIGURES
from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.tables import Value

CONFIGS: dict[str, dict[str, Value]] = {
    "quadratic": {"dataset": "quadratic"},
    "quadratic, eval-train": {"dataset": "quadratic", "eval-train": True},
    "logistic": {"model": "logistic"},
    "sigmoid": {"model": "sigmoid-erm", "dtype": "float64"},
    "network": {"model": "logreg"},
    "network, eval-train": {"model": "logreg", "eval-train": True},
    "network, BatchNorm": {"model": "resnet20"},
    "network, metrics": {"model": "logreg", "metrics": "f1 auc"},
    "regression": {"dataset": "diabetes", "model": "mlp-4"},
    "regression, eval-train": {"dataset": "diabetes", "model": "mlp-4", "eval-train": True},
    "table": {"dataset": "wine", "model": "logreg", "metrics": "accuracy auc"},
    "text": {"dataset": "speeches", "model": "bag"},
    "characters": {"dataset": "shakespeare", "model": "transformer-8"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_tells_what_its_problem_will_measure_and_how_large_it_is(name: str) -> None:
    """Metrics are those of an evaluation; the outline has the size and type of the start."""
    config = parse_run_config({"num-clients": 5} | CONFIGS[name])
    kind, problem = kind_of(config), make_problem(config)
    x, buffers = problem.initial()
    assert list(problem.evaluate(x, buffers)) == list(kind.metrics(config))
    assert set(kind.metrics(config)) <= set(FIGURES)
    outline = kind.outline(config)
    assert outline.layout == problem.layout
    for zeros, start in zip(outline.initial(), (x, buffers), strict=True):
        assert zeros.shape == start.shape
        assert zeros.dtype == start.dtype


@pytest.mark.parametrize("name", CONFIGS)
def test_only_networks_let_a_node_know_the_facts_that_its_own_data_need(name: str) -> None:
    """A problem has facts for nodes if and only if nodes may bring data to it."""
    config = parse_run_config({"num-clients": 5} | CONFIGS[name])
    assert (make_problem(config).facts is not None) == kind_of(config).is_network


def test_describing_a_problem_does_not_import_torch() -> None:
    """Commands that only read results start without it: it takes seconds to import."""
    program = (
        "import sys; from fedapp.problems import find_kind; "
        "find_kind('', 'quadratic', ''); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0
