"""Bits do not depend on how busy the machine is, on OMP_NUM_THREADS, or on the engine."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.loaded import LOOP
from fedapp import projection
from fedapp.config import RunConfig
from fedapp.problems import make_problem
from fedapp.products import inner_products
from fedapp.threads import thread_pool
from tests.engine.load import LAYER, configs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def several_threads() -> Iterator[None]:
    """Have this process use two threads everywhere, and a pool whose threads have not computed yet."""
    before = torch.get_num_threads()
    thread_pool.cache_clear()
    torch.set_num_threads(2)
    limited = threadpool_limits(2)
    yield
    limited.restore_original_limits()
    torch.set_num_threads(before)
    thread_pool.cache_clear()


def limits() -> set[int]:
    """Return how many threads torch and every BLAS would use, called from this thread."""
    return {library["num_threads"] for library in threadpool_info()}


def test_every_thread_of_the_pool_has_one_thread(several_threads: None) -> None:
    assert max(limits()) == 2
    everyone = threading.Barrier(os.cpu_count() or 1)

    def ask(_: int) -> set[int]:
        everyone.wait(60)  # so that each thread of the pool answers once
        return limits()

    answers = list(thread_pool().map(ask, range(everyone.parties)))
    assert answers == [{1}] * everyone.parties


def test_a_problem_that_another_thread_has_built_is_computed_on_one_thread(
    several_threads: None,
) -> None:
    """Built once for a process; each thread that asks for it computes."""
    config = RunConfig(model="mlp-10")
    make_problem(config)
    answers: list[set[int]] = []

    def ask() -> None:
        make_problem(config)
        answers.append(limits())

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert answers == [{1}, {1}]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_have_the_same_bits_in_threads_that_have_not_computed_yet(
    dtype: str, several_threads: None
) -> None:
    """The products of a layer, and of one that two threads share."""
    rng = np.random.default_rng(0)
    for length in (LAYER, projection.CHUNK + LAYER):
        rows = rng.standard_normal((20, length)).astype(dtype)
        memory = projection.Memory(20, (length,), rows.dtype)
        memory.update(1.0, dict(enumerate(rows)))
        thread_pool.cache_clear()
        memory.project(rows[0])
        torch.set_num_threads(1)
        chunks = [
            slice(start, min(start + projection.CHUNK, length))
            for start in range(0, length, projection.CHUNK)
        ]
        if dtype == "float32":
            everyone = np.arange(20)
            parts = [inner_products(rows, rows[0], everyone, c)[:-1] for c in chunks]
        else:
            exact = torch.from_numpy(np.vstack([rows, rows[:1]]))
            parts = [(exact[:, c] @ exact[:20, c].T).numpy()[:-1] for c in chunks]
        torch.set_num_threads(2)
        np.testing.assert_array_equal(memory.grams[0], np.sum(parts, axis=0).T)


@pytest.mark.slow
def test_all_algorithms_have_the_same_bits_under_load(tmp_path: Path) -> None:
    """Inline and on two Ray workers, with other numbers of threads, beside each other.

    Beside them, two processes or more do nothing but keep the cores busy.
    """
    busy: list[subprocess.Popen[Any]] = [
        subprocess.Popen([sys.executable, "-c", LOOP])
        for _ in range(max(2, (os.cpu_count() or 1) - 3))
    ]
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}

    def start(engine: str, name: str, **more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.engine.load", engine, tmp_path / name],
            cwd=ROOT, env=environment | more, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    started: list[subprocess.Popen[Any]] = [
        start("inline", "default"),
        start("inline", "four", OMP_NUM_THREADS="4"),
        start("ray", "ray", OMP_NUM_THREADS="1"),
    ]
    try:
        shown = [process.communicate(timeout=3600)[0] for process in started]
    finally:
        for process in [*busy, *started]:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0, 0]
    default, four, on_ray = (json.loads(text.strip().splitlines()[-1]) for text in shown)
    assert set(default) == set(configs())
    assert default["gradma-again"] == default["gradma"]
    assert default["gradma-s-again"] == default["gradma-s"]
    assert four == default
    assert on_ray == default
