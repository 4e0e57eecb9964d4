"""What differential privacy requires of a config, and what it warns about."""

import re
import sys

import pytest

from fedapp.errors import ConfigError
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import RunInline, read_rounds
from tests.support.private import KEYS, MEANS, config_of, counted, strategy_of


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in MEANS])
def test_rules_that_are_no_mean_are_refused(name: str) -> None:
    own: dict[str, Value] = {"algorithm": name, "dataset": "digits", "clients_per_round": 8}
    with pytest.raises(ConfigError, match="choose an algorithm whose rule is a mean"):
        strategy_of(**own, local_steps=1)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"weighting": "examples"}, 'set weighting = "uniform"'),
        ({"aggregation": "median"}, 'set aggregation = "mean"'),
        ({"aggregation": "trimmed-mean"}, 'set aggregation = "mean"'),
        ({"max_update_norm": 1.0}, "set max-update-norm = 0"),
        ({"dataset": "digits", "model": "resnet20"}, 'set norm = "group"'),
        ({"dataset": "digits", "model": "logreg", "eval_train": True}, "set eval-train = false"),
        ({"dataset": "digits", "model": "logistic"}, "a network as model"),
    ],
)  # fmt: skip
def test_what_would_not_be_protected_is_refused(keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        strategy_of(**keys)
    strategy_of(**keys, dp__clip=0.0)


def test_what_is_allowed() -> None:
    strategy_of(max_update_norm=100.0, dp__where="client")  # a function of what is noised already
    strategy_of(dataset="digits", model="resnet20", norm="group")
    strategy_of(compressor="topk", error_feedback=True)


def test_without_the_accountant_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[privacy\]'"):
        strategy_of()
    strategy_of(dp__noise_multiplier=0.0)
    assert counted(strategy_of(dp__where="client").config).spent(3) > 0  # in closed form


def test_what_weakens_the_protection_is_told(
    run_inline: RunInline, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = KEYS | {"dp__noise_from": "system"}
    run_inline(**quiet)
    assert not [m for m in caplog.messages if "dp." in m]
    whole = counted(config_of()).spent(3)
    assert f"after 3 rounds epsilon = {whole:.4g} will have been spent" in capsys.readouterr().out
    for keys, said in (
        ({"dp__noise_from": "seed"}, "take the noise off again"),
        ({"dp__noise_multiplier": 0.0}, "nothing is protected"),
        ({"dp__delta": 0.2}, "well below 1/num-clients"),
    ):
        caplog.clear()
        rounds = read_rounds(run_inline(**quiet | keys))
        assert said in caplog.text
    directory = run_inline(**quiet | {"dp__noise_multiplier": 0.0})
    assert [r["epsilon"] for r in read_rounds(directory)] == [None] * 3
    assert rounds[-1]["epsilon"] < whole  # for a larger delta
