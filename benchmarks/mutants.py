"""Mutation testing of the rules: `python -m benchmarks.mutants [--count N] [--seed S] [--only PATH] [--lines 10-20]`.

Changes the code in one place at a time (operators, comparisons, constants, min and max, conditions, statements dropped)
in a copy of the repository, and runs the tests that cover the file. A mutant that passes them is a survivor: a rule that no test
protects. Prints the survivors and a table of counts. The sample is seeded. Each mutant has a process of its own, forked
from one that has imported what takes long.
"""

import argparse
import ast
import contextlib
import copy
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COPIED = ("strategies", "clients", "fedapp", "tests", "docs", "experiments", "benchmarks")
SECONDS = 180  # of a processor, after which a mutant counts as killed: it hangs
PATIENCE = 20  # times as long by the clock, for one that waits or has a busy machine
UNEQUAL, ALL = "tests/strategies/test_unequal_work.py", "tests/strategies/test_algorithms.py"
QUICK = ("-m", "not slow")


def rules(names: str, *more: str) -> tuple[str, ...]:
    """Return the tests of a family of algorithms: its pseudocode, and what else tests it."""
    return (UNEQUAL, ALL, *more, *QUICK, "-k", names)


def theory(names: str) -> tuple[str, ...]:
    """Return the quick tests of the theorems: those with numbers by hand, then those that need a run."""
    hand = [
        f"test_{name}"
        for name in ("constants", "bounds", "measured_by_hand", "fedcet", "fedpaq_bounds", "gradma")
    ]
    files = (f"tests/theory/{name}.py" for name in (*hand, "test_certify", "test_within"))
    return (*files, *QUICK, "-k", f"({' or '.join([*hand, names])}) and not words")


# What is changed, and the tests that should notice.
TARGETS: dict[str, tuple[str, ...]] = {
    "fedapp/traffic.py": ("tests/test_traffic.py", "tests/test_plan.py", *QUICK, "-k", "not dry"),
    "fedapp/theory/fits.py": ("tests/theory", "-k", "fits"),
    "fedapp/theory/hypotheses.py": theory("fedcet or fedpaq or certify or satisfy"),
    "fedapp/theory/constants.py": theory("fedcet or fedpaq or certify or satisfy"),
    "fedapp/theory/within/trails.py": theory("fedcet or certify"),
    "fedapp/theory/within/fedbcgd.py": theory("fedbcgd"),
    "fedapp/theory/within/fedcet.py": theory("fedcet"),
    "fedapp/theory/within/fedcom.py": theory("fedcom and not tables"),
    "fedapp/theory/fedpaq.py": theory("fedpaq"),
    "fedapp/theory/within/fedpaq.py": theory("fedpaq"),
    "fedapp/theory/within/gradma.py": theory("gradma"),
    "fedapp/theory/within/tables.py": theory("tables"),
    "averaging": rules("fedavg or fedprox or fedadam or hand"),
    "fedpaq": rules("fedpaq or qsgd"),
    "fedcomgate": rules("fedgate or fedcom or tracking or option or damping or sense or told or steps",
                        "tests/strategies/test_tracking.py", "tests/strategies/test_option_one.py"),
    "scaffold": rules("scaffold or damping or sense", "tests/strategies/test_tracking.py", "tests/test_clipping.py"),
    "diana": rules("diana or sense", "tests/strategies/test_tracking.py"),
    "fedcet": rules("fedcet or sense", "tests/strategies/test_fedcet.py", "tests/strategies/test_tracking.py"),
    "feddc": rules("feddc or sense", "tests/strategies/test_tracking.py"),
    "feddyn": rules("feddyn or sense", "tests/strategies/test_tracking.py"),
    "mifa": rules("mifa"),
    "mimelite": rules("mimelite"),
    "gradma": rules("gradma or memory or slot or late or lost or worker or constraint", "tests/strategies/test_gradma.py"),
    "fedbcgd": rules("fedbcgd", "tests/strategies/test_fedbcgd.py", "tests/test_clipping.py"),
    "moon": ("tests/strategies/test_contrast.py", *QUICK, "-k", "moon"),
    "fedmlb": ("tests/strategies/test_contrast.py", *QUICK, "-k", "fedmlb"),
}  # fmt: skip


def files() -> dict[str, tuple[str, ...]]:
    """Return the files that are changed, each with its tests."""
    found: dict[str, tuple[str, ...]] = {}
    for name, tests in TARGETS.items():
        paths = [name] if "/" in name else [f"strategies/{name}.py", f"clients/{name}.py"]
        found |= dict.fromkeys(paths, tests)
    return found


@dataclass(frozen=True)
class Mutant:
    """One change: the file's new text, and what was changed where."""

    path: str
    line: int
    change: str
    text: str


SWAPS: dict[type[Any], type[Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
# Declarations and messages: what they say is not a rule.
SILENT = {"Field", "Algorithm", "Needs", "ConfigError", "RunError", "RuntimeError", "Literal"}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place."""
    other = copy.deepcopy(node)
    if isinstance(other, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(other.op) in SWAPS:
        other.op = SWAPS[type(other.op)]()
        yield other
    elif isinstance(other, ast.Compare) and type(other.ops[0]) in SWAPS:
        other.ops[0] = SWAPS[type(other.ops[0])]()
        yield other
    elif isinstance(other, ast.Constant) and isinstance(other.value, bool):
        other.value = not other.value
        yield other
    elif isinstance(other, ast.Constant) and isinstance(other.value, int | float):
        other.value = (
            other.value + 1
            if isinstance(other.value, int) or not other.value
            else other.value * 1.8
        )
        yield other
    elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.USub | ast.Not):
        yield other.operand
    elif isinstance(other, ast.IfExp):
        other.body, other.orelse = other.orelse, other.body
        yield other
    elif isinstance(other, ast.Name) and other.id in ("min", "max"):
        other.id = "max" if other.id == "min" else "min"
        yield other
    elif isinstance(other, ast.Assign | ast.AugAssign) and not isinstance(node, ast.Name):
        target = other.targets[0] if isinstance(other, ast.Assign) else other.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            yield ast.Pass()
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()


def mutants(path: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = (ROOT / path).read_text()
    tree = ast.parse(source)
    for parent, field, place, node in _places(tree):
        for other in changes(node):
            ast.copy_location(other, node)
            held = getattr(parent, field)
            if place is None:
                setattr(parent, field, other)
            else:
                held[place] = other
            text = ast.unparse(ast.fix_missing_locations(tree))
            if place is None:
                setattr(parent, field, held)
            else:
                held[place] = node
            was, now = (ast.unparse(n).split("\n")[0] for n in (node, other))
            yield Mutant(path, getattr(node, "lineno", 0), f"{was}  ->  {now}", text)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield each node with where it is: its parent, the field, and the place in a list."""
    for field, value in ast.iter_fields(tree):
        if field in ("decorator_list", "annotation", "returns"):
            continue
        nodes = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for place, node in nodes:
            if not isinstance(node, ast.AST):
                continue
            name = node.func if isinstance(node, ast.Call) else None
            if isinstance(name, ast.Name) and name.id in SILENT:
                continue
            yield tree, field, place, node
            yield from _places(node)


def survives(mutant: Mutant, directory: Path, tests: tuple[str, ...]) -> bool:
    """Tell whether the tests pass with a mutant in the copy."""
    place = directory / mutant.path
    original = place.read_text()
    place.write_text(mutant.text)
    try:
        return _run(directory, tests) == 0
    finally:
        place.write_text(original)


def _run(directory: Path, tests: tuple[str, ...], compiles: bool = False) -> int:
    """Run tests in the copy, in a process of their own; return pytest's code, or a negative one if it took too long.

    With `compiles` the process leaves its bytecode to the later ones, which then begin in half the time.
    """
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(PATIENCE * SECONDS)
        sys.dont_write_bytecode = not compiles
        os.chdir(directory)
        sys.path.insert(0, str(directory))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        import pytest

        with contextlib.redirect_stdout(io.StringIO()):
            code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
    finally:
        os._exit(code)


def main() -> None:
    """Run a sample of the mutants, and print who survived."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=4, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a file, instead of all")
    parser.add_argument("--lines", help="of the file, as 10-20, instead of all")
    asked = parser.parse_args()
    first, last = map(int, (asked.lines or "0-1000000").split("-"))
    import flwr.serverapp
    import hypothesis
    import matplotlib.pyplot
    import quadprog
    import scipy.optimize
    import sklearn.datasets
    import torch

    loaded = (flwr, hypothesis, matplotlib, quadprog, scipy, sklearn, torch)  # before forking
    assert loaded
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for name in COPIED:
            shutil.copytree(
                ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "*.png")
            )
        shutil.copy(ROOT / "pyproject.toml", directory)
        rows: list[tuple[Any, ...]] = []
        for path, tests in files().items():
            if asked.only and path not in asked.only:
                continue
            if code := _run(directory, tests, compiles=True):
                how = "take too long" if code < 0 else "fail"
                raise SystemExit(f"The tests of {path} {how} without any change: {' '.join(tests)}")
            found = [mutant for mutant in mutants(path) if first <= mutant.line <= last]
            sample = random.Random(f"{asked.seed} {path}").sample(
                found, min(asked.count, len(found))
            )
            left = [mutant for mutant in sample if survives(mutant, directory, tests)]
            rows.append((path, len(found), len(sample), len(left)))
            print(f"{path}: {len(left)} of {len(sample)} survived", flush=True)
            for mutant in left:
                print(f"    line {mutant.line}: {mutant.change}", flush=True)
    print("\n| file | mutants | tried | survived |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    total = [sum(counts) for counts in list(zip(*rows, strict=True))[1:]]
    print("| all | " + " | ".join(map(str, total)) + " |")


if __name__ == "__main__":
    main()
