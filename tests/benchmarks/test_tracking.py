"""The table of gradient tracking: every compressor is in it, and its cells say what happened."""

import pytest

from benchmarks import tracking
from fedapp.compression import COMPRESSORS
from fedapp.parsing import parse_run_config
from fedapp.tables import Value


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_has_settings_that_the_config_allows(name: str) -> None:
    found = list(tracking.settings(name))
    assert 1 <= len(found) <= 2
    for _, compressor in found:
        for keys in tracking.cases(tracking.KEYS | compressor, coarse=True):
            assert parse_run_config(keys).compressor == name
    assert len({str(keys) for _, keys in found}) == len(found)


def test_a_coarse_setting_has_the_larger_q() -> None:
    (_, coarse), (_, fine) = tracking.settings("qsgd")
    q = [tracking.variance(tracking.KEYS | keys) for keys in (coarse, fine)]
    assert q == pytest.approx([30**0.5, 30 / 64])


def test_a_run_ends_when_it_has_diverged_or_is_exact() -> None:
    shared: dict[str, Value] = {"algorithm": "fedgate", "clients-per-round": 10, "num-rounds": 100}
    exact = tracking.distance(tracking.KEYS | shared)
    assert exact < tracking.EXACT
    coarse: dict[str, Value] = {"compressor": "randk", "fedgate.damping": 1.0}
    assert tracking.in_words(tracking.distance(tracking.KEYS | shared | coarse)) == "diverges"
    assert tracking.in_words(exact) == f"{exact:.0e}"
