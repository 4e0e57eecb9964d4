"""Run many small configs in parallel: each on InlineGrid, several processes at a time.

For problems so small that one run cannot keep several workers busy.
"""

import contextlib
import logging
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from fedapp.config import RunConfig
from fedapp.errors import ConfigError, RunError, unexpected
from fedapp.tables import Value


@contextlib.contextmanager
def silence(least: int = logging.ERROR) -> Iterator[None]:
    """Log only errors (or from another level on) while this context is open."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)


def run_quietly(config: RunConfig) -> ConfigError | RunError | None:
    """Run a named config in this process, unless it is complete; return why it ended early, if it did."""
    from fedapp import client_app, server_app
    from fedapp.engine import InlineGrid
    from fedapp.progress import skip_reason
    from fedapp.run_directory import set_partial_aside

    with silence(), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            if not skip_reason(config):
                set_partial_aside(config)
                server_app.run(InlineGrid(client_app.app, config.flat()), config)
        except (ConfigError, RunError) as error:
            return error
        except Exception as error:  # one run's mistake must not end the others
            return unexpected(error)
    return None


def _run_values(values: Mapping[str, Value]) -> ConfigError | RunError | None:
    """Run a config given by its values: its class is made at run time, and cannot be sent to another process."""
    from fedapp.parsing import parse_run_config

    return run_quietly(parse_run_config(values))


def _result(ended: Future[ConfigError | RunError | None]) -> ConfigError | RunError | None:
    """Return why a run ended early, if it did."""
    try:
        return ended.result()
    except BrokenProcessPool:
        return RunError(
            "A process that computed runs was killed, perhaps for want of memory: run the sweep again with fewer workers."
        )


def run_all(
    configs: Sequence[RunConfig], workers: int
) -> Iterator[tuple[RunConfig, ConfigError | RunError | None]]:
    """Run named configs, `workers` at a time (0: in this process); yield each as it ends."""
    if workers == 0:
        for config in configs:
            yield config, run_quietly(config)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = {pool.submit(_run_values, config.flat()): config for config in configs}
        try:
            for ended in as_completed(running):
                yield running[ended], _result(ended)
        finally:
            pool.shutdown(cancel_futures=True)
