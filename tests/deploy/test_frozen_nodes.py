"""A real node that makes another network than the server: each of its messages is served by a new process."""

from pathlib import Path

import pytest

from deploy.processes import assignments
from tests.conftest import RunInline, kebab, wait_for
from tests.support.federations import CalmFederation
from tests.support.frozen import FROZEN, KEYS
from tests.support.runs import trained

pytestmark = pytest.mark.slow
RUN = KEYS | {"num_rounds": 2}  # in the second, nothing frozen is sent


def test_a_node_of_another_version_receives_what_is_frozen_once(
    run_inline: RunInline, tmp_path: Path
) -> None:
    (tmp_path / "federation").mkdir()
    with CalmFederation(tmp_path / "federation") as federation:
        for place in range(2):
            home = federation.home / f"node-{place}"
            home.mkdir(parents=True, exist_ok=True)
            if place == 1:
                (home / "other-version").touch()
            federation.start_node(place, {"partition-id": place, "num-partitions": 2})
        wait_for(lambda: federation.log_of().count("Activated node_id") == 2, "the nodes")
        config = assignments(kebab(RUN) | {"results-dir": str(tmp_path), "run-name": "deployed"})
        shown, status = federation.run(config)
    assert status["status"] == "finished:completed", shown
    inline = run_inline(**RUN, run_name="inline")
    (model, lines), (same, expected) = trained(tmp_path / "deployed"), trained(inline)
    expected[0]["downlink_bytes"] += FROZEN
    assert lines == expected
    assert all(model[name].tobytes() == same[name].tobytes() for name in same)
