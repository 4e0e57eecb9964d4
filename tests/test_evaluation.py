"""Evaluation on clients: the figures by hand, the same on all nodes and after a resume, and failures that cost one client."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord
from numpy.typing import NDArray

from fedapp import client_app, node, wire
from fedapp.building import make_strategy
from fedapp.client_evaluation import evaluate_client
from fedapp.config import RunConfig
from fedapp.data import load_images, load_partition
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.evaluation import figures_of_clients
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import generator
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from fedapp.wire import Evaluation
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.runs import assert_same, run

KEYS: dict[str, Value] = {
    "model": "logreg", "num_clients": 6, "clients_per_round": 3, "num_rounds": 4, "local_steps": 2, "batch_size": 8,
    "eval_clients": "all", "test_share": 0.25,
}  # fmt: skip
Numbers = NDArray[Any]


def config_of(**keys: Value) -> RunConfig:
    return parse_run_config(kebab(KEYS | keys))


# The figures.


def test_the_figures_by_hand() -> None:
    """Eleven clients, so the worst tenth are two: 1 and 2 right of 10, and the losses 9 and 10."""
    results = [
        Evaluation(c, 10 + c, {"accuracy": (c + 1) / 20, "loss": float(c)}) for c in range(11)
    ]
    figures = figures_of_clients(results)
    weights = np.arange(10, 21)
    accuracies = np.arange(1, 12) / 20
    assert figures == {
        "client_accuracy_mean": pytest.approx((weights * accuracies).sum() / weights.sum()),
        "client_accuracy_mean_by_client": pytest.approx(0.3),
        "client_accuracy_worst10": pytest.approx(0.075),
        "client_accuracy_std": pytest.approx(np.sqrt(((accuracies - 0.3) ** 2).mean())),
        "client_loss_mean": pytest.approx((weights * np.arange(11)).sum() / weights.sum()),
        "client_loss_mean_by_client": pytest.approx(5.0),
        "client_loss_worst10": pytest.approx(9.5),
        "client_loss_std": pytest.approx(np.sqrt(10)),
    }


def test_one_client_is_its_own_worst_tenth() -> None:
    figures = figures_of_clients([Evaluation(3, 7, {"accuracy": 0.5}, {"accuracy": 0.75})])
    assert figures["client_accuracy_worst10"] == figures["client_accuracy_mean"] == 0.5
    assert figures["client_accuracy_std"] == 0
    assert figures["client_finetuned_accuracy_mean"] == 0.75
    assert figures_of_clients([]) == {}


def test_one_client_adds_no_figures_and_a_metric_may_be_undefined_on_some() -> None:
    results = [Evaluation(c, 1, {"loss": 1.0}) for c in range(4)]
    results[0].metrics["fame"] = 1.0
    results[1].metrics["auc"] = 0.5
    figures = figures_of_clients(results, {"loss", "auc"})
    assert "client_fame_mean" not in figures
    assert figures["client_auc_mean"] == 0.5
    for result in results[1:3]:
        result.metrics["fame"] = 4.0
    assert figures_of_clients(results)["client_fame_mean"] == 3.0


def held_out(config: RunConfig, client: int) -> tuple[Numbers, Numbers]:
    """Return the rows that a client trains on, and those that it holds out, as documented."""
    rows = load_partition(load_images("digits", ""), config)[client]
    order = generator(config.seed, "held out", client=client).permutation(len(rows))
    count = round(config.test_share * len(rows))
    return rows[np.sort(order[count:])], rows[np.sort(order[:count])]


class Oracle:
    """Softmax regression on digits in NumPy."""

    def __init__(self, config: RunConfig) -> None:
        data = load_images("digits", "")
        pixels = np.asarray(data.train_images, np.float64).reshape(len(data.train_labels), -1)
        mean, std = np.float32(data.mean[0]), np.float32(data.std[0])  # as the problem keeps them
        self.inputs = (pixels - float(mean)) * float(np.float32(1) / std)
        self.labels, self.config = np.asarray(data.train_labels), config

    def probabilities(self, weights: Numbers, bias: Numbers, rows: Numbers) -> Numbers:
        scores = self.inputs[rows] @ weights.T + bias
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def metrics(self, weights: Numbers, bias: Numbers, rows: Numbers) -> dict[str, float]:
        p, labels = self.probabilities(weights, bias, rows), self.labels[rows]
        loss = -np.log(p[np.arange(len(rows)), labels]).mean()
        return {"loss": float(loss), "accuracy": float((p.argmax(1) == labels).mean())}

    def finetuned(
        self, weights: Numbers, bias: Numbers, rows: Numbers, rng: Any, lr: float
    ) -> tuple[Numbers, Numbers]:
        """Take the steps of eval-finetune: batches in a new order each pass."""
        size, steps = self.config.batch_size, self.config.eval_finetune
        batches: list[Numbers] = []
        while len(batches) < steps:
            order = rng.permutation(rows)
            batches += [order[start : start + size] for start in range(0, len(rows), size)]
        for batch in batches[:steps]:
            errors = self.probabilities(weights, bias, batch)
            errors[np.arange(len(batch)), self.labels[batch]] -= 1
            decay = self.config.weight_decay
            weights, bias = (
                weights - lr * (errors.T @ self.inputs[batch] / len(batch) + decay * weights),
                bias - lr * (errors.mean(0) + decay * bias),
            )
        return weights, bias


def test_every_round_s_figures_are_those_of_its_model_in_numpy() -> None:
    config = config_of(
        dtype="float64",
        eval_finetune=15,
        lr_schedule="exponential",
        lr_decay=0.9,
        weight_decay=0.01,
    )
    problem = make_problem(config)
    strategy, oracle = make_strategy(config, problem), Oracle(config)
    grid = InlineGrid(client_app.app, config.flat(), 3)
    for record in run_rounds(grid, strategy, problem, config):
        tensors = problem.named_tensors(strategy.x, strategy.buffers)
        weights, bias = sorted((t.copy() for t in tensors.values()), key=lambda t: -t.ndim)
        results = []
        for client in range(6):
            trained, held = held_out(config, client)
            rng = generator(config.seed, "finetune batches", record["round"], client)
            near = oracle.finetuned(weights, bias, trained, rng, config.lr_at(record["round"]))
            metrics = oracle.metrics(weights, bias, held), oracle.metrics(*near, held)
            results.append(Evaluation(client, len(held), *metrics))
        for name, value in figures_of_clients(results).items():
            assert record[name] == pytest.approx(value, rel=1e-9), name
        assert (record["eval_clients"], record["eval_failures"]) == (6, 0)
    assert record["client_finetuned_accuracy_mean"] > record["client_accuracy_mean"] + 0.1


# What it leaves alone.


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "scaffold"},
        {"algorithm": "fedcomgate"},
        {"algorithm": "fedbcgd-plus", "model": "mlp-8"},
        {"algorithm": "gradma"},
        {"model": "resnet20", "num_rounds": 2, "local_steps": 1},  # buffers
    ],
    ids=str,
)
def test_training_is_the_same_with_and_without_it(
    keys: dict[str, Value], run_inline: RunInline
) -> None:
    plain = read_rounds(run_inline(**KEYS | keys | {"eval_clients": "", "run_name": "plain"}))
    evaluated = read_rounds(run_inline(**KEYS | keys, eval_finetune=2, run_name="evaluated"))
    assert not any("client" in name and name != "clients" for record in plain for name in record)
    for one, other in zip(plain, evaluated, strict=True):
        same = set(one) - {"wall_seconds", "check"}
        assert {name: other[name] for name in same} == {name: one[name] for name in same}


def test_only_the_model_travels_and_its_bytes_are_counted_apart() -> None:
    config = config_of(algorithm="scaffold", eval_clients="4", eval_every=2, num_rounds=3)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    seen: list[Message] = []

    class Watched(InlineGrid):
        def serve(self, message: Message) -> Message:
            if message.metadata.message_type == "evaluate":
                seen.append(message)
            return super().serve(message)

    grid = Watched(client_app.app, config.flat(), 2)
    records = list(run_rounds(grid, strategy, problem, config))
    assert ["eval_clients" in record for record in records] == [False, True, True]
    for message in seen:
        assert set(message.content.array_records["shared"]) == {"x", "buffers"}
    model = wire.nbytes(wire.record_of({"x": strategy.x, "buffers": strategy.buffers}))
    assert records[1]["eval_downlink_bytes"] == 4 * model
    # Three numbers of 8 bytes each, and their keys.
    one = 3 * 8 + len("num-examplesmetric.lossmetric.accuracy")
    assert records[1]["eval_uplink_bytes"] == 4 * one
    cohorts: list[Any] = [m.content.config_records["round"]["clients"] for m in seen]
    asked = [sorted([*cohorts[k], *cohorts[k + 1]]) for k in (0, 2)]
    for round_, clients in zip((2, 3), asked, strict=True):
        drawn = generator(0, "eval cohort", round_).choice(range(6), 4, replace=False)
        assert clients == sorted(drawn.tolist())
    assert asked[0] != asked[1]


def test_the_figures_do_not_depend_on_the_nodes(run_inline: RunInline) -> None:
    keys = KEYS | {"eval_clients": "0.5", "eval_finetune": 3, "algorithm": "scaffold"}
    one, *others = (run_inline(nodes=n, **keys, run_name=f"on-{n}") for n in (1, 2, 6))
    for other in others:
        assert_same(one, other)
    assert read_rounds(one)[0]["eval_clients"] == 3


def test_a_run_that_resumes_has_the_same_figures(tmp_path: Path) -> None:
    keys = kebab(KEYS | {"algorithm": "fedcomgate", "eval_clients": "2", "eval_finetune": 2})
    keys |= {"checkpoint-every": 2, "run-name": "part"}
    whole = run(tmp_path, keys | {"run-name": "whole"})
    run(tmp_path, keys | {"num-rounds": 3})
    assert_same(whole, run(tmp_path, keys | {"resume": True}))
    # Evaluation computes nothing that training uses, so it may change when a run goes on.
    more = run(tmp_path, keys | {"num-rounds": 5, "resume": True, "eval-clients": "all"})
    assert read_rounds(more)[-1]["eval_clients"] == 6


def test_flower_s_own_loop_gives_the_same_figures() -> None:
    config = config_of(algorithm="scaffold", eval_clients="3", eval_finetune=1, eval_every=2)
    problem = make_problem(config)

    def fresh() -> tuple[Any, InlineGrid]:
        return make_strategy(config, problem), InlineGrid(client_app.app, config.flat(), 2)

    strategy, grid = fresh()
    records = {r["round"]: r for r in run_rounds(grid, strategy, problem, config)}
    strategy, grid = fresh()
    result = strategy.start(grid, strategy.arrays(), num_rounds=4)
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4]
    for round_, metrics in result.evaluate_metrics_clientapp.items():
        assert {name: records[round_][name] for name in metrics} == dict(metrics)


def test_a_run_without_a_test_set_ends_at_the_clients_accuracy(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedapp.problems.classification import Images

    keys = KEYS | {
        "num_rounds": 40,
        "partition": "iid",
        "target_accuracy": 0.7,
        "clients_per_round": 6,
    }
    monkeypatch.setattr(Images, "test_data", lambda self: None)
    directory = run_inline(**keys, run_name="run", checkpoint_every=40)
    rounds = read_rounds(directory)
    reached = [r["client_accuracy_mean"] >= 0.7 for r in rounds]
    assert reached == [False] * (len(rounds) - 1) + [True]
    assert rounds[-1]["test_accuracy"] is None
    run_inline(**keys, run_name="run", checkpoint_every=40, resume=True)  # it is complete
    assert read_rounds(directory) == rounds


# What is refused.


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"eval_clients": "some"}, 'should be "all", a number of clients'),
        ({"eval_clients": "0"}, 'should be "all", a number of clients'),
        ({"eval_clients": "1.5"}, 'should be "all", a number of clients'),
        ({"eval_clients": "7"}, "set it to at most num-clients = 6"),
        ({"eval_clients": "", "eval_finetune": 2}, 'set eval-clients = "all"'),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(**keys)


def test_numbers_are_taken_as_well_as_texts() -> None:
    sizes: dict[Value, int] = {"all": 6, "": 0, "2": 2, "0.5": 3, ".01": 1, "1.0": 6, 3: 3, 0.34: 2}
    assert {value: config_of(eval_clients=value).eval_cohort for value in sizes} == sizes


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dataset": "quadratic", "test_share": 0.0}, 'set eval-clients = ""'),
        ({"model": "logistic", "test_share": 0.0}, 'set eval-clients = ""'),
        ({"test_share": 0.0}, "set test-share"),
        ({"dp__clip": 1.0}, 'set eval-clients = "", or dp.clip = 0'),
        ({"dp__clip": 1.0, "dp__where": "client"}, 'set eval-clients = "", or dp.clip = 0'),
    ],
    ids=str,
)
def test_a_run_that_nobody_can_evaluate_is_refused(
    keys: dict[str, Value], said: str, run_inline: RunInline, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        run_inline(**KEYS | keys)
    assert list(tmp_path.iterdir()) == []  # so that the name of the run is free


@pytest.mark.parametrize("where", ["server", "client"])
def test_a_node_under_differential_privacy_tells_no_metrics_whatever_the_server_asks(
    where: str,
) -> None:
    config = config_of(eval_clients="", dp__clip=1.0, dp__where=where)
    grid = InlineGrid(client_app.app, config.flat())
    strategy = make_strategy(config_of(), make_problem(config_of()))
    strategy.hosting.update(grid)
    (message,) = strategy.configure_evaluate(1, ArrayRecord(), None, grid)  # type: ignore[arg-type]
    (reply,) = grid.send_and_receive([message])
    assert list(reply.content) == ["failures"]
    assert all(
        "differential privacy" in str(text)
        for text in reply.content.config_records["failures"].values()
    )


# What fails costs one client.


class Spoilt(InlineGrid):
    """One node; a test spoils what its clients say of their evaluations."""

    def __init__(self, config: RunConfig, spoil: Callable[[Message], Message | None]) -> None:
        super().__init__(client_app.app, config.flat())
        self.spoil = spoil

    def serve(self, message: Message) -> Message:
        reply = super().serve(message)
        if message.metadata.message_type == "evaluate":
            return self.spoil(reply) or reply
        return reply


def evaluated(config: RunConfig, spoil: Callable[[Message], Message | None]) -> list[Any]:
    problem = make_problem(config)
    grid = Spoilt(config, spoil)
    return list(run_rounds(grid, make_strategy(config, problem), problem, config))


def changed(**numbers: Any) -> Callable[[Message], None]:
    """Change client 2's numbers; None leaves one out."""

    def spoil(reply: Message) -> None:
        record = reply.content.metric_records["evaluation.2"]
        for key, value in numbers.items():
            key = key.replace("__", ".").replace("_", "-")
            if value is None:
                del record[key]
            else:
                record[key] = value

    return spoil


def _replaced(reply: Message) -> None:
    reply.content["evaluation.2"] = ArrayRecord()


def _left_out(reply: Message) -> None:
    del reply.content["evaluation.2"]


def _too_many(reply: Message) -> None:
    record = reply.content.metric_records["evaluation.2"]
    for number in range(100):
        record[f"metric.m{number}"] = 1.0


@pytest.mark.parametrize(
    "spoil",
    [
        changed(metric__loss=float("nan")), changed(metric__accuracy=float("inf")), changed(metric__loss=1e300),
        changed(metric__accuracy=1.01), changed(metric__accuracy=-0.1), changed(finetuned__accuracy=2),
        changed(metric__auc=1e17), changed(metric__f1=-0.1), changed(finetuned__auc=1.5),
        changed(metric__loss=2e12), changed(metric__loss=-2e12), changed(finetuned__loss=-2e12),
        changed(metric__loss=[1.0]), changed(num_examples=0), changed(num_examples=-3), changed(num_examples=2.0),
        changed(num_examples=10**7), changed(num_examples=None), changed(num_examples=[1]),
        _replaced, _left_out, _too_many,
    ],
)  # fmt: skip
def test_a_bad_evaluation_is_a_failed_client_and_changes_no_other(spoil: Any) -> None:
    config = config_of(eval_finetune=1, max_examples=10**6, num_rounds=2)
    honest = evaluated(config, lambda reply: None)

    def without(reply: Message) -> None:
        del reply.content["evaluation.2"]

    for record, absent, whole in zip(
        evaluated(config, spoil), evaluated(config, without), honest, strict=True
    ):
        assert (record["eval_clients"], record["eval_failures"]) == (5, 1)
        figures = {name for name in whole if name.startswith("client_")}
        assert {n: record[n] for n in figures} == {n: absent[n] for n in figures}
        assert record["client_loss_mean"] != whole["client_loss_mean"]
        training = {"test_loss", "train_loss", "uplink_bytes", "downlink_bytes", "failures"}
        assert {n: record[n] for n in training} == {n: whole[n] for n in training}


def test_what_nobody_asked_for_is_not_read() -> None:
    def spoil(reply: Message) -> None:
        content = reply.content
        content["evaluation.77"] = MetricRecord({"num-examples": 10**9, "metric.accuracy": 1.0})
        content["evaluation.-1"] = MetricRecord({"num-examples": 10**9, "metric.accuracy": 1.0})
        record = content.metric_records["evaluation.2"]
        record["metric.Bad name\n"] = 1.0
        record["metric." + "x" * 1000] = 1.0
        record["other.accuracy"] = 1.0
        record["metric.fame"] = 1.0
        record["finetuned.accuracy"] = 1.0

    config = config_of(num_rounds=1)
    (honest,), (record,) = evaluated(config, lambda reply: None), evaluated(config, spoil)
    timed = {"wall_seconds", "eval_uplink_bytes"}
    assert {n: v for n, v in record.items() if n not in timed} == {
        n: v for n, v in honest.items() if n not in timed
    }


def test_a_node_that_fails_or_says_nothing_costs_its_clients_the_evaluation() -> None:
    config = config_of(num_rounds=1)
    error = evaluated(config, lambda reply: Message(Error(2, "boom"), reply_to=_asked(reply)))[0]
    assert (error["eval_clients"], error["eval_failures"]) == (0, 6)
    assert not any(name.startswith("client_") for name in error)

    class Silent(InlineGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = super().send_and_receive(list(messages), timeout=timeout)
            return [r for r in replies if r.metadata.message_type != "evaluate"]

    problem = make_problem(config)
    grid = Silent(client_app.app, config.flat())
    (record,) = run_rounds(grid, make_strategy(config, problem), problem, config)
    assert (record["eval_clients"], record["eval_failures"], record["clients"]) == (0, 6, 3)


def _asked(reply: Message) -> Message:
    """Return a message that the reply's node could have been asked."""
    message = Message(reply.content, reply.metadata.src_node_id, "evaluate")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let client 4's evaluation raise."""

    def evaluate(objective: Any, config: Any, client: int, round_: int, model: Any) -> Any:
        if client == 4:
            raise ZeroDivisionError("of its own")
        return evaluate_client(objective, config, client, round_, model)

    monkeypatch.setattr(node, "evaluate_client", evaluate)
    yield


@pytest.mark.usefixtures("failing")
def test_a_client_that_raises_costs_only_itself(
    run_inline: RunInline, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = read_rounds(run_inline(**KEYS))
    assert [(r["eval_clients"], r["eval_failures"], r["failures"]) for r in rounds] == [
        (5, 1, 0)
    ] * 4
    told = [
        m for m in caplog.messages if m == "Client 4 failed: ZeroDivisionError: see this node's log"
    ]
    assert len(told) == 1
    shown = capsys.readouterr().out
    assert "(1 not evaluated)" in shown
    assert "failed to evaluate" in shown


def test_a_diverged_model_fails_on_every_client_and_not_the_run() -> None:
    config = config_of(num_rounds=1)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat())
    strategy.hosting.update(grid)
    strategy.x = np.full_like(strategy.x, np.nan)
    messages = list(strategy.configure_evaluate(1, ArrayRecord(), None, grid))  # type: ignore[arg-type]
    metrics = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert metrics is not None
    assert (metrics["eval_clients"], metrics["eval_failures"]) == (0, 6)
