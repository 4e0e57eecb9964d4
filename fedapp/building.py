"""From a config and a problem to a strategy: first the checks, then the construction."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from flwr.serverapp import Grid

from fedapp import aggregation, downlink, feedback, vectorized
from fedapp.agreement import with_facts
from fedapp.algorithm import Algorithm
from fedapp.compression.budgeted import Budgeted
from fedapp.config import RunConfig
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.keywords import as_config
from fedapp.ledger import Place
from fedapp.models.frozen import frozen_part_of
from fedapp.privacy import node_privacy, server_privacy
from fedapp.problems import kind_of, make_problem
from fedapp.problems.outline import server_shard
from fedapp.problems.protocols import Start
from fedapp.registry import find_algorithm, find_compressor
from fedapp.strategy import FederatedStrategy
from fedapp.traffic import Pieces


def check(config: RunConfig, problem: Start) -> None:
    """Raise ConfigError if the algorithm cannot run with this config, or cannot be protected as it asks."""
    algorithm = find_algorithm(config.algorithm)
    kind = kind_of(config)
    if algorithm.needs.network and not problem.layout.has_levels:
        raise ConfigError(
            f"{algorithm.name} looks into a network: choose one of fedapp's networks as model, or give yours "
            "`representation`, `head` and `levels` as fedapp.models.networks.Network has them."
        )
    if algorithm.needs.classes and problem.facts and not problem.facts.num_classes:
        raise ConfigError(
            f"{algorithm.name} compares distributions over classes, and {config.dataset} has numbers to predict: choose "
            "another algorithm."
        )
    if config.test_share and not kind.is_network:
        raise ConfigError(
            "test-share holds out samples of a network's clients: set test-share = 0."
        )
    if config.valid_share and kind.data is None and not is_outside(config.problem):
        raise ConfigError(f"The {kind.name} problem has no samples: set valid-share = 0.")
    if config.eval_clients and not kind.is_network:
        raise ConfigError(
            f"eval-clients evaluates a network on clients' held-out samples, and {kind.name} has none: set "
            'eval-clients = "".'
        )
    if (config.trainable or config.lora.rank) and not kind.is_network:
        raise ConfigError(
            "trainable and lora.rank choose what is trained of a network: leave them at their defaults."
        )
    if config.weight_decay and kind.regularizer:
        raise ConfigError(
            f"{config.model} has a regulariser of its own, and weight-decay would move the optimum that "
            f"`gap` counts from: set weight-decay = 0, and {kind.regularizer}."
        )
    no_images = problem.facts is not None and len(problem.facts.shape) != 3
    if config.augmentation != "none" and (no_images or not kind.is_network):
        raise ConfigError(
            f'augmentation = "{config.augmentation}" is for networks that are trained on images: set augmentation = "none".'
        )
    vectorized.check(config, problem)
    mean_rule = algorithm.strategy.rule_is_a_mean
    aggregation.check(config, mean_rule)
    feedback.check(config, mean_rule)
    _, buffers = problem.initial()
    privacy = server_privacy(config)
    privacy.demand(mean_rule, buffers.size)
    downlink.check(config, privacy.hides_participants)
    compressor = find_compressor(config, problem.layout.pieces)
    algorithm.needs.check(config, algorithm.strategy.__name__, compressor)
    if isinstance(compressor, Budgeted) and _sends_all(algorithm):
        compressor.rehearse(problem.layout.size)
    algorithm.check(config)
    algorithm.fits(config, problem.layout.size)


def _sends_all(algorithm: Algorithm) -> bool:
    """Return whether clients send vectors of the model's size."""
    return algorithm.strategy.sent_pieces is FederatedStrategy.sent_pieces


def make_strategy(
    config: RunConfig | Mapping[str, Any],
    problem: Start | None = None,
    place: Place | None = None,
    grid: Grid | None = None,
) -> FederatedStrategy[Any]:
    """Return the algorithm of a config, or of a dict of its keys, on the server's side, at the problem's start.

    A server without data (`server-data = false`) asks the nodes of the `grid` what theirs are like.
    """
    config = as_config(config)
    if grid:
        config = with_facts(grid, config)
    elif not (problem or config.server_data or config.facts or is_outside(config.problem)):
        raise ConfigError(
            "With server-data = false the nodes tell what their data are like: give make_strategy the grid."
        )
    problem = problem or make_problem(config, server_shard(config))
    check(config, problem)
    algorithm = find_algorithm(config.algorithm)
    strategy = algorithm.strategy(
        algorithm,
        config,
        *problem.initial(),
        compressor=find_compressor(config, problem.layout.pieces),
        layout=problem.layout,
        facts=problem.facts,
        place=place or Place(f"run-{uuid4().hex[:8]}", config.state_dir),
        frozen=frozen_part_of(problem),
    )
    if isinstance(strategy.compressor, Budgeted) and not _sends_all(algorithm):
        for pieces in set(_usual_cohort(strategy)):
            size = sum(piece.size for piece in pieces)
            strategy.compressor.for_pieces(pieces).rehearse(size)
    return strategy


def notes(strategy: FederatedStrategy[Any]) -> list[str]:
    """Return what a user should know before the first round."""
    said = strategy.algorithm.notes(strategy.config, strategy.layout)
    said += [what_is_sent(strategy), *strategy.downlink.notes(strategy.broadcast())]
    return said + _what_evaluation_sends(strategy.config)


def warnings(strategy: FederatedStrategy[Any]) -> list[str]:
    """Return what may go wrong."""
    size = strategy.x.size
    said = aggregation.advice(strategy.config)
    said += strategy.algorithm.warnings(strategy.config, strategy.compressor, size)
    return said + strategy.downlink.warnings() + strategy.privacy.warnings()


def _usual_cohort(strategy: FederatedStrategy[Any]) -> list[Pieces]:
    """Return what each client of a round sends; the first round may be another matter."""
    clients = range(strategy.config.clients_per_round)
    strategy.on_cohort(clients, 2, 0)
    return [strategy.sent_pieces(client) for client in clients]


def what_is_sent(strategy: FederatedStrategy[Any]) -> str:
    """Say what leaves a node."""
    return strategy.upload.in_words(
        _usual_cohort(strategy), node_privacy(strategy.config).sent_beside
    )


def _what_evaluation_sends(config: RunConfig) -> list[str]:
    """Say what leaves a node when clients evaluate."""
    if not config.eval_clients:
        return []
    who = "all clients" if config.eval_clients == "all" else f"{config.eval_cohort} clients"
    again = f", also after {config.eval_finetune} local steps" if config.eval_finetune else ""
    when = "a round" if config.eval_every == 1 else f"every {config.eval_every} rounds"
    return [
        f"To evaluate, {who} {when} send their metrics on held-out samples{again}, and the number of these."
    ]


def expected_bytes(strategy: FederatedStrategy[Any]) -> tuple[float, float]:
    """Return about what a round's clients send and receive: nominal bits up, and what is usual down on a grid."""
    cohort = _usual_cohort(strategy)
    up = sum(strategy.upload.nominal_bits(pieces) / 8 for pieces in cohort)
    delivered = strategy.delivers * strategy.x.nbytes
    down = strategy.downlink.expected_bytes(strategy.broadcast(), delivered)
    buffers = len(cohort) * strategy.buffers.nbytes
    return up + buffers, len(cohort) * down + buffers
