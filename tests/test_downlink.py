"""The downlink on a grid: the rule, every bit on every node, bytes, losses, damage, and what it is refused with."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from fedapp import client_app, server_app, wire
from fedapp.building import expected_bytes, make_strategy, notes, warnings
from fedapp.downlink import FIRST, GridDownlink, Parcel
from fedapp.engine import InlineGrid
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.errors import ConfigError, RunError
from fedapp.models.layout import Layout
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from fedapp.wire import arrays_of, record_of
from tests import oracles
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.cases import LR, ROUNDS, TAU, N, config_for, oracle_inputs, trajectory
from tests.support.deaths import in_round, killed
from tests.support.runs import assert_same, run

Vector = oracles.Vector
GRID: dict[str, Value] = {"downlink": "grid"}
KEYS: dict[str, Value] = {
    "downlink": "grid",
    "algorithm": "scaffold",
    "model": "mlp-10",
    "num-clients": 6,
    "clients-per-round": 3,
    "local-steps": 2,
    "lr": 0.05,
    "num-rounds": 8,
    "eval-every": 4,
    "run-name": "run",
    "grid.keep": 2,
}


# The rule.


class Stream:
    """ALGORITHMS.md, section 9, literally; the first model has a step 2^FIRST times as fine."""

    def __init__(self, kappa: float) -> None:
        self.kappa, self.w = kappa, np.zeros(0)

    def send(self, x: Vector) -> Vector:
        moved = x - self.w if self.w.size else x
        size = self.kappa * np.sqrt((moved**2).mean())
        if size:
            step = 2.0 ** np.floor(np.log2(size)) / (1 if self.w.size else 2.0**FIRST)
            self.w = step * np.rint(x / step)
        else:
            self.w = x
        return self.w


class Delivery:
    """D~ = C(D + e), e <- D + e - D~."""

    def __init__(self, kappa: float) -> None:
        self.kappa, self.e = kappa, np.zeros(1)

    def send(self, D: Vector) -> Vector:
        step = 2.0 ** np.floor(np.log2(self.kappa * np.sqrt((D**2).mean())))
        sent: Vector = step * np.rint((D + self.e) / step)
        self.e = D + self.e - sent
        return sent


def scaffold(x: Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, kappa: float) -> Any:
    c, c_i, down_x, down_c = 0 * x, np.zeros((N, x.size)), Stream(kappa), Stream(kappa)
    for S in cohorts:
        w, cw, u, dc = down_x.send(x), down_c.send(c), [], []
        for i in S:
            u.append(oracles.corrected_sgd(g, i, w, TAU, LR, c_i[i] - cw))
            new = c_i[i] - cw + u[-1] / (TAU * LR)
            dc.append(new - c_i[i])
            c_i[i] = new
        x, c = x - np.mean(u, 0), c + np.sum(dc, 0) / N
        yield x


def feddyn(x: Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, kappa: float) -> Any:
    alpha, h, h_i, down = 0.1, 0 * x, np.zeros((N, x.size)), Stream(kappa)
    for S in cohorts:
        w, u = down.send(x), []
        for i in S:
            y = w
            for _ in range(TAU):
                y = y - LR * (g(i, y) - h_i[i] + alpha * (y - w))
            u.append(w - y)
            h_i[i] = h_i[i] + alpha * u[-1]
        h = h + alpha * np.sum(u, 0) / N
        x = x - np.mean(u, 0) - h / alpha  # from x, not from w
        yield x


def fedgate(x: Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, kappa: float) -> Any:
    delta, down, deliver = np.zeros((N, x.size)), Stream(kappa), Delivery(kappa)
    for S in cohorts:
        w = down.send(x)
        u = [oracles.corrected_sgd(g, i, w, TAU, LR, delta[i]) for i in S]
        x = x - np.mean(u, 0)
        sent = deliver.send(np.mean(u, 0))
        for i, u_i in zip(S, u, strict=True):
            delta[i] += (u_i - sent) / (LR * TAU)
        yield x


def fedcet(x: Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, kappa: float) -> Any:
    down, c = Stream(kappa), 0.9 * 2 / ((TAU + 3) * LR)
    x = w = down.send(x)  # it begins on the grid
    d, z = np.zeros((N, x.size)), np.array([w - LR * g(i, w) for i in range(N)])
    z = np.array([z[i] - LR * (g(i, z[i]) + d[i]) for i in range(N)])
    for S in cohorts:
        x = x + np.mean([z[i] - w for i in S], 0)
        yield x
        w = down.send(x)
        for i in S:
            d[i] += c * (z[i] - w)
            y = z[i] - LR * c * (z[i] - w)
            for _ in range(TAU):
                y = y - LR * (g(i, y) + d[i])
            z[i] = y


@pytest.mark.parametrize("kappa", [1.0, 2.0])
@pytest.mark.parametrize("oracle", [scaffold, feddyn, fedgate, fedcet], ids=lambda o: o.__name__)
def test_trajectories_are_those_of_the_rule(oracle: Callable[..., Any], kappa: float) -> None:
    cohort = {"clients_per_round": N} if oracle is fedcet else {}
    keys: dict[str, Value] = {"dtype": "float64", "grid__kappa": kappa, **GRID, **cohort}
    config = config_for(oracle.__name__, **keys)
    found, wanted = trajectory(config, nodes=3), list(oracle(*oracle_inputs(config), kappa))
    assert len(found) == len(wanted) == ROUNDS
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_and_the_model_is_near_the_plain_one(
    name: str, run_inline: RunInline
) -> None:
    keys: dict[str, Value] = {"algorithm": name, "num_rounds": 4, "model": "mlp-10", "lr": 0.05}
    keys |= {"num_clients": 3, "clients_per_round": 3, "local_steps": 1}
    plain = read_rounds(run_inline(nodes=2, **keys))
    lines = read_rounds(run_inline(nodes=2, **keys, **GRID))
    assert [line["failures"] for line in lines] == [0] * 4
    assert lines[-1]["test_loss"] == pytest.approx(plain[-1]["test_loss"], rel=0.1)
    assert lines[-1]["downlink_bytes"] < 0.5 * plain[-1]["downlink_bytes"]


# Streams.


def counted(parcel: Parcel) -> int:
    return sum(map(wire.nbytes, parcel.alone))


def downlink(size: int = 5, **keys: Value) -> GridDownlink:
    config = parse_run_config(kebab(GRID | keys))
    return GridDownlink(config, Layout.single(size).pieces)


def send(to: GridDownlink, round_: int, remembers: bool = True, **vectors: Any) -> bool:
    arrays = {name: np.array(v, np.float32) for name, v in vectors.items()}
    beside = {"buffers": np.zeros(2, np.float32)}
    return to.begin(round_, arrays, record_of(arrays | beside), remembers)


def test_zeros_and_what_does_not_move_stay() -> None:
    down = downlink()
    assert send(down, 1, x=[1, 2, 3, 4, 5], c=[0] * 5)
    assert not send(down, 2, x=[1, 2, 3, 4, 5], c=[0] * 5)
    np.testing.assert_array_equal(down.broadcast["c"], 0)
    first = down.broadcast["x"]
    send(down, 3, x=first, c=[0] * 5)
    send(down, 4, x=first, c=[1, 0, 0, 0, 0])
    assert down.broadcast["x"] is first or np.array_equal(down.broadcast["x"], first)
    assert down.broadcast["c"].any()
    send(down, 5, x=[0] * 5, c=[0] * 5)
    assert not down.broadcast["x"].any()


def test_an_attempt_that_is_repeated_sends_the_same() -> None:
    down = downlink()
    send(down, 1, x=[1, 2, 3, 4, 5])
    send(down, 2, x=[1.1, 2.2, 3.3, 4.4, 5.5])
    once = down.broadcast["x"]
    down.arrived([0])
    send(down, 2, x=[1.1, 2.2, 3.3, 4.4, 5.5])
    np.testing.assert_array_equal(down.broadcast["x"], once)
    assert counted(down.parcel(1, [0])) < counted(down.parcel(1, [1]))  # it has this one already


def test_other_vectors_go_as_they_are() -> None:
    down = downlink()
    send(down, 1, x=[1, 2, 3, 4, 5], step=[0.3], more=[0.1] * 7)
    parcel = down.parcel(1, [0])
    assert set(parcel.shared) == {"x.grid", "step", "more", "buffers"}
    sent = down.delivered({"s": np.array([3.0]), "D": np.ones(5)})
    assert set(sent) == {"s", "D.grid"} and sent["s"].dtype == np.float64


def test_past_models_are_kept_while_clients_hold_them_and_only_so_many() -> None:
    down = downlink(grid__keep=3)
    rng = np.random.default_rng(0)
    for round_ in range(1, 12):
        send(down, round_, x=rng.standard_normal(5))
        down.arrived([round_ % 5])
    models = {key.split(".")[1] for key in down.saved() if key.startswith("model.")}
    assert models == {"8", "9", "10", "11"}
    send(down, 12, x=rng.standard_normal(5))
    down.arrived(range(5))
    assert {k for k in down.saved() if k.startswith("model.")} == {"model.12.x"}


def test_clients_are_counted_by_what_they_hold_wherever_they_are() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(5000)
    counts = []
    for node_of in ({0: 1, 1: 1, 2: 1}, {0: 1, 1: 2, 2: 3}):
        down = downlink(5000)
        total = []
        for round_ in range(1, 6):
            send(down, round_, x=x + 0.01 * round_ * np.cos(np.arange(5000)))
            clients = [0, 1, 2] if round_ in (1, 5) else [round_ % 3]
            nodes = {node_of[c] for c in clients}
            parcels = [down.parcel(n, [c for c in clients if node_of[c] == n]) for n in nodes]
            total.append(sum(map(counted, parcels)))
            down.arrived(clients)
        counts.append(total)
    assert counts[0] == counts[1]
    assert counts[0][1] < counts[0][0] / 3  # one difference against three whole models


# Every engine, and any number of nodes.


@pytest.mark.parametrize("algorithm", ["scaffold", "fedgate", "fedbcgd-plus"])
def test_bits_and_bytes_do_not_depend_on_the_nodes(
    algorithm: str, run_inline: RunInline, tmp_path: Path
) -> None:
    keys = {key.replace("-", "_").replace(".", "__"): v for key, v in KEYS.items()}
    keys |= {"algorithm": algorithm}
    runs = [
        run_inline(nodes=n, **keys | {"run_name": f"on-{n}", "results_dir": str(tmp_path)})
        for n in (1, 2, 6)
    ]
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


@pytest.mark.slow
def test_ray_gives_the_same_bits_and_bytes(tmp_path: Path) -> None:
    config = parse_run_config(KEYS | {"results-dir": str(tmp_path / "ray")})
    with RayWorkers(2) as workers:
        with_ray = server_app.run(RayGrid(workers, config.flat()), config).path
    assert_same(run(tmp_path / "inline", KEYS), with_ray)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedcomgate"])
def test_a_killed_run_ends_as_if_nothing_had_happened(algorithm: str, tmp_path: Path) -> None:
    keys = KEYS | {"algorithm": algorithm, "checkpoint-every": 2}
    whole = run(tmp_path / "whole", keys)
    with pytest.MonkeyPatch.context() as patch:
        in_round(6)(patch)
        killed(lambda: run(tmp_path / "killed", keys))
    assert_same(whole, run(tmp_path / "killed", keys, resume=True))


def test_what_rounds_change_is_saved() -> None:
    config = parse_run_config(KEYS | {"run-name": "", "algorithm": "fedgate"})
    problem = make_problem(config)
    used, new = (make_strategy(config, problem) for _ in range(2))
    list(run_rounds(InlineGrid(client_app.app, config.flat()), used, problem, config))
    saved = used.saved()
    assert {"downlink.held", "downlink.round", "downlink.error.u"} <= saved.keys()
    new.restore(saved)
    again = new.saved()
    assert saved.keys() == again.keys()
    assert all(np.array_equal(saved[key], again[key]) for key in saved)


# Losses and damage.


class Meddling(InlineGrid):
    """Nodes with which a test meddles before and after they serve an invitation."""

    def __init__(self, config: Any, nodes: int = 1) -> None:
        super().__init__(client_app.app, config.flat(), nodes)
        self.before: Callable[[Message, int], object] = lambda message, round_: None
        self.after: Callable[[Message, int], Message] = lambda reply, round_: reply
        self.whole: list[bool] = []  # for each invitation, whether the model came whole

    def serve(self, message: Message) -> Message:
        if message.metadata.message_type != "train":
            return super().serve(message)
        head = message.content.config_records["round"]
        round_ = int(head["round"])  # type: ignore[arg-type]
        self.whole.append("base" not in head)
        self.before(message, round_)
        return self.after(super().serve(message), round_)


def meddling(tmp_path: Path, nodes: int = 1, **keys: Value) -> tuple[Any, Meddling]:
    all_keys = KEYS | {"results-dir": str(tmp_path)} | kebab(keys)
    config = parse_run_config(all_keys)
    return config, Meddling(config, nodes)


def test_a_node_is_sent_differences_once_it_has_a_model(tmp_path: Path) -> None:
    config, grid = meddling(tmp_path, num_rounds=4)
    server_app.run(grid, config)
    assert grid.whole == [True, False, False, False]
    kept = [name for name in grid.contexts[1].state if name.startswith("model.")]
    assert len(kept) == 1


@pytest.mark.parametrize("where", ["context", "state-dir", "damaged"])
def test_a_node_that_lost_its_model_says_so_and_is_sent_all_of_it(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = "" if where == "context" else str(tmp_path / "states")
    config, grid = meddling(tmp_path, num_rounds=4, state_dir=place)

    def lose(message: Message, round_: int) -> None:
        if round_ != 3 or grid.whole[-1]:
            return
        if where == "context":
            for name in [n for n in grid.contexts[1].state if n.startswith("model.")]:
                del grid.contexts[1].state[name]
            return
        (file,) = (tmp_path / "states").rglob("model/*.safetensors")
        if where == "damaged":
            file.write_bytes(file.read_bytes()[:-9])
        else:
            file.unlink()

    grid.before = lose
    lines = read_rounds(server_app.run(grid, config).path)
    assert grid.whole == [True, False, False, True, False]  # the third round was repeated
    assert [line["failures"] for line in lines] == [0, 0, 3, 0]
    assert "its node lacks the model of its last round" in caplog.text


def test_fedcet_does_not_end_because_of_a_lost_model(tmp_path: Path) -> None:
    config, grid = meddling(tmp_path, algorithm="fedcet", clients_per_round=6, num_rounds=3)

    def lose(message: Message, round_: int) -> None:
        if round_ == 2 and not grid.whole[-1]:
            for name in [n for n in grid.contexts[1].state if n.startswith("model.")]:
                del grid.contexts[1].state[name]

    grid.before = lose
    lines = read_rounds(server_app.run(grid, config).path)
    assert [line["clients"] for line in lines] == [6, 6, 6]


def test_after_an_answer_that_was_lost_the_model_comes_whole(tmp_path: Path) -> None:
    config, grid = meddling(tmp_path, nodes=2, num_rounds=5, clients_per_round=6)
    lost: list[int] = []

    def lose(reply: Message, round_: int) -> Message:
        if round_ == 2 and not lost:
            lost.append(round_)
            return Message(RecordDict(), reply_to=reply)  # an answer to nothing
        return reply

    grid.after = lose
    lines = read_rounds(server_app.run(grid, config).path)
    assert [line["failures"] for line in lines] == [0, 3, 0, 0, 0]
    assert grid.whole == [True, True, False, False, True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its checksum is wrong"),
        (lambda data: data[: len(data) // 2], "cannot be decoded"),
        (lambda data: b"", "too few for a payload"),
    ],
    ids=["flipped", "cut", "empty"],
)
def test_a_damaged_model_is_a_failure_that_says_so(
    spoil: Callable[[bytes], bytes], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, grid = meddling(tmp_path, num_rounds=3)

    def damage(message: Message, round_: int) -> None:
        shared: Any = message.content["shared"]
        if round_ == 2 and not grid.whole[-1]:
            arrays = arrays_of(shared)
            data = spoil(arrays["c.grid"].tobytes())
            arrays["c.grid"] = np.frombuffer(data, np.uint8)
            message.content["shared"] = record_of(arrays)

    grid.before = damage
    lines = read_rounds(server_app.run(grid, config).path)
    assert [line["failures"] for line in lines] == [0, 3, 0]
    assert "the server's 'c' cannot be decoded" in caplog.text and told in caplog.text


def test_another_model_than_the_one_that_is_named_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, grid = meddling(tmp_path, num_rounds=1, round_retries=0)

    def rename(message: Message, round_: int) -> None:
        message.content.config_records["round"]["model"] = "0" * 32

    grid.before = rename
    with pytest.raises(RunError):
        server_app.run(grid, config)
    assert "is not what it says it is" in caplog.text
    assert not [name for name in grid.contexts[1].state if name.startswith("model.")]


# The config.


def test_a_client_that_evaluates_receives_x_itself(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {"eval_clients": "all", "test_share": 0.2, "num_rounds": 2}
    keys |= {"num_clients": 4, "clients_per_round": 4, "model": "mlp-10"}
    plain, coded = (read_rounds(run_inline(**keys, downlink=how)) for how in ("none", "grid"))
    assert coded[-1]["eval_downlink_bytes"] == plain[-1]["eval_downlink_bytes"]
    assert coded[-1]["downlink_bytes"] < plain[-1]["downlink_bytes"] / 2


def test_the_keys_have_two_names_and_wrong_values_are_refused() -> None:
    config = parse_run_config({"downlink": "grid", "downlink.kappa": 2.0, "downlink.keep": 3})
    assert (config.downlink, config.grid.kappa, config.grid.keep) == ("grid", 2.0, 3)
    wrong: list[dict[str, Value]] = [{"downlink": "lattice"}, {"grid.kappa": 0.0}, {"grid.keep": 0}]
    for values in wrong:
        (key,) = values
        with pytest.raises(ConfigError, match=f"^{key} = .* is not allowed"):
            parse_run_config(values)


def test_it_is_refused_where_bytes_would_tell_who_took_part() -> None:
    keys: dict[str, Value] = {"downlink": "grid", "dp.clip": 1.0, "algorithm": "fedavg"}
    with pytest.raises(ConfigError, match=r"^What a client receives depends on when it last"):
        make_strategy(parse_run_config(keys))
    make_strategy(parse_run_config(keys | {"dp.where": "client"}))


def test_the_user_is_told_what_it_costs_before_the_first_round() -> None:
    strategies = [
        make_strategy(parse_run_config({"downlink": how, "grid.kappa": kappa}))
        for how, kappa in (("none", 1.0), ("grid", 1.0), ("grid", 2.0), ("grid", 4.0))
    ]
    downs = [expected_bytes(strategy)[1] for strategy in strategies]
    assert all(one > other for one, other in pairwise(downs))
    assert any("keeps up to 16 past models" in note for note in notes(strategies[1]))
    assert not any("past models" in note for note in notes(strategies[0]))
    assert not warnings(strategies[2]) and "may stall" in warnings(strategies[3])[0]


def test_without_a_grid_nothing_is_coded_or_kept(tmp_path: Path) -> None:
    config, grid = meddling(tmp_path, downlink="none", num_rounds=2, algorithm="fedavg")

    def check(message: Message, round_: int) -> None:
        shared = message.content["shared"]
        assert isinstance(shared, ArrayRecord) and set(shared) == {"x", "buffers"}
        assert "model" not in message.content.config_records["round"]

    grid.before = check
    lines = read_rounds(server_app.run(grid, config).path)
    assert [line["failures"] for line in lines] == [0, 0]
    assert not grid.contexts[1].state
