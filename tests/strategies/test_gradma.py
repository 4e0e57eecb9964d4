"""GradMA: who has a slot in the memory, case by case; layers; what is refused; what can be saved."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from clients.gradma import GradMAClient
from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.client import State
from fedapp.config import LocalWork, RunConfig
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.models.layout import Layout
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import generator, sample_cohort
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from fedapp.wire import Update
from strategies.gradma import GradMA, Options
from tests import oracles
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.cases import config_for, trajectory
from tests.support.steps import CLIENT, QUADRATIC, client_of


def strategy_of(m: int, **keys: Value) -> Any:
    config = config_for("gradma-s", gradma__memory_size=m, clients_per_round=2, **keys)
    return make_strategy(config, make_problem(config))


def cohorts_of(text: str) -> list[list[int]]:
    return [[int(c) for c in part.split(",")] for part in text.split()]


@pytest.mark.parametrize(
    ("rounds", "left"),
    [
        ("0,1 2", [0, 1, 2]),  # room for all
        ("0,1 2 0 1 3", [0, 1, 3]),  # 2 has the smallest count
        ("0,1 2 3", [1, 2, 3]),  # a tie: the oldest goes
        ("0,1 2 0,3", [0, 2, 3]),  # the oldest of the smallest that is not in the round itself
        # Two at once: 0 has the smallest count, then 1 is older than 2.
        ("0,1 2 1,2 3,4", [2, 3, 4]),
        ("0,1 2 1,2 3 0", [1, 2, 0]),  # evicted, it comes back with a count of 1, and 3 is older
        ("0,1 2 3 0 3 4", [3, 0, 4]),  # after an eviction the count begins anew
    ],
)
def test_who_has_a_slot_case_by_case(rounds: str, left: list[int]) -> None:
    strategy = strategy_of(3)
    counter: dict[int, int] = dict.fromkeys(range(12), 0)
    buf: list[int] = []
    for S in cohorts_of(rounds):
        counter, buf, new = oracles.mem_red(3, S, counter, buf)
        assert strategy.mem_red(S) == new
        assert list(strategy.slots) == buf
        assert strategy.counter == {i: counter[i] for i in buf}
        assert len(set(strategy.slots.values())) == len(buf), "no slot is held twice"
    assert sorted(strategy.slots) == sorted(left)


def test_who_has_a_slot_over_many_rounds() -> None:
    rng = np.random.default_rng(0)
    for m in (2, 3, 5, 12):
        strategy = strategy_of(m)
        counter: dict[int, int] = dict.fromkeys(range(12), 0)
        buf: list[int] = []
        for _ in range(300):
            S = sorted(int(c) for c in rng.choice(12, size=2, replace=False))
            counter, buf, new = oracles.mem_red(m, S, counter, buf)
            assert strategy.mem_red(S) == new
            assert list(strategy.slots) == buf
            assert strategy.counter == {i: counter[i] for i in buf}
            assert set(strategy.slots.values()) <= set(range(m))


@pytest.mark.parametrize(("size", "allowed"), [(1, False), (2, True), (12, True), (13, False)])
def test_the_memory_holds_from_a_cohort_to_all_clients(size: int, allowed: bool) -> None:
    if allowed:
        assert strategy_of(size).memory_size == size
    else:
        with pytest.raises(ConfigError, match="clients-per-round = 2 to num-clients = 12, or 0"):
            strategy_of(size)


def test_the_default_memory_is_a_hundred_or_all() -> None:
    assert strategy_of(0).memory_size == 12
    assert strategy_of(0, num_clients=150, quadratic__dim=100).memory_size == 100


NETWORK: dict[str, Value] = {
    "model": "mlp-6-5",
    "dtype": "float64",
    "num_clients": 8,
    "clients_per_round": 3,
    "num_rounds": 12,
    "local_steps": 3,
    "batch_size": 16,
    "lr": 0.1,
    "weight_decay": 0.01,
    "partition": "dirichlet",
    "gradma__beta1": 0.5,
    "gradma__beta2": 0.7,
    "gradma__memory_size": 5,
}


def network_oracle(config: RunConfig, **parts: Any) -> list[oracles.Vector]:
    """GradMA's pseudocode on a network; gradients are the problem's own, minus its client code."""
    problem: Any = make_problem(config)

    def gradient(k: int, i: int, t: int, y: oracles.Vector) -> oracles.Vector:
        objective = problem.objective(i)
        rng = generator(config.seed, "batches", k, i)
        batch = list(objective.batches(config.local_work, rng))[t]
        slope = objective.loss_gradient(torch.tensor(y), batch)[1].numpy().copy()
        return np.asarray(slope + config.weight_decay * y)

    clients = list(range(config.num_clients))
    cohorts = [
        sample_cohort(clients, config.clients_per_round, config.seed, k)
        for k in range(1, config.num_rounds + 1)
    ]
    return list(
        oracles.gradma(
            problem.initial()[0],
            gradient,
            cohorts,
            config.local_steps,
            config.lr,
            1.0,
            config.num_clients,
            problem.layout.tensors,
            config.table(Options).beta1,
            config.table(Options).beta2,
            config.table(Options).memory_size,
            **parts,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [("gradma", {}), ("gradma-w", {"server": False}), ("gradma-s", {"worker": False})],
)
def test_layers_are_projected_each_by_itself(algorithm: str, parts: dict[str, Any]) -> None:
    config = parse_run_config(kebab(NETWORK | {"algorithm": algorithm}))
    ours, theirs = trajectory(config), network_oracle(config, **parts)
    assert len(ours) == 12
    for a, b in zip(ours, theirs, strict=True):
        assert np.linalg.norm(a - b) < 1e-8 * np.linalg.norm(b)
    whole = config.model_copy(
        update={"gradma": config.table(Options).model_copy(update={"scope": "model"})}
    )
    other = trajectory(whole)[-1]
    assert np.linalg.norm(other - ours[-1]) > 1e-6, "the scope makes a difference"


class Charted:
    """An objective whose gradients are known at a few points."""

    num_examples = 1
    layout = Layout.single(3)
    buffers = torch.empty(0, dtype=torch.float64)

    def __init__(self, gradients: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        self.gradients = gradients

    def batches(self, work: LocalWork, rng: Any) -> Iterator[int]:
        return iter(range(work.steps))

    def loss_gradient(self, y: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        g = self.gradients[tuple(int(number) for number in y.round())]
        return y.new_zeros(()), y.new_tensor(g)


def taken(gradients: dict[Any, Any], steps: int, x: tuple[int, ...], **state: Any) -> list[float]:
    """Return the step that a worker takes from x with lr = 1."""
    config = config_for("gradma-w", local_steps=steps, lr=1.0, weight_decay=0.0)
    kept = {name: torch.tensor(v, dtype=torch.float64) for name, v in state.items()}
    client: Any = GradMAClient(Charted(gradients), config, 0, kept)  # type: ignore[arg-type]
    u = client.update(torch.tensor(x, dtype=torch.float64))["u"]
    return [round(float(number), 9) for number in u]


O, Y1, Y2, LAST = (0, 0, 0), (-1, 0, 0), (-1, -1, 0), (5, 5, 5)


@pytest.mark.parametrize("third", [(-1, 0, 1), (0, -1, 1), (1, 1, 1)])
def test_a_worker_s_step_agrees_with_each_of_its_three_constraints(third: tuple[int, ...]) -> None:
    """Of g(y_2) = `third`, the first disagrees with g(x) alone, the second with g(y_1), the third with y_2 - x."""
    assert taken({O: (1, 0, 0), Y1: (0, 1, 0), Y2: third}, 3, O) == [1, 1, 1]


def test_a_worker_s_first_step_agrees_with_its_gradient_where_it_ended_last() -> None:
    known = {O: (1, 0, 0), LAST: (-1, 1, 0)}
    assert taken(known, 1, O, y=LAST) == [0.5, 0.5, 0]
    assert taken(known, 1, O) == [1, 0, 0]  # its first round: there is no last


def test_a_worker_remembers_where_it_ended() -> None:
    config = parse_run_config(kebab(QUADRATIC | {"algorithm": "gradma-w"}))
    client, x = client_of(config, 1, {}), np.ones_like(make_problem(config).initial()[0])
    sent = client.train({"x": x}, np.zeros(0)).arrays["u"]
    assert np.linalg.norm(sent) > 0.01
    np.testing.assert_allclose(client.state["y"], x - sent)


def test_a_worker_that_comes_late_begins_at_the_model_it_receives() -> None:
    """y_{-1} is that model, and not x_0, where g = (-1, 1, 0)."""
    assert taken({O: (-1, 1, 0), LAST: (1, 0, 0)}, 1, LAST) == [1, 0, 0]


def test_the_memory_can_be_saved_and_taken_up_again() -> None:
    """A strategy that is given another's memory goes on as that does, bit for bit."""
    config = parse_run_config(kebab(NETWORK | {"algorithm": "gradma-s"}))
    problem = make_problem(config)
    whole: Any = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat(), 2)
    rounds = run_rounds(grid, whole, problem, config)
    for _ in range(9):
        next(rounds)
    later: Any = make_strategy(config, problem)
    later.restore(whole.saved())
    rng = np.random.default_rng(0)
    for k in range(6):
        clients = sorted(int(c) for c in rng.choice(8, size=3, replace=False))
        updates = [Update(c, {"u": rng.standard_normal(whole.x.size)}, 1, 3, 0.0) for c in clients]
        for strategy in (whole, later):
            strategy.aggregate(updates)
        np.testing.assert_array_equal(whole.x, later.x, err_msg=f"round {k}")
        assert whole.slots == later.slots


def test_a_client_whose_answer_was_lost_has_no_part_in_the_memory() -> None:
    """Of two invited clients one is heard: it alone has a slot, and the others' counts stay."""
    strategy = strategy_of(4)

    def hear(*clients: int) -> None:
        strategy.on_cohort([3, 5], 1, 0)
        sent = {"u": np.ones(20, np.float32)}
        strategy.aggregate([Update(c, sent, 1, 1, 0.0) for c in clients])

    hear(3, 5)
    hear(3)
    assert strategy.counter == {3: 2, 5: 1}
    np.testing.assert_allclose(strategy.D.vector(strategy.slots[3]), 1.5)  # beta2 = 0.5
    np.testing.assert_allclose(strategy.D.vector(strategy.slots[5]), 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gradma", "gradma-w", "gradma-s"])
def test_it_learns_the_digits(algorithm: str, run_inline: RunInline) -> None:
    records = read_rounds(run_inline(algorithm=algorithm, num_rounds=15, clients_per_round=10))
    assert records[-1]["test_accuracy"] > 0.6
    assert records[-1]["failures"] == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"gradma__memory_size": 8}, ""),
        ({"gradma__memory_size": 9}, "m = 9 .* d = 8: set gradma.memory-size to at most 8"),
        ({}, "m = 12 .* d = 8: set gradma.memory-size to at most 8"),
        ({"clients_per_round": 8}, "m = 12 .* d = 8: set gradma.memory-size to at most 8"),
        ({"clients_per_round": 10}, "set clients-per-round and gradma.memory-size to at most 8"),
    ],
)
@pytest.mark.parametrize("algorithm", ["gradma", "gradma-s"])
def test_a_memory_of_more_vectors_than_parameters_is_refused(
    algorithm: str, keys: dict[str, Value], said: str
) -> None:
    common: dict[str, Value] = {"dataset": "quadratic", "quadratic__dim": 8, "num_clients": 12}
    config = parse_run_config(
        kebab(common | {"clients_per_round": 4, "algorithm": algorithm} | keys)
    )
    if not said:
        make_strategy(config, make_problem(config))
        return
    with pytest.raises(ConfigError, match=said):
        make_strategy(config, make_problem(config))


def test_a_late_first_participation_starts_from_the_x_it_receives() -> None:
    """In round 5, without a state: as with y_{-1} = x in its state, and not as with a start far away."""
    config = parse_run_config(kebab(QUADRATIC | {"algorithm": "gradma-w"}))
    x = np.linspace(1, 2, 6)

    def sent(state: State) -> Any:
        return client_of(config, 5, state).train({"x": x}, np.zeros(0))["u"]

    received = sent({"y": torch.tensor(x)})
    np.testing.assert_array_equal(sent({}), received)
    starts = [torch.full((6,), y, dtype=torch.float64) for y in (-20.0, 20.0)]
    assert max(np.abs(sent({"y": y}) - received).max() for y in starts) > 1e-3


@pytest.mark.parametrize("dropped", [None, 0, 1, 2])
def test_every_constraint_of_a_worker_counts(dropped: int | None) -> None:
    """With large steps the gradient turns away from each of them in turn; without one, some update differs."""
    keys: dict[str, Value] = {"algorithm": "gradma-w", "lr": 1.5, "warmup_rounds": 0}
    config = parse_run_config(kebab(QUADRATIC | keys))
    problem: Any = make_problem(config)
    A, b = problem.A[CLIENT].numpy(), problem.b[CLIENT].numpy()
    differences = []
    for round_ in range(1, 13):
        rng = np.random.default_rng(round_)
        x, last = rng.standard_normal(6), rng.standard_normal(6)
        batches = generator(config.seed, "batches", round_, CLIENT).standard_normal((4, 6))

        def g(y: oracles.Vector, t: int, batches: Any = batches) -> oracles.Vector:
            return np.asarray(A @ (y - b) + 0.5 * batches[t] + config.weight_decay * y)

        y, before = x, last
        for t in range(4):
            C = np.stack([g(before, t), g(x, t), y - x])
            kept = [row for row in range(3) if row != dropped]
            before, y = y, y - 1.5 * oracles.quadratic_program(g(y, t), C[kept])
        client = client_of(config, round_, {"y": torch.tensor(last)})
        sent = client.train({"x": x}, np.zeros(0))["u"]
        differences.append(float(np.abs(sent - (x - y)).max()))
    if dropped is None:
        assert max(differences) < 1e-8
    else:
        assert max(differences) > 1e-2


@pytest.mark.parametrize(("scope", "sizes"), [("layer", (640, 10)), ("model", (650,))])
def test_a_worker_projects_each_tensor_or_the_whole_model(
    scope: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Softmax regression on 8 x 8 pixels: weights and biases."""
    seen = set()

    def spy(rows: torch.Tensor, scope: tuple[int, ...]) -> torch.Tensor:
        seen.add(tuple(scope))
        return rows[0]

    monkeypatch.setattr("clients.gradma.project_", spy)
    keys: dict[str, Value] = {"algorithm": "gradma-w", "model": "logreg", "gradma__scope": scope}
    config = parse_run_config(kebab(keys | {"local_steps": 2, "batch_size": 4}))
    client_of(config, 1, {}).train({"x": np.zeros(650, np.float32)}, np.zeros(0, np.float32))
    assert seen == {sizes}


@pytest.mark.parametrize(("scope", "tensors"), [("layer", 2), ("model", 1)])
def test_the_server_s_memory_has_a_gram_matrix_for_each_tensor_or_for_the_whole_model(
    scope: str, tensors: int
) -> None:
    keys: dict[str, Value] = {"algorithm": "gradma-s", "model": "logreg", "gradma__scope": scope}
    config = parse_run_config(kebab(keys))
    strategy = make_strategy(config, make_problem(config))
    assert isinstance(strategy, GradMA)
    assert len(strategy.memory()["grams"]) == tensors
