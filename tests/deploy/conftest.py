"""The federation that tests of this folder share: they are one xdist group, and run one after the other."""

from collections.abc import Iterator

import pytest

from deploy.processes import Federation
from tests.conftest import wait_for
from tests.support.federations import NODES, CalmFederation, has_nginx, node_config


@pytest.fixture(scope="package")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink with TLS behind a proxy, which lets registered nodes in, and two of those.

    It ends with the tests of this folder: waiting, its processes take a tenth of a processor.
    """
    home = tmp_path_factory.mktemp("secure")
    with CalmFederation(home, secure=True, proxied=has_nginx()) as federation:
        for place in range(NODES):
            federation.start_node(place, node_config(federation, place))
        wait_for(lambda: federation.log_of().count("Activated node_id") == NODES, "the nodes")
        yield federation
