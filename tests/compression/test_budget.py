"""A budget of bytes: the finest setting whose payload fits, and the error that it comes with."""

import numpy as np
import pytest

from fedapp.building import make_strategy
from fedapp.compression import COMPRESSORS, Compressor, PayloadError, make_compressor
from fedapp.compression.budgeted import Budgeted
from fedapp.compression.payload import seal
from fedapp.errors import ConfigError
from fedapp.models.layout import Piece
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.payloads import body_of
from tests.support.vectors import gaussian, generator, same_bits

KNOBS = [name for name, kind in COMPRESSORS.items() if len(kind().variants()) > 1]
QUADRATIC: dict[str, Value] = {
    "dataset": "quadratic", "quadratic__dim": 2000, "num_clients": 2, "clients_per_round": 2,
    "local_steps": 1, "lr": 0.05, "num_rounds": 2,
}  # fmt: skip
HEADER = 128  # an array's header, as NumPy writes it


def error(compressor: Compressor, limit: int) -> float:
    v = gaussian(4000)
    payload, sent = Budgeted(inner=compressor, most_bytes=limit).transmit(v, generator())
    assert len(payload) <= limit
    return float(((sent - v) ** 2).sum())


@pytest.mark.parametrize("name", [name for name in KNOBS if name != "lowrank"])
def test_payloads_fit_and_more_bytes_have_less_error(name: str) -> None:
    errors = [error(make_compressor(name), limit) for limit in (600, 1500, 4000)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1]


@pytest.mark.parametrize("name", KNOBS)
def test_variants_go_from_fine_to_coarse_and_are_allowed(name: str) -> None:
    variants = make_compressor(name).variants()
    assert len(variants) <= 256
    nominal = [variant.nominal_bits(4000) for variant in variants]
    assert nominal == sorted(nominal, reverse=True)
    kind = type(variants[0])
    for variant in (variants[0], variants[-1]):  # within the bounds of the keys
        kind.model_validate({key: getattr(variant, key) for key in kind.model_fields})


@pytest.mark.parametrize("name", KNOBS)
def test_a_payload_is_decoded_and_most_of_the_budget_is_used(name: str) -> None:
    v, compressor = gaussian(4000), Budgeted(inner=make_compressor(name), bits=17)
    payload, sent = compressor.transmit(v, generator(3))
    assert same_bits(compressor.decode(payload, 4000), sent)
    assert payload == compressor.encode(v, generator(3))
    fine = Budgeted(inner=make_compressor(name), bits=1e6).encode(v, generator(3))
    assert len(payload) > 0.5 * min(17 * 4000 / 8, len(fine))
    assert compressor.nominal_bits(4000) == 17 * 4000
    assert compressor.variance(4000) >= 0


def test_the_one_chosen_is_the_finest_that_fits() -> None:
    """The oracle tries them all."""
    v = gaussian(1000)
    for limit in (150, 400, 1100):
        budgeted = Budgeted(inner=make_compressor("qsgd"), most_bytes=limit)
        fitting = [
            number
            for number, variant in enumerate(budgeted.settings)
            if len(variant.encode(v, generator(5))) + 1 <= limit
        ]
        assert body_of(budgeted, v, 5)[0] == fitting[0]


def test_what_cannot_fit_is_refused_in_a_sentence() -> None:
    for name, limit in (("sign", 40), ("float16", 1000), ("dithered", 10)):
        with pytest.raises(ConfigError, match="raise uplink-budget"):
            Budgeted(inner=make_compressor(name), most_bytes=limit).encode(
                gaussian(1000), generator()
            )


def test_a_setting_that_there_is_not_is_refused() -> None:
    compressor = Budgeted(inner=make_compressor("uniform"), bits=4)
    body = bytearray(body_of(compressor, gaussian(1000)))
    body[0] = 16
    with pytest.raises(PayloadError, match="setting"):
        compressor.decode(seal(compressor.codec, 1000, bytes(body), compressor.key), 1000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_to_its_budget(algorithm: str, run_inline: RunInline) -> None:
    if ALGORITHMS[algorithm].needs.network:
        pytest.skip("looks into a network")
    keys = QUADRATIC | {"algorithm": algorithm, "compressor": "dithered", "uplink_budget": "1.2 kB"}
    vectors = len(ALGORITHMS[algorithm].client.sends)
    for record in read_rounds(run_inline(**keys)):
        assert record["failures"] == 0
        assert record["uplink_bytes"] <= 2 * (1200 + (vectors + 1) * HEADER)
        assert record["uplink_nmse"] > 0


def test_bits_are_for_every_number(run_inline: RunInline) -> None:
    keys = QUADRATIC | {"compressor": "dithered", "uplink_budget": "3 bits"}
    record = read_rounds(run_inline(**keys))[-1]
    assert 0.9 * 2 * 750 <= record["uplink_bytes"] - 2 * 2 * HEADER <= 2 * 750
    assert record["uplink_bits_nominal"] == 2 * 3 * 2000


def test_the_record_has_the_error_of_compression(run_inline: RunInline) -> None:
    keys = QUADRATIC | {"compressor": "dithered", "dithered__nmse": 0.25}
    assert read_rounds(run_inline(**keys))[-1]["uplink_nmse"] == pytest.approx(0.25, rel=0.1)
    assert "uplink_nmse" not in read_rounds(run_inline(**QUADRATIC))[-1]
    private: dict[str, Value] = {"dp__clip": 1.0, "dp__where": "client", "dp__noise_from": "seed"}
    assert "uplink_nmse" not in read_rounds(run_inline(**keys, **private))[-1]


def test_a_run_that_cannot_fit_ends_before_it_begins() -> None:
    for keys, advice in (
        ({"compressor": "sign", "uplink_budget": "100 B"}, "raise uplink-budget"),
        ({"compressor": "dithered", "uplink_budget": "20 B"}, "raise uplink-budget"),
        ({"uplink_budget": "1 kB"}, "set compressor"),
        (
            {"algorithm": "fedbcgd", "compressor": "dithered", "uplink_budget": "40 B"},
            "raise uplink-budget",
        ),
    ):
        with pytest.raises(ConfigError, match=advice):
            make_strategy(kebab({**QUADRATIC, **keys}))
    make_strategy(kebab({**QUADRATIC, "compressor": "sign", "uplink_budget": "1.2 bits"}))


@pytest.mark.parametrize("text", ["50", "kB", "-1 kB", "0 B", "1e3 B", "50 KB", "inf B", "2 bytes"])
def test_budgets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="50 kB"):
        parse_run_config({"uplink-budget": text})


def test_a_copy_for_other_tensors_has_its_own_settings_and_key() -> None:
    one = Budgeted(inner=make_compressor("dithered"), bits=16).for_pieces((Piece(100, 10),))
    one.encode(gaussian(100), generator())
    other = one.for_pieces((Piece(60, 6),))
    assert other.key != one.key
    assert other.decode(other.encode(gaussian(60), generator()), 60).shape == (60,)
    plain = make_compressor("dithered")
    plain.encode(gaussian(10), generator())
    assert plain.for_pieces((Piece(10, 5),)).key != plain.key


def test_neither_tries_nor_budget_change_what_a_setting_gives() -> None:
    v = gaussian(500)
    compressor = Budgeted(inner=make_compressor("qsgd"), most_bytes=300)
    number, _, _ = compressor.quantize(v, generator(2))
    plain = compressor.settings[number]
    expected = plain.dequantize(*plain.quantize(v, generator(2)))
    assert np.array_equal(compressor.transmit(v, generator(2))[1], expected)
