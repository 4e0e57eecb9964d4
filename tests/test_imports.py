"""What the commands import: one that only looks something up does not wait for torch, nor for Flower if it can."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clients.averaging import FedAvgClient
from fedapp import Algorithm, Client
from fedapp.registry import ALGORITHMS
from strategies.averaging import FedAvg
from tests.conftest import RunInline

# What takes a quarter of a second or more to import, or brings something that does.
HEAVY = [
    "torch",
    "torchvision",
    "ray",
    "datasets",
    "flwr_datasets",
    "pyarrow",
    "pandas",
    "sklearn",
    "scipy",
    "numba",
    "matplotlib",
    "flwr",
    "sqlalchemy",
    "fastapi",
]
# Runs commands one after the other; prints what each imports of HEAVY that none before it did.
PROGRAM = """
import contextlib, io, json, os, sys
heavy, commands = json.loads(sys.argv[1])
from fedapp.cli import main
known, new = set(), []
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        if command[0] == "COMPLETE":
            from fedapp.commandline import complete_assignment
            code = 0 if complete_assignment(command[1]) else 1
        else:
            code = main(command)
    assert code == 0, (command, shown.getvalue())
    new.append(sorted({name for name in heavy if name in sys.modules} - known))
    known.update(new[-1])
print(json.dumps(new))
"""


@pytest.mark.slow
def test_commands_import_only_what_they_need(tmp_path: Path, run_inline: RunInline) -> None:
    runs = str(run_inline(num_rounds=1))
    allowed: list[tuple[list[str], set[str]]] = [
        (["--help"], set()),
        (["run", "--help"], set()),
        (["certify", "--help"], set()),
        (["table", runs], set()),
        # Which keys a run reads, its algorithm says.
        (["report", runs, "-o", str(tmp_path / "page.html")], {"flwr"}),
        (["watch", runs, "--once"], set()),
        (["plot", runs, "-o", str(tmp_path / "curves.png")], {"matplotlib"}),
        (["algorithms"], {"flwr"}),
        (["config", "-c", 'algorithm="scaffold"'], set()),
        (["config", "--toml"], set()),
        (["COMPLETE", "algorithm="], set()),
        (["COMPLETE", "model="], set()),
        (["run", "--dry-run"], {"torch"}),
        # The digits are decoded already, without scikit-learn.
        (["run", "--engine", "inline", "-c", "num-rounds=1", "--out", str(tmp_path)], {"scipy"}),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([HEAVY, [command for command, _ in allowed]])],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    for (command, some), new in zip(allowed, json.loads(ran.stdout), strict=True):
        assert set(new) <= some, command


def test_every_algorithm_names_a_client_that_is_there() -> None:
    for algorithm in ALGORITHMS.values():
        assert issubclass(algorithm.client, Client), algorithm.name


def test_a_client_may_be_given_as_a_class_or_by_its_name() -> None:
    by_class = Algorithm("one", "", FedAvg, FedAvgClient)
    by_name = Algorithm("one", "", FedAvg, "clients.averaging:FedAvgClient")
    assert by_class.client is by_name.client is FedAvgClient
    assert by_class == by_name
