"""`flwr run` on a SuperLink of the tests' own: the same bits as inline, and mistakes told.

FedCOMGATE is compared in the example project of a table.
"""

import json
from pathlib import Path

import pytest

from deploy.processes import Federation
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.federations import simulated
from tests.support.runs import assert_same

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flwr")]
SIGNS, SHARE = "tests.compression.outside.signs:ScaledSigns", "scaled-signs.share=0.3"


@pytest.mark.parametrize(
    ("keys", "nodes"),
    [
        (  # error feedback; nodes keep a model; all that clients evaluate and compute with; a user's
            # model and compressor
            {
                "client_optimizer": "adam",
                "optimizer__state": "keep",
                "error_feedback": True,
                "downlink": "grid",
                "grid__keep": 2,
                "server_data": False,
                "eval_clients": "0.5",
                "test_share": 0.2,
                "eval_finetune": 2,
                "lr": 0.01,
                "warmup_rounds": 2,
                "clip_gradient": 0.5,
                "augmentation": "resize-crop",
                "precision": "bf16",
                "device": "auto",
                "model": "tests.models.outside.networks:Tied",
                "compressor": SIGNS,
                "options": SHARE,
            },
            3,
        ),
        (  # the server's memory, clients that come back; a user's problem
            {
                "problem": "tests.problems.outside.problems:Prices",
                "algorithm": "gradma",
                "compressor": "topk",
            },
            2,
        ),
        # products of rows that are longer than those multiplied in float64
        ({"algorithm": "gradma", "model": "mlp-200", "seed": 3}, 2),
    ],
)
def test_the_same_bits_as_inline(
    keys: dict[str, Value],
    nodes: int,
    simulation: Federation,
    run_inline: RunInline,
    tmp_path: Path,
) -> None:
    values = kebab(keys | {"num_rounds": 4})
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    words = f'{config} results-dir="{tmp_path}" run-name="simulated"'
    shown, status = simulated(simulation, words, nodes)
    assert status["status"] == "finished:completed", shown
    assert f"Results: {tmp_path}/simulated" in shown
    directory, inline = tmp_path / "simulated", run_inline(**keys, num_rounds=4)
    assert len(read_rounds(directory)) == 4
    assert_same(directory, inline)


def test_a_mistake_ends_the_run_as_failed_without_a_traceback(simulation: Federation) -> None:
    shown, status = simulated(simulation, "clients-per-round=21")
    assert status["status"] == "finished:failed"
    assert "set it to at most num-clients = 20." in shown
    assert "Traceback" not in shown


def test_an_error_in_a_user_s_code_is_a_sentence_and_its_traceback(simulation: Federation) -> None:
    model = 'model="tests.models.outside.networks:BrokenForward"'
    shown, status = simulated(simulation, model)
    assert status["status"] == "finished:failed"
    told = shown.index("raised RuntimeError while computing its outputs: see the traceback.")
    cause = shown.index("shapes cannot be multiplied")
    assert told < shown.index("Traceback (most recent call last)") < cause
    assert shown.count("Traceback (most recent call last)") == 1
