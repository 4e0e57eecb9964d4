"""Secure aggregation: docs/privacy.md says for every algorithm whether its server needs only sums."""

import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import Strategy

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.wire import Update
from tests.support.private import config_of, strategy_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"


def verdicts() -> dict[str, str]:
    table = DOCUMENT.read_text().split("## Secure aggregation")[1]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.MULTILINE)
    return {name: verdict for names, verdict in rows for name in re.findall(r"`([^`]+)`", names)}


def test_the_table_names_every_algorithm() -> None:
    assert sorted(verdicts()) == sorted(ALGORITHMS)
    compressed = {name for name, a in ALGORITHMS.items() if a.compressor != "none"}
    told = {name for name, verdict in verdicts().items() if "compressor" in verdict}
    assert told == compressed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_is_right_about_sums(name: str) -> None:
    """Give two servers updates with the same sums; only where these are all that counts do they agree."""
    keys: dict[str, Value] = {"algorithm": name, "dataset": "digits", "model": "mlp-20"}
    keys |= {"local_steps": 1, "clients_per_round": 8, "dp__clip": 0.0, "dtype": "float64"}
    one, other = strategy_of(**keys), strategy_of(**keys)
    rng = np.random.default_rng(1)
    for round_ in (1, 2):
        for strategy in (one, other):
            strategy.ledger.begin(round_, 0)
            strategy.ledger.accepted.put(range(8), strategy.ledger.tag)
            strategy.on_cohort(range(8), round_, 0)
        group = getattr(one, "group", dict.fromkeys(range(8), 0))
        vectors = [
            {
                n: rng.normal(size=sum(p.size for p in one.sent_pieces(c)))
                for n in one.algorithm.client.sends
            }
            for c in range(8)
        ]
        means = [
            {n: np.mean([v[n] for d, v in enumerate(vectors) if group[d] == group[c]], axis=0) for n in one.algorithm.client.sends}
            for c in range(8)
        ]  # fmt: skip
        one.aggregate([Update(c, v, 1, 1, 0.0) for c, v in enumerate(vectors)])
        other.aggregate([Update(c, v, 1, 1, 0.0) for c, v in enumerate(means)])
    mine, theirs = one.saved(), other.saved()
    assert mine.keys() == theirs.keys()
    same = all(np.allclose(mine[k], theirs[k], atol=1e-9) for k in mine)
    verdict = verdicts()[name]
    assert same == (not verdict.startswith("no"))
    assert (len(set(group.values())) > 1) == verdict.startswith("per group")


def test_flowers_secagg_cannot_be_driven_from_here() -> None:
    """What docs/privacy.md says of Flower; when this fails, look again."""
    config = config_of()
    grid = InlineGrid(client_app.app, config.flat())
    context = Context(1, 0, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(grid, context)
    assert not hasattr(Strategy, "configure_fit")
    strategy = make_strategy(config, make_problem(config))
    strategy.hosting.update(grid)
    how = ConfigRecord()
    [message] = strategy.configure_train(1, strategy.arrays(), how, grid)
    masked = ClientApp(mods=[secaggplus_mod])
    masked.train()(lambda message, _: message)
    with pytest.raises(KeyError, match="secaggplus"):
        masked(message, context)
