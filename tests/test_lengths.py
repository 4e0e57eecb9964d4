"""Updates that are much longer than usual: one message of one client must not end a run.

Long, because one rule is tested at three places: by itself, in whole runs, and in checkpoints.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedapp import client_app, registry, server_app
from fedapp.admission import Admission
from fedapp.algorithm import Algorithm
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, DivergedError
from fedapp.files import seal
from fedapp.ledger import Place, StateLedger
from fedapp.lengths import NAMED, REMEMBERED, UpdateLengths
from fedapp.manifest import read_manifest
from fedapp.models.layout import Layout
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value
from fedapp.wire import Arrays, Update
from tests.conftest import kebab, read_rounds
from tests.support.deaths import in_round, killed

pytestmark = pytest.mark.long_updates
KEYS: dict[str, Value] = {
    "dataset": "digits", "model": "mlp-4", "num_clients": 20, "clients_per_round": 20, "num_rounds": 4,
    "local_steps": 2, "batch_size": 8, "lr": 0.1, "eval_every": 4,
}  # fmt: skip
HOSTILE = 7
X = np.ones(4)


# The rule, by its lengths.


def update(client: int, length: float) -> Update:
    return Update(client, {"u": np.array([length, 0.0])}, 1, 1, 0.0)


def admit(admission: UpdateLengths, lengths: list[float], round_: int = 1, x: Any = X) -> list[int]:
    """Play a round; return the clients that are refused."""
    measured = admission.measure([update(c, length) for c, length in enumerate(lengths)], x)
    refused = [refusal.client for refusal in admission.refused(measured)]
    admission.accept(measured, [c for c in range(len(lengths)) if c not in refused], round_)
    return sorted(refused)


@pytest.mark.parametrize("count", [3, 4, 20])
@pytest.mark.parametrize("giant", [1e18, 3e3])
def test_a_giant_is_refused_in_the_first_round(count: int, giant: float) -> None:
    lengths = [1.0 + c / 10 for c in range(count)]
    lengths[1] = giant
    assert admit(UpdateLengths(["u"], 1000.0), lengths) == [1]
    assert admit(UpdateLengths(["u"], 0.0), lengths) == [], "no limit"
    assert admit(UpdateLengths(["u"], 1e30), lengths) == []


def test_a_giant_that_comes_alone_is_refused_once_others_are_known() -> None:
    admission = UpdateLengths(["u"], 1000.0)
    for round_ in range(1, 4):
        assert admit(admission, [1.0], round_) == []
    assert admit(admission, [1e6], 4) == [0]
    assert admit(admission, [1e6, 1.0], 4) == [0]
    assert admit(admission, [1e6, 1e6], 4) == [0, 1]
    for round_ in range(5, 9):  # step by step does not help either, while others take their turns
        assert admit(admission, [900.0], round_) == []
        assert admit(admission, [1.0], round_) == []
    assert admit(admission, [900.0 * 900.0], 9) == [0]


def test_what_most_of_a_round_does_is_the_run_s_and_no_client_s() -> None:
    admission = UpdateLengths(["u"], 1000.0)
    for round_, scale in enumerate([1.0, 1e5, 1e10, 1e15], 1):
        assert admit(admission, [scale, 2 * scale, 3 * scale, 4 * scale], round_) == []
    assert admit(admission, [1.0, 1e20, 1.0, 1.0]) == [1]


def test_updates_may_vanish_and_come_back() -> None:
    admission = UpdateLengths(["u"], 1000.0)
    assert admit(admission, [5.0, 6.0, 7.0]) == []
    for round_ in range(2, 60):
        assert admit(admission, [10.0**-round_] * 3, round_) == []
    assert admit(admission, [1e-15, 0.0, 7.0], 61) == [], "as after a reset of states"
    assert admit(admission, [0.0, 0.0, 4e3], 62) == []
    assert admit(admission, [0.0, 0.0, 0.0], 63) == []
    assert admit(admission, [0.0, 0.0, 1e6], 64) == [2]


def test_what_is_no_longer_than_the_model_is_used_whatever_the_others_send() -> None:
    assert admit(UpdateLengths(["u"], 1000.0), [1e-9, 1e-9, 1e-9, 99.0], x=np.array([100.0])) == []
    assert admit(UpdateLengths(["u"], 1000.0), [1e-9, 1e-9, 1e-9, 101.0], x=np.array([100.0])) == [
        3
    ]
    assert admit(UpdateLengths(["u"], 1000.0), [1e-9, 1e-9, 1e-9, 0.9], x=np.zeros(4)) == []


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(1.0, 999.0), min_size=1, max_size=40), min_size=1, max_size=12))
def test_lengths_within_the_ratio_of_each_other_are_never_refused(
    rounds: list[list[float]],
) -> None:
    admission = UpdateLengths(["u"], 1000.0)
    for round_, lengths in enumerate(rounds, 1):
        assert admit(admission, lengths, round_, np.zeros(1)) == []


@settings(max_examples=60)
@given(st.permutations([1.0, 1.5, 2.0, 0.0, 3e5, 1e17, 0.5]))
def test_the_order_of_clients_does_not_matter(lengths: list[float]) -> None:
    admission = UpdateLengths(["u"], 1000.0)
    refused = admit(admission, list(lengths))
    assert sorted(lengths[c] for c in refused) == [3e5, 1e17]
    assert sorted(admission.saved()["recent"][0][-4:]) == [0.5, 1.0, 1.5, 2.0]


def test_vectors_of_different_scales_are_not_compared() -> None:
    def two(client: int, u: float, dc: float) -> Update:
        return Update(client, {"u": np.array([u]), "dc": np.array([dc])}, 1, 1, 0.0)

    admission = UpdateLengths(["u", "dc"], 1000.0)
    some = [two(0, 1.0, 1e6), two(1, 1.0, 1e6), two(2, 1.0, 1e6), two(3, 1e6, 1e6)]
    assert [r.client for r in admission.refused(admission.measure(some, X))] == [3]


def test_memory_is_bounded() -> None:
    admission = UpdateLengths(["u"], 1000.0)
    for round_ in range(50):
        admit(admission, [1.0 + c for c in range(100)], round_)
    shapes = {name: array.shape for name, array in admission.saved().items()}
    assert shapes == {"recent": (1, REMEMBERED), "largest": (1,), "longest": (NAMED, 5)}


# Runs.


def tampered(name: str, factor: Any) -> Algorithm:
    """Return an algorithm whose clients' vectors are multiplied, or that raise if the factor is NaN."""
    known = registry.ALGORITHMS[name]
    honest: Any = known.client

    class Tampered(honest):  # type: ignore[misc]
        def send(self, sent: str, vector: Tensor, feedback: bool = True) -> Tensor:
            by = factor(self.round, self.client)
            if math.isnan(by):
                raise RuntimeError("out of luck")
            if by == math.inf:  # as long as it may be
                vector = vector * (1e17 / float(vector.double().norm()))
                by = 1.0
            seen: Tensor = super().send(sent, vector * by if by != 1 else vector, feedback)
            return seen

    return replace(known, client=Tampered)


def run(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, factor: Any, **more: Value
) -> Path:
    monkeypatch.setitem(registry.ALGORITHMS, name, tampered(name, factor))
    keys = KEYS | {"algorithm": name, "results_dir": str(place), "run_name": "run"} | more
    config = parse_run_config(kebab(keys))
    try:
        return server_app.run(InlineGrid(client_app.app, config.flat(), 2), config).path
    finally:
        monkeypatch.undo()


def once(round_: int, value: float, client: int = HOSTILE) -> Any:
    return lambda r, c: value if (r, c) == (round_, client) else 1.0


@pytest.mark.parametrize("round_", [1, 3])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcomgate", "mifa", "fedbcgd-plus"])
def test_one_giant_message_costs_its_client_that_round(
    name: str, round_: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    giant = run(tmp_path / "giant", monkeypatch, name, once(round_, math.inf))
    assert f"Client {HOSTILE} failed: its '" in caplog.text
    assert "1e+17, which is more than max-update-ratio = 1000 times the usual" in caplog.text
    failed = run(tmp_path / "failed", monkeypatch, name, once(round_, math.nan))
    assert (giant / "model.safetensors").read_bytes() == (failed / "model.safetensors").read_bytes()
    seen = [(r["clients"], r["failures"], r["train_loss"]) for r in read_rounds(giant)]
    assert seen == [(r["clients"], r["failures"], r["train_loss"]) for r in read_rounds(failed)]
    assert [failures for _, failures, _ in seen] == [int(r == round_) for r in range(1, 5)]


def test_a_run_that_is_killed_and_goes_on_refuses_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one client a round, what is usual is known from the rounds before the checkpoint alone."""
    keys: dict[str, Value] = {"clients_per_round": 1, "num_rounds": 8, "checkpoint_every": 2}

    def giants(round_: int, client: int) -> float:
        return math.inf if round_ == 6 and client % 2 == 0 else 1.0

    whole = run(tmp_path / "whole", monkeypatch, "fedavg", giants, **keys)
    assert read_rounds(whole)[5]["failures"] > 0
    with pytest.MonkeyPatch.context() as patch:
        in_round(5)(patch)
        killed(lambda: run(tmp_path / "killed", monkeypatch, "fedavg", giants, **keys))
    resumed = run(tmp_path / "killed", monkeypatch, "fedavg", giants, resume=True, **keys)
    assert (whole / "model.safetensors").read_bytes() == (
        resumed / "model.safetensors"
    ).read_bytes()
    strip = [{**r, "wall_seconds": 0} for r in read_rounds(whole)]
    assert strip == [{**r, "wall_seconds": 0} for r in read_rounds(resumed)]


def later_parts(strategy: FederatedStrategy[Any]) -> Arrays:
    """Return what a strategy saves of lengths and attendance, which old checkpoints do not have."""
    saved = strategy.saved()
    return {n: a for n, a in saved.items() if n.partition(".")[0] in ("admission", "attendance")}


def test_an_old_checkpoint_without_lengths_is_restored() -> None:
    config = parse_run_config(kebab(KEYS))
    problem = make_problem(config)
    used, new, other = (make_strategy(config, problem) for _ in range(3))
    for _ in run_rounds(InlineGrid(client_app.app, config.flat()), used, problem, config):
        pass
    saved = used.saved()
    old = {name: array for name, array in saved.items() if name not in later_parts(used)}
    assert len(old) == len(saved) - 5
    new.restore(old)
    np.testing.assert_array_equal(new.x, used.x)
    np.testing.assert_equal(later_parts(new), later_parts(other))
    with pytest.raises(AssertionError):
        np.testing.assert_equal(later_parts(other), later_parts(used))
    other.restore(saved)
    np.testing.assert_equal(later_parts(other), later_parts(used))
    with pytest.raises(ValueError, match="lengths of updates"):
        other.restore(saved | {"admission.largest": np.zeros(3)})


def test_a_divergence_names_the_longest_updates_and_the_round_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Value] = {"max_update_ratio": 0.0, "num_rounds": 9, "model": "mlp-10-10"}
    with pytest.raises(DivergedError, match="lower lr") as caught:
        run(tmp_path, monkeypatch, "fedavg", once(3, math.inf), **keys)
    assert caught.value.since == 3
    assert f"client {HOSTILE} in round 3 ('u': 1e+17, " in str(caught.value)
    assert str(caught.value).count("in round") == 1 + NAMED


def test_no_client_is_suspected_where_all_diverge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Value] = {"dataset": "quadratic", "lr": 30.0, "num_rounds": 50}
    with pytest.raises(DivergedError, match="lower lr") as caught:
        run(tmp_path, monkeypatch, "fedavg", lambda r, c: 1.0, **keys)
    assert caught.value.since == 0
    rounds = read_rounds(tmp_path / "run")
    assert len(rounds) > 5
    assert all(r["failures"] == 0 for r in rounds)


def test_a_run_diverges_also_if_the_last_finite_updates_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(round_: int, client: int) -> float:
        return 1.0 if round_ < 3 else math.inf if client < 2 else 1e38

    with pytest.raises(DivergedError, match="No client's update is finite any more in round 3"):
        run(tmp_path, monkeypatch, "fedavg", overflow)


def test_one_client_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A giant is repeated with another client; giants alone are a divergence."""
    keys: dict[str, Value] = {"clients_per_round": 1, "num_rounds": 8}
    directory = run(
        tmp_path / "one", monkeypatch, "fedavg",
        lambda r, c: math.inf if r > 3 and c < 10 else 1.0, **keys, round_retries=30,
    )  # fmt: skip
    rounds = read_rounds(directory)
    assert [r["clients"] for r in rounds] == [1] * 8
    assert sum(r["failures"] for r in rounds) > 0
    with pytest.raises(
        DivergedError, match="Every update of round 4 was more than max-update-ratio"
    ):
        run(
            tmp_path / "all", monkeypatch, "fedavg",
            lambda r, c: math.inf if r > 3 else 1.0, **keys,
        )  # fmt: skip


def test_with_central_privacy_lengths_and_attendance_are_nobody_s_business() -> None:
    def strategy(where: str) -> Any:
        config = parse_run_config(kebab(KEYS | {"dp__clip": 1.0, "dp__where": where}))
        return make_strategy(config, make_problem(config))

    central, local = strategy("server"), strategy("client")
    assert central.admission.lengths is None
    assert central.attendance is None
    assert not [name for name in central.saved() if name.startswith(("admission", "attendance"))]
    assert local.admission.lengths is not None
    assert local.attendance is not None


@pytest.mark.parametrize("every", [1, 2])
def test_a_diverged_run_resumes_from_before_the_update_that_ruined_it(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Value] = {
        "num_rounds": 9, "model": "mlp-10-10", "checkpoint_every": every, "eval_every": 9,
    }  # fmt: skip
    giant = once(4, math.inf)
    with pytest.raises(DivergedError):
        run(tmp_path, monkeypatch, "fedavg", giant, max_update_ratio=0.0, **keys)
    assert (tmp_path / "run" / "checkpoint" / "round-0000004.safetensors").is_file()
    resumed = run(tmp_path, monkeypatch, "fedavg", giant, resume=True, **keys)
    assert "was written after what made the run diverge" in caplog.text
    failed = run(tmp_path / "failed", monkeypatch, "fedavg", once(4, math.nan), **keys)
    model = (resumed / "model.safetensors").read_bytes()
    assert model == (failed / "model.safetensors").read_bytes()
    assert [r["round"] for r in read_rounds(resumed)] == list(range(1, 10))
    assert not (resumed / "diverged.txt").exists()


@pytest.mark.parametrize(
    ("every", "since", "said"),
    [
        (
            1,
            7,
            "diverged from round 7 on, and all its checkpoints are from then",
        ),  # of rounds 7 and 8
        (1, 2, "diverged from round 2 on, and all its checkpoints are from then"),
        (5, 0, "diverged, and its only checkpoint may be from after that began"),
        (1, 8, ""),
        (1, 0, ""),
    ],
)
def test_a_diverged_run_resumes_from_before_it_began_or_not_at_all(
    every: int, since: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting again would drop all rounds, and diverge again."""
    keys: dict[str, Value] = {"checkpoint_every": every, "dataset": "quadratic", "num_rounds": 8}

    def go(**more: Value) -> Path:
        return run(tmp_path, monkeypatch, "fedavg", lambda r, c: 1.0, **keys | more)

    directory = go()
    note = {"message": "", "since": since, "run": read_manifest(directory).identity}
    (directory / "diverged.txt").write_text(seal(note))
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    again: dict[str, Value] = {"num_rounds": 12, "max_update_ratio": 10.0, "resume": True}
    if not said:
        assert [r["round"] for r in read_rounds(go(**again))] == list(range(1, 13))
        assert (directory / "checkpoint" / "round-0000008.safetensors.unusable-1").is_file()
        return
    with pytest.raises(ConfigError, match=f"{said}.*: start a new run") as refused:
        go(**again)
    assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_what_was_refused_leaves_no_trace_in_what_is_usual() -> None:
    config = parse_run_config(kebab(KEYS))
    x = np.ones(2)

    def lengths_after(lengths: dict[int, float]) -> Any:
        ledger = StateLedger(Place(), keeps_state=False, attempts=1)
        layout = Layout((2,), (2,))
        admission = Admission(config, ("u",), layout, ledger, UpdateLengths(["u"], 1000.0))
        sent = [update(client, length) for client, length in lengths.items()]
        sent = [replace(u, arrays=u.arrays | {"buffers": np.zeros(0)}) for u in sent]
        used, refusals = admission.admit(sent, x)
        assert len(used) + len(refusals) == len(sent)
        admission.accept(used, 1)
        assert admission.lengths is not None
        return admission.lengths.saved()

    honest = {0: 1.0, 1: 2.0, 2: 3.0, 3: 7.0}
    with_giants = lengths_after(honest | {4: 1e12, 5: 1e13})
    for name, array in lengths_after(honest).items():
        np.testing.assert_array_equal(with_giants[name], array, err_msg=name)
