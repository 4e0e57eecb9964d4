"""A private Ray for this process alone: it listens on loopback, and its servers ask for a token.

Whoever may talk to Ray's processes may run code in them. By default they listen on all interfaces and
ask for nothing. Ray has no arguments for either. It reads them from the environment: some of it when it is
imported, so they are set in its modules too, and the processes that it starts inherit the rest. The
environment is as it was once Ray has started, and Ray's modules once it has stopped, so that a program
may use another Ray afterwards.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

AUTH_MODE = "RAY_AUTH_MODE"


class OwnRay:
    """Ray on this machine, started with options of `ray.init`; `stop` ends it."""

    def __init__(self, **options: Any) -> None:
        # A user's own choice of authentication comes first.
        self._has_token = AUTH_MODE not in os.environ
        environment = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
        if self._has_token:
            _set_auth_mode("token")
            environment |= {AUTH_MODE: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        try:
            with _environment(environment), _on_loopback():
                AuthenticationTokenLoader.instance().reset_cache()
                ray.init(address="local", include_dashboard=False, **options)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End Ray's processes, and forget the token."""
        ray.shutdown()
        if self._has_token:
            _set_auth_mode("disabled")
            AuthenticationTokenLoader.instance().reset_cache()


def _set_auth_mode(mode: str) -> None:
    """Set how this process proves itself to Ray's servers; it read the environment when Ray was imported."""
    Config.initialize(f'{{"AUTH_MODE": "{mode}"}}'.encode())


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take 127.0.0.1 for this machine's address, as on systems where it knows no clusters."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
