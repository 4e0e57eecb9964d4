"""The device that a process computes on, what is set for GPUs, and what is said when their memory is full.

Here are no GPUs: what is about them is pure, or raised as torch would raise it.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedapp import run, server_app
from fedapp.devices import choose_device, find_device, make_gpus_repeatable
from fedapp.errors import ConfigError, RunError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.batches import take_rows
from tests.conftest import read_rounds
from tests.support.nodes import grid_of, place

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPUs")


@given(gpus=st.integers(0, 16), index=st.integers(0, 16))
def test_auto_is_a_gpu_where_there_is_one_and_a_number_must_exist(gpus: int, index: int) -> None:
    assert choose_device("auto", gpus) == ("cuda" if gpus else "cpu")
    assert choose_device("cpu", gpus) == "cpu"
    for wanted, there in (("cuda", gpus > 0), (f"cuda:{index}", index < gpus)):
        if there:
            assert choose_device(wanted, gpus) == wanted
            continue
        with pytest.raises(ConfigError) as told:
            choose_device(wanted, gpus)
        assert str(told.value).startswith(f'device = "{wanted}" is not there')
        assert "no GPU" in str(told.value) or f"{gpus} GPU" in str(told.value)


@without_gpu
def test_without_a_gpu_auto_is_the_cpu_and_makes_the_same_problem() -> None:
    assert find_device("auto") == torch.device("cpu")
    automatic = make_problem(parse_run_config({"device": "auto"}))
    assert make_problem(parse_run_config({})) is automatic, "they differ in nothing"
    for wanted in ("cuda", "cuda:3", "mps"):
        with pytest.raises(ConfigError, match=f'device = "{wanted}" is not there.*use "cpu"'):
            make_problem(parse_run_config({"device": wanted}))


@without_gpu
def test_a_nodes_own_device_comes_before_the_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of three nodes asks for a GPU that it does not have, another for a device that does not exist."""
    nodes = [place(0), place(1, device="cuda:7"), place(2, device="tpu")]
    config, grid = grid_of(
        *nodes, results_dir=str(tmp_path), num_rounds=1, require_all_clients="no", node_timeout=0.1
    )
    (record,) = read_rounds(server_app.run(grid, config).path)
    assert record["clients"] == 2
    said = caplog.text
    assert 'device = "cuda:7" is not there, since this process sees no GPU' in said
    assert "device = 'tpu' is not allowed" in said


def test_gpus_are_set_up_to_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        make_gpus_repeatable()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not (cudnn.benchmark or cudnn.allow_tf32 or matmul.allow_tf32)
    finally:
        torch.set_deterministic_debug_mode("default")
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
    make_problem(parse_run_config({}))
    assert not torch.are_deterministic_algorithms_enabled(), "the CPU needs none of it"


def test_rows_in_pinned_memory_are_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only CUDA has pinned memory: here torch is asked for it, and gives ordinary memory."""
    pinned: list[tuple[int, ...]] = []

    def empty(shape: tuple[int, ...], dtype: torch.dtype, pin_memory: bool) -> Tensor:
        pinned.append(shape if pin_memory else ())
        return torch.zeros(shape, dtype=dtype)

    def pin_memory(tensor: Tensor) -> Tensor:
        pinned.append(tuple(tensor.shape))
        return tensor.clone()

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    images = torch.arange(7 * 2 * 3, dtype=torch.uint8).view(7, 2, 3)
    rows = torch.tensor([5, 0, 5, 2])
    for chosen in (rows, slice(2, 6)):
        taken = take_rows(images, chosen, pinned=True)
        assert torch.equal(taken, images[chosen])
        assert torch.equal(take_rows(images, chosen), taken)
    assert pinned == [(4, 2, 3), (4, 2, 3)]


class Greedy(nn.Linear):
    """A network for which there is not memory enough every seventh time that it is trained."""

    spared, training_fails = 6, True
    left = spared

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        kind = type(self)
        if self.training == self.training_fails:
            kind.left -= 1
        if kind.left < 0:
            kind.left = self.spared
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")
        return super().forward(images.flatten(1))


class GreedyInEvaluation(Greedy):
    """The same, when it is evaluated: after the two rehearsals."""

    spared, training_fails = 3, False
    left = spared


@pytest.mark.parametrize("hidden", [False, True], ids=["told", "hidden by privacy"])
def test_a_full_gpu_costs_its_client_one_round_and_says_what_to_lower(
    hidden: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    private: dict[str, Any] = {"dp.clip": 1.0, "dp.where": "client"} if hidden else {}
    result = run(
        private, model=Greedy, results_dir=str(tmp_path), num_rounds=1, clients_per_round=20,
        local_steps=1,
    )  # fmt: skip
    (record,) = result.rounds
    assert record["failures"] > 0
    assert record["clients"] > 0
    assert record["clients"] + record["failures"] == 20
    told = [m for m in caplog.messages if "client" in m.lower() and "--workers-per-gpu" in m]
    assert bool(told) != hidden, caplog.messages


def test_a_server_whose_gpu_is_full_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="memory of the GPU is full: lower --workers-per-gpu"):
        run(model=GreedyInEvaluation, results_dir=str(tmp_path), num_rounds=1, show=False)
