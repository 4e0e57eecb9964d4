"""Waiting for nodes: before the first round for those that it needs, and later while too few are there."""

import logging
import time
from collections.abc import Iterator
from typing import Any

from flwr.serverapp import Grid

from fedapp.errors import RunError
from fedapp.hosting import Hosting, count_of

log = logging.getLogger("flwr")
WAIT_FOR_ALL = 60.0
REMIND_EVERY = 60.0  # seconds between messages that nodes are missing
POLL = 0.2


def wait_for_all(
    hosting: Hosting,
    grid: Grid,
    limit: float,
    needed: int = 1,
    require: str = "no",
    check: dict[str, Any] | None = None,
) -> None:
    """Wait for the nodes before the first round.

    With `require` = "yes", or "auto" and a node that has local data, every client needs a node that can train
    within `limit` seconds (0: no limit). Otherwise the others have a minute, or `limit` seconds if that is less, and
    the run begins without the missing ones; but it waits for `needed` clients. `check` is what nodes need to know to
    check their data.
    """
    hosting.ask_for_check(check)
    limit = limit or float("inf")
    for elapsed in _updates(hosting, grid):
        required = _all_required(hosting, require)
        if len(hosting.ready() if required else hosting.clients) == hosting.num_clients:
            break
        patient = required or len(hosting.clients) < needed
        if elapsed >= (limit if patient else min(limit, WAIT_FOR_ALL)):
            _demand(hosting, require, needed, limit)
            _log_start(hosting, logging.WARNING)
            break
    hosting.begin()


def wait_for_clients(hosting: Hosting, grid: Grid, needed: int, limit: float) -> None:
    """Wait until connected nodes host `needed` clients, at most `limit` seconds (0: no limit)."""
    for attempt, elapsed in enumerate(_updates(hosting, grid)):
        if len(hosting.clients) >= needed:
            if attempt:
                _log_start(hosting, logging.INFO)
            return
        if elapsed >= (limit or float("inf")):
            raise _too_few(hosting, needed, limit)


def _updates(hosting: Hosting, grid: Grid) -> Iterator[float]:
    """Ask for nodes again and again; yield the seconds since the first time, and log now and then what is missing."""
    start, reminded = time.monotonic(), float("-inf")
    while True:
        hosting.update(grid)
        now = time.monotonic()
        yield now - start
        if now - reminded >= REMIND_EVERY:
            log.warning(
                "Waiting for nodes: those that are there host %d of %d clients",
                len(hosting.clients),
                hosting.num_clients,
            )
            reminded = now
        time.sleep(POLL)


def _log_start(hosting: Hosting, level: int) -> None:
    log.log(level, "Going on with %d of %d clients", len(hosting.clients), hosting.num_clients)


def _all_required(hosting: Hosting, require: str) -> bool:
    return require == "yes" or (require == "auto" and hosting.has_own_data())


def _demand(hosting: Hosting, require: str, needed: int, limit: float) -> None:
    """End the run if it lacks clients that it cannot begin without."""
    if len(hosting.clients) < needed:
        raise _too_few(hosting, needed, limit)
    if not _all_required(hosting, require):
        return
    ready = set(hosting.ready())
    missing = [client for client in range(hosting.num_clients) if client not in ready]
    auto = "Nodes have data of their own, so"
    why = auto if require == "auto" else 'With require-all-clients = "yes"'
    raise RunError(
        f"{why} every client needs a node that can train before the first "
        f"round, and within node-timeout = {limit:g} seconds {count_of(len(missing))} had none, such as client "
        f"{missing[0]} ({hosting.why_missing(missing[0])}): start or fix those nodes, or set require-all-clients = "
        '"no" to begin without them.'
    )


def _too_few(hosting: Hosting, needed: int, limit: float) -> RunError:
    return RunError(
        f"The nodes that are connected host {len(hosting.clients)} clients, {needed} are needed, and none "
        f"came within node-timeout = {limit:g} seconds: start the missing nodes, and go on with "
        "resume = true."
    )
