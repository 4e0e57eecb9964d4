"""`fedapp check` with a SuperLink: it asks which nodes are online."""

import pytest

from deploy.processes import NAME, Federation
from fedapp.cli import main
from tests.support.federations import NODES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deploy")]


def test_the_nodes_of_a_federation_are_counted(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(federation.home))
    assert main(["check", "-c", "dataset=quadratic", "--superlink", NAME]) == 0
    assert f"{NODES} nodes of {NAME}" in capsys.readouterr().out
    keys = "num-clients=1 clients-per-round=1"
    assert main(["check", "-c", "dataset=quadratic", "-c", keys, "--superlink", NAME]) == 2
    assert f"{NODES} nodes are online, and num-clients = 1" in capsys.readouterr().err
