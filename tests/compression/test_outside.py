"""A compressor from outside, with its own keys: the same bits on all engines, and what is refused."""

from pathlib import Path

import pytest

from fedapp.compression import COMPRESSORS
from fedapp.engine.ray_workers import RayWorkers
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.commands import fedapp
from tests.support.runs import assert_same
from tests.support.workers import run_on

HOME = "tests.compression.outside.signs"
KEYS: dict[str, Value] = {
    "compressor": f"{HOME}:ScaledSigns",
    "model": "logreg",
    "num_clients": 5,
    "clients_per_round": 3,
    "num_rounds": 4,
    "error_feedback": True,
}
SENT = 3 * (650 + 4 + 128)  # bytes of the signs and their scales, without the frame


def test_its_keys_come_from_the_command_line_or_from_options(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "scaled-signs" not in COMPRESSORS
    usual, own = run_inline(**KEYS), run_inline(**KEYS, options="scaled-signs.share=0.3")
    same = run_inline(**KEYS, **{"scaled-signs__share": 0.3})
    assert_same(own, same)
    losses = [read_rounds(run)[-1]["test_loss"] for run in (usual, own)]
    assert losses[0] != losses[1]
    values = " ".join(f"{k}={_toml(v)}" for k, v in kebab(KEYS).items())
    arguments = ["-c", f'{values} scaled-signs.share=0.3 run-name="typed"']
    out = ["--engine", "inline", "--out", str(tmp_path)]
    assert fedapp(monkeypatch, "run", *out, *arguments) == 0
    assert_same(own, tmp_path / "typed")


def _toml(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def test_bytes_are_those_that_are_sent(run_inline: RunInline) -> None:
    for line in read_rounds(run_inline(**KEYS)):
        frame = line["uplink_bytes"] - SENT - 3 * 128  # the last are those of empty buffers
        assert frame % 3 == 0 and 0 < frame / 3 < 32
        assert line["uplink_bits_nominal"] == 3 * (2 * 650 + 32)
        assert line["failures"] == 0


def test_it_is_resumed_with_what_it_lost(run_inline: RunInline) -> None:
    whole = run_inline(nodes=2, **KEYS, run_name="whole")
    halves = KEYS | {"run_name": "halves", "checkpoint_every": 1}
    run_inline(**halves | {"num_rounds": 2})
    assert_same(whole, run_inline(**halves, resume=True))


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_the_same_bits_on_ray(workers: RayWorkers, run_inline: RunInline, tmp_path: Path) -> None:
    keys = KEYS | {"options": "scaled-signs.share=0.3"}
    there = run_on(workers, tmp_path / "ray", **keys)
    assert_same(there, run_inline(**keys))


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("ScaledSigns", {"options": "scaled-signs.share=1.5"}, "scaled-signs.share = 1.5 is not"),
        ("ScaledSigns", {"options": "scaled-signs.shore=1"}, "did you mean 'scaled-signs.share'"),
        ("LowCodec", {}, "has codec = 3: choose one from 128 to 255"),
        ("Incomplete", {}, "is not complete: add name, dequantize, nominal_bits, parse"),
        ("Taken", {}, "names its table topk, which fedapp has already"),
        ("np", {}, "does not name a class derived from fedapp.Compressor"),
        ("absent", {}, "has nothing named absent"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    name: str, more: dict[str, Value], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_run_config(kebab(KEYS | more | {"compressor": f"{HOME}:{name}"}))
