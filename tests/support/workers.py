"""Ray workers that tests share, and runs on them."""

import os
from pathlib import Path

from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationMode,
    get_authentication_mode,
)

from fedapp import server_app
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import kebab
from tests.support.sockets import listening

SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")


class TwoWorkers(RayWorkers):
    """Two workers, which leave this process's settings as they were."""

    def __init__(self) -> None:
        self.sockets_before = set(listening())
        super().__init__(2)

    def __enter__(self) -> "TwoWorkers":
        return self

    def close(self) -> None:
        super().close()
        assert not any(name in os.environ for name in SETTINGS)
        assert get_authentication_mode() == AuthenticationMode.DISABLED


def run_on(workers: RayWorkers, results: Path, **keys: Value) -> Path:
    config = parse_run_config(kebab(keys) | {"results-dir": str(results)})
    return server_app.run(RayGrid(workers, config.flat()), config).path
