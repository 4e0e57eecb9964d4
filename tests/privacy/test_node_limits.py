"""What a node demands before its clients release anything: noise, a place to count, and no text of exceptions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedapp import client_app, wire
from fedapp.client import Client
from fedapp.data import Facts
from fedapp.privacy.budget import LEDGER, LEDGER_ID
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import kebab
from tests.support.hostile_server import KEYS, Hostile, counted
from tests.support.tabular import houses, write_csv


def test_a_node_can_demand_noise(tmp_path: Path) -> None:
    for limits in ({"dp_require": True}, {"dp_min_noise": 2.0}, {"dp_max_epsilon": 100.0}):
        server = Hostile(state_dir=str(tmp_path), **limits)
        for keys, said in (
            ({"dp__clip": 0.0}, "dp-require"),
            ({"dp__where": "server"}, "dp-require"),
            ({"dp__noise_multiplier": 0.0}, "dp-require"),
            ({"dp__noise_from": "seed"}, "noise that the server can take off"),
            ({"dp__clip": 1e-310}, "too extreme"),
        ):
            assert said in str(server.update(**keys))
        assert not isinstance(server.update(), str)
    assert "dp-min-noise = 5" in str(Hostile(state_dir=str(tmp_path), dp_min_noise=5).update())


Anything = st.one_of(
    st.booleans(), st.integers(-3, 10**6), st.floats(), st.floats(0, 10), st.text(max_size=5)
)
DP_KEYS: dict[str, st.SearchStrategy[Any]] = {
    "dp.clip": st.one_of(st.sampled_from([0.0, 0.5, 5e-324, 1e-300, 1e-40, 1e-38, 1e300]), Anything),
    "dp.noise-multiplier": st.one_of(st.sampled_from([0.0, 2.999, 3.0, 1e-300, 1e300]), Anything),
    "dp.where": st.one_of(st.sampled_from(["client", "server"]), Anything),
    "dp.delta": Anything,
    "dp.noise-from": st.one_of(st.sampled_from(["system", "seed"]), Anything),
    "dp.max-epsilon": Anything,
    **{f"{prefix}{key}": Anything for prefix in ("dp-", "dp.") for key in ("min-noise", "max-releases", "require")},
    "state-dir": st.sampled_from(["", "/nowhere", "/tmp"]),
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries({}, optional=DP_KEYS))
def test_no_run_config_undercuts_a_node(tmp_path_factory: Any, keys: dict[str, Value]) -> None:
    directory = tmp_path_factory.getbasetemp() / "floors"
    directory.mkdir(exist_ok=True)
    for name in (LEDGER, LEDGER_ID):
        (directory / name).unlink(missing_ok=True)
    server = Hostile(state_dir=str(directory), dp_min_noise=3.0, dp_max_releases=2)
    own = {key.replace(".", "__").replace("-", "_"): v for key, v in keys.items()}
    with np.errstate(all="ignore"):
        answers = [server.update(**own) for _ in range(4)]
    given_ = [answer for answer in answers if not isinstance(answer, str)]
    assert len(given_) <= 2
    for answer in given_:  # lr is next to nothing: what there is, is noise
        clip = float(keys.get("dp.clip", 0.5))
        assert counted(directory)["0"] >= len(given_)
        spread = answer.std(dtype=np.float64)  # the squares of tiny numbers are 0 in float32
        assert not np.isfinite(answer).all() or spread > 3 * clip * 0.7


def test_a_node_that_demands_noise_tells_nothing_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_csv(tmp_path / "houses" / "train.csv", houses(9))
    node: dict[str, Value] = {"data-dir": str(tmp_path), "state-dir": str(tmp_path / "state")}
    table: dict[str, Value] = {
        "dataset": "houses",
        "problem": "tabular-regression",
        "features": "rooms age",
        "target": "price",
        "model": "mlp-4",
        "server_data": False,
    }

    def asked(check: dict[str, Any] | None, **keys: Value) -> dict[str, Any]:
        run = kebab(KEYS | table | keys)
        context = Context(1, 1, Hostile(**node, dp_min_noise=4.0).node, RecordDict(), run)
        reply = client_app.app(Message(wire.pack_query(check), 1, "query"), context)
        return dict(reply.content.config_records["hosting"])

    for keys, said in (
        ({"dp__clip": 0.0}, "dp-require"),
        ({"dp__where": "server"}, "dp-require"),
        ({"dp__noise_multiplier": 3.0}, "dp-min-noise"),
    ):
        for check in (None, wire.ask_for_facts()):
            told = asked(check, **keys)
            assert list(told) == ["error"] and said in str(told["error"])
    assert "dp-require" in caplog.text
    told = asked(wire.ask_for_facts())
    assert told.keys() == {"range", "own-data", "problem"}
    assert "neither metrics nor facts" in told["problem"]
    # All that an honest run's query tells: whom the node hosts, and that its data can be loaded.
    facts = Facts((2,), 0, (4.0, 40.0), (2.0, 20.0))
    assert asked({"shared-data": True, **wire.facts_head(facts)}).keys() == {"range", "own-data"}


def test_no_limit_without_a_place_to_count(tmp_path: Path) -> None:
    for limits in ({"dp_require": True}, {"dp_max_releases": 3}):
        server = Hostile(**limits)
        assert "set state-dir in the node's config" in str(server.update())
        assert "set state-dir in the node's config" in str(server.update(state_dir=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dp_max_release", 3, "dp-max-release = 3"),
        ("dp_max_releases", "many", "dp-max-releases = 'many'"),
        ("dp_min_noise", -1.0, "greater than 0"),
        ("dp_min_noise", math.nan, "finite"),
        ("dp_require", "yes", "dp-require = 'yes'"),
        ("dp_delta", 2.0, "less than 1"),
    ],
)
def test_a_limit_that_is_misspelt_is_refused(
    key: str, value: Value, said: str, tmp_path: Path
) -> None:
    server = Hostile(state_dir=str(tmp_path), **{key: value})
    assert said in str(server.update())
    message = Message(RecordDict(), 1, "query")
    context = Context(1, 1, dict(server.node), RecordDict(), kebab(KEYS))
    reply = client_app.app(message, context).content
    assert said in str(reply.config_records["hosting"]["error"])


def test_every_algorithm_that_may_be_used_sends_one_vector() -> None:
    means = [a for a in ALGORITHMS.values() if a.strategy.rule_is_a_mean]
    assert len(means) > 5
    assert all(len(a.client.sends) == 1 for a in means)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": "scaffold"}, "more than one update"),
        ({"dataset": "digits", "model": "resnet20"}, "BatchNorm"),
    ],
)
def test_a_node_refuses_what_would_leave_without_noise(keys: dict[str, Value], said: str) -> None:
    """Also if the server, which should, does not."""
    assert said in str(Hostile().update(**keys))


def test_an_exceptions_text_stays_on_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise ValueError("sample 17 is a secret")

    monkeypatch.setattr(Client, "train", fail)
    server = Hostile()
    assert server.update() == "it failed: see its node's log"
    assert "secret" in caplog.text
    assert server.update(dp__clip=0.0) == "ValueError: see this node's log"
