"""What a server without data must know about them: the nodes tell it before the first round, and it takes what they agree on.

Most nodes decide what an input looks like; a node whose data differ cannot train, and says so when it is asked to. The
number of classes is the largest that a node has seen. Inputs are normalised by the median of the nodes' means and of
their standard deviations, so that no single node decides. The result is kept with the run's config, so that a run that
resumes has the same.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from fedapp import wire
from fedapp.config import RunConfig
from fedapp.data import Facts
from fedapp.doors import is_outside
from fedapp.errors import ConfigError, RunError
from fedapp.hosting import Hosting
from fedapp.manifest import identify
from fedapp.privacy import server_privacy
from fedapp.problems import kind_of
from fedapp.problems.kinds import INFERRED
from fedapp.problems.outline import server_shard
from fedapp.run_directory import existing_run
from fedapp.waiting import wait_for_all

log = logging.getLogger("flwr")


def with_facts(grid: Grid, config: RunConfig) -> RunConfig:
    """Return a config that says what a server without data must know: as it was before, or as the nodes tell it now."""
    if config.server_data or config.facts or is_outside(config.problem):
        return config
    if not (kind := kind_of(config)).is_network:
        raise ConfigError(
            f"{kind.name} needs its data on the server: set server-data = true, or choose a network as model."
        )
    if kind is INFERRED:
        raise ConfigError(
            "What is trained depends on the data, and the server has none: set problem to one that `fedapp config` lists."
        )
    server_privacy(config).demand_facts()
    path = existing_run(config)
    manifest = identify(path) if path else None
    facts = str(manifest.config.get("facts", "")) if manifest else ""
    return config.model_copy(update={"facts": facts or wire.facts_text(_ask(grid, config))})


def notes(config: RunConfig) -> list[str]:
    """Say what a server without data knows about them."""
    if not (shard := server_shard(config)) or not shard.facts:
        return []
    facts = shard.facts
    classes = f", {facts.num_classes} classes" if facts.num_classes else ""
    return [f"The server has no data; inputs have the shape {facts.shape}{classes}."]


def _ask(grid: Grid, config: RunConfig) -> Facts:
    """Wait for the nodes; return what they agree on."""
    hosting = Hosting(config.num_clients, config.partition_of)
    wait_for_all(
        hosting,
        grid,
        config.node_timeout,
        config.min_clients,
        config.require_all_clients,
        wire.ask_for_facts(),
    )
    return agree(hosting.facts())


def agree(told: Mapping[int, Facts]) -> Facts:
    """Return the facts that most nodes can train with, from what each of them tells."""
    if not told:
        raise RunError(
            "No node tells what its data are like, and the server has none: see above why, or set server-data = true."
        )
    kinds = Counter(map(_kind, told.values()))
    (kind, count), *others = kinds.most_common()
    if others and others[0][1] == count:
        node, other = (
            next(n for n, f in told.items() if _kind(f) == k) for k in (kind, others[0][0])
        )
        raise RunError(
            f"Nodes {node} and {other} disagree about the data, {_in_words(told[node])} and {_in_words(told[other])}, "
            "and neither has most nodes on its side: make their data alike, or say in facts what they should be."
        )
    agreed = [facts for facts in told.values() if _kind(facts) == kind]
    for node, facts in told.items():
        if _kind(facts) != kind:
            log.warning(
                "Node %d cannot take part: it has %s, and %d of %d nodes have %s",
                node,
                _in_words(facts),
                count,
                len(told),
                _in_words(agreed[0]),
            )
    return replace(
        agreed[0],
        num_classes=max(facts.num_classes for facts in agreed),
        mean=_median([facts.mean for facts in agreed]),
        std=_median([facts.std for facts in agreed]),
        target_mean=_median([(facts.target_mean,) for facts in agreed])[0],
        target_std=_median([(facts.target_std,) for facts in agreed])[0],
    )


def _kind(facts: Facts) -> tuple[object, ...]:
    """Return what must be equal on all nodes."""
    return facts.shape, facts.vocabulary, facts.num_classes > 0, len(facts.mean)


def _in_words(facts: Facts) -> str:
    tokens = f" of {facts.vocabulary} tokens" if facts.vocabulary else ""
    targets = "classes" if facts.num_classes else "numbers"
    return f"inputs of shape {facts.shape}{tokens} with {targets} as targets"


def _median(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(float(number) for number in np.median(np.array(rows, np.float64), axis=0))
