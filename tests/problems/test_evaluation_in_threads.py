"""The server evaluates on all cores: our networks, and with the bits of one thread."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem, network
from fedapp.problems.network import AT_ONCE, EVALUATION_BATCH, SMALL_BATCH, NetworkProblem
from fedapp.tables import Value
from fedapp.threads import in_shares
from tests.conftest import kebab


class Watched:
    """What a problem's network was given, and in which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **keys: Value) -> None:
        given: dict[str, Value] = {"dataset": "digits", "eval_train": True}
        self.config = parse_run_config(kebab(given | keys))
        problem = make_problem(self.config)
        assert isinstance(problem, NetworkProblem)
        self.problem, self.sizes, self.threads = problem, set[int](), set[str]()
        outputs = problem._outputs

        def watched(module: torch.nn.Module, batch: Any) -> Tensor:
            self.sizes.add(len(batch[-1]))
            self.threads.add(threading.current_thread().name)
            assert torch.get_num_threads() == 1
            assert not torch.is_grad_enabled()
            return outputs(module, batch)

        monkeypatch.setattr(problem, "_outputs", watched)

    def evaluate(self) -> dict[str, float]:
        x, buffers = self.problem.initial()
        return self.problem.evaluate(x, buffers)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["logreg", "mlp-64-64", "lenet5", "resnet20"])
def test_several_threads_give_the_bits_of_one(
    model: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch, model=model, precision=precision)
    main = {threading.current_thread().name}
    several = watched.evaluate()
    assert max(watched.sizes) == SMALL_BATCH
    assert watched.threads - main
    monkeypatch.setattr(watched.problem, "_divides", False)
    watched.threads.clear()
    assert watched.evaluate() == several
    assert watched.threads == main


def test_few_samples_wake_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, model="mlp-64", eval_train=False)
    assert "test_accuracy" in watched.evaluate()
    assert watched.threads == {threading.current_thread().name}


def test_a_client_evaluates_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cores are other clients'."""
    watched = Watched(
        monkeypatch, model="mlp-64", test_share=0.5, num_clients=2, clients_per_round=2
    )
    watched.evaluate()
    watched.threads.clear()
    x = torch.tensor(watched.problem.initial()[0])
    assert watched.problem.objective(0).evaluate(x)[1] > SMALL_BATCH
    assert watched.threads == {threading.current_thread().name}


def test_a_users_network_is_evaluated_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may draw numbers, whose order would depend on the threads."""
    watched = Watched(monkeypatch, model="tests.models.outside.networks:Noisy")
    assert watched.evaluate() == watched.evaluate()
    assert watched.threads == {threading.current_thread().name}
    assert max(watched.sizes) == EVALUATION_BATCH


def test_an_error_in_a_thread_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, model="mlp-64")

    def full(*_: object) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(network, "take_rows", full)
    with pytest.raises(MemoryError):
        watched.evaluate()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_shares_keep_the_order_and_no_more_than_some_compute_at_once(count: int) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def work(task: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1
        return -task

    assert in_shares(work, range(count), AT_ONCE) == [-task for task in range(count)]
    assert most[0] <= AT_ONCE
