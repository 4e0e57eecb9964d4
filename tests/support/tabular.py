"""Tables of numbers and problems on them that tests share."""

from pathlib import Path

import numpy as np

from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.arrays import ArrayProblem
from fedapp.problems.network import NetworkProblem
from fedapp.tables import Value
from tests.conftest import kebab


def write_csv(path: Path, rows: list[str], header: str = "rooms,age,city,price") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def houses(count: int, seed: int = 0) -> list[str]:
    """Return rows of rooms, age, city and a price that is nearly linear in the first two."""
    rng = np.random.default_rng(seed)
    rooms, age = rng.integers(1, 9, count), rng.integers(0, 80, count)
    price = 100 * rooms - 2 * age + rng.normal(0, 10, count)
    cities = rng.choice(["Aba", "Bor", "Cos"], count)
    return [f"{r},{a},{c},{p:.3f}" for r, a, c, p in zip(rooms, age, cities, price, strict=True)]


def array_problem(**keys: Value) -> ArrayProblem:
    """Return the problem of a config, on tables or texts."""
    some: dict[str, Value] = {"num-clients": 4, "clients-per-round": 2}
    problem = make_problem(parse_run_config(some | kebab(keys)))
    assert isinstance(problem, NetworkProblem) and isinstance(problem.problem, ArrayProblem)
    return problem.problem
