"""A config for each algorithm, with every term switched on, and its oracle in tests/oracles.py.

Long, because it has one case for each algorithm.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.compression import quantizers
from fedapp.compression.sparsifiers import TopK
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.keys import QuadraticKeys
from fedapp.problems.quadratic import Quadratic
from fedapp.randomness import generator, sample_cohort
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from strategies.fedbcgd import Options as BlockOptions
from tests import oracles
from tests.conftest import kebab

N, S, TAU, LR, ROUNDS = 12, 4, 5, 0.3, 15
WEIGHT_DECAY = 0.01
# Unequal clients: with local-epochs = 1 and batches of one, each takes as many steps as it has examples.
EXAMPLES = [1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 9, 1]


def trajectory(config: RunConfig, nodes: int = 1) -> list[oracles.Vector]:
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat(), nodes)
    rounds = run_rounds(grid, strategy, problem, config)
    return [strategy.x.astype(np.float64) for _ in rounds]


def config_for(algorithm: str, **keys: Value) -> RunConfig:
    common: dict[str, Value] = {
        "algorithm": algorithm,
        "dataset": "quadratic",
        "num-clients": N,
        "clients-per-round": S,
        "num-rounds": ROUNDS,
        "local-steps": TAU,
        "lr": LR,
        "weight-decay": WEIGHT_DECAY,
        "quadratic.dim": 20,
        "quadratic.heterogeneity": 2.0,
    }
    return parse_run_config(common | kebab(keys))


def oracle_inputs(config: RunConfig) -> tuple[oracles.Vector, oracles.Gradient, oracles.Cohorts]:
    problem = make_problem(config)
    assert isinstance(problem, Quadratic)
    A, b = problem.A.double().numpy(), problem.b.double().numpy()

    def gradient(i: int, y: oracles.Vector) -> oracles.Vector:
        slope: oracles.Vector = A[i] @ (y - b[i]) + config.weight_decay * y
        return slope

    cohorts = [
        sample_cohort(list(range(N)), config.clients_per_round, config.seed, r)
        for r in range(1, config.num_rounds + 1)
    ]
    return problem.initial()[0].astype(np.float64), gradient, cohorts


def quantizer(config: RunConfig) -> oracles.Quantize:
    """The literal compressor, fed with the draws that the real one makes; it sends float32."""

    def draw(name: str, k: int, i: int, v: oracles.Vector) -> oracles.Vector:
        v = v.astype(np.float32).astype(np.float64)
        if config.compressor == "topk":
            return oracles.topk(v, round(config.table(TopK).ratio * len(v)))
        rng = generator(config.seed, f"compress {name}", k, i)
        sent = oracles.qsgd(v, config.table(quantizers.QSGD).levels, rng.random(len(v), np.float32))
        return sent.astype(np.float32).astype(np.float64)

    return draw


def vrdiana(
    x: oracles.Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, **numbers: Any
) -> Any:
    config = numbers.pop("config")

    def noisy(k: int, i: int, y: oracles.Vector) -> oracles.Vector:
        noise = generator(config.seed, "batches", k, i).standard_normal(len(y))
        noisy: oracles.Vector = g(i, y) + config.table(QuadraticKeys).noise * noise
        return noisy

    def renew(k: int, i: int) -> bool:
        draw = generator(config.seed, "snapshot", k, i).random()
        return bool(draw < config.vrdiana.probability)

    return oracles.vrdiana(x, g, cohorts, **numbers, noisy=noisy, renew=renew)


def with_noise(
    config: RunConfig, g: oracles.Gradient
) -> Callable[[int, int, int, oracles.Vector], oracles.Vector]:
    """Return g with the noise of round k, client i and step t, as the clients' mini-batches carry it."""

    def noisy(k: int, i: int, t: int, y: oracles.Vector) -> oracles.Vector:
        steps = config.local_work.num_steps(EXAMPLES[i])
        draws = generator(config.seed, "batches", k, i).standard_normal((steps, len(y)))
        return np.asarray(g(i, y) + config.table(QuadraticKeys).noise * draws[t])

    return noisy


def mimelite(
    x: oracles.Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, **numbers: Any
) -> Any:
    noisy = with_noise(numbers.pop("config"), g)
    return oracles.mimelite(x, g, cohorts, **numbers, noisy=noisy)


def gradma(x: oracles.Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, **numbers: Any) -> Any:
    noisy = with_noise(numbers.pop("config"), g)
    return oracles.gradma(x, noisy, cohorts, sizes=(len(x),), **numbers)


GRADMA: dict[str, Value] = {
    "gradma__beta1": 0.6,
    "gradma__beta2": 0.8,
    "gradma__memory_size": 6,
    "server_lr": 0.7,
    "quadratic__noise": 0.5,
}
GRADMA_NUMBERS: dict[str, Any] = {"beta1": 0.6, "beta2": 0.8, "m": 6, "server_lr": 0.7, "N": N}


def groups_of(config: RunConfig, cohorts: oracles.Cohorts) -> list[list[list[int]]]:
    """Deal each round's clients into one group for each block, as the server does."""
    count, dealt = config.table(BlockOptions).blocks, []
    for k, cohort in enumerate(cohorts, 1):
        rng = generator(config.seed, "groups", k)
        order, blocks = rng.permutation(cohort).tolist(), rng.permutation(count).tolist()
        dealt.append([order[blocks.index(j) :: count] for j in range(count)])
    return dealt


def fedbcgd(
    x: oracles.Vector, g: oracles.Gradient, cohorts: oracles.Cohorts, **numbers: Any
) -> Any:
    """Quadratics have no head: the shared block is empty, and the blocks are cut evenly."""
    config = numbers.pop("config")
    count = config.table(BlockOptions).blocks
    cuts = [round(len(x) * j / count) for j in range(count + 1)]
    numbers["blocks"] = [list(range(a, b)) for a, b in itertools.pairwise(cuts)]
    noisy, groups = with_noise(config, g), groups_of(config, cohorts)
    if config.algorithm == "fedbcgd":
        return oracles.fedbcgd(x, noisy, groups, shared=[], **numbers)
    return oracles.fedbcgd_plus(x, noisy, g, groups, shared=[], N=N, **numbers)


BLOCKS: dict[str, Value] = {
    "fedbcgd__blocks": 3,
    "fedbcgd__momentum": 0.6,
    "quadratic__noise": 0.5,
    "lr": 0.1,
}
BLOCK_NUMBERS: dict[str, Any] = {"momentum": 0.6, "lr": 0.1}
Q, CONFIG = object(), object()  # stand for the quantizer, and the config, of a case
QSGD: dict[str, Value] = {"compressor": "qsgd", "qsgd__levels": 8}
COARSE: dict[str, Value] = {"compressor": "qsgd", "qsgd__levels": 2}
DAMPING = 1 / (1 + 20**0.5 / 2)  # 1/(1 + q) of qsgd with 2 levels, 20 numbers


@dataclass
class Case:
    """An algorithm's keys, and its oracle with the same numbers."""

    algorithm: str
    keys: dict[str, Value]
    oracle: Callable[..., Iterator[oracles.Vector]]
    numbers: dict[str, Any]
    sampled: bool = True
    full: bool = False
    # Near the optimum, a compressor fed with float32's rounding errors rounds another way.
    float32: bool = True


ALPHA = 1 / (1 + min(20 / 8**2, 20**0.5 / 8))  # 1/(1 + q) of qsgd with 8 levels, 20 numbers
CASES = {
    "fedavg": Case("fedavg", {"server_lr": 0.8}, oracles.fedavg, {"server_lr": 0.8}),
    "fedprox": Case("fedprox", {"fedprox__mu": 0.3}, oracles.fedavg, {"server_lr": 1.0, "mu": 0.3}),
    "fedavgm": Case(
        "fedavgm",
        {"fedavgm__beta1": 0.7, "server_lr": 0.5},
        oracles.fedavgm,
        {"server_lr": 0.5, "beta1": 0.7},
    ),
    "fedproxm": Case(
        "fedproxm",
        {"fedproxm__beta1": 0.6, "fedproxm__mu": 0.2, "server_lr": 0.5},
        oracles.fedavgm,
        {"server_lr": 0.5, "beta1": 0.6, "mu": 0.2},
    ),
    "fedadam": Case(
        "fedadam",
        {"server_lr": 0.1, "fedadam__beta1": 0.8, "fedadam__beta2": 0.95, "fedadam__eps": 0.01},
        oracles.fedadam,
        {"server_lr": 0.1, "b1": 0.8, "b2": 0.95, "eps": 0.01},
    ),
    "mifa": Case(
        "mifa", {"server_lr": 0.5}, oracles.mifam, {"server_lr": 0.5, "beta1": 0.0, "N": N}
    ),
    "mifam": Case(
        "mifam",
        {"mifam__beta1": 0.5, "server_lr": 0.2},
        oracles.mifam,
        {"server_lr": 0.2, "beta1": 0.5, "N": N},
    ),
    "fedpaq": Case(
        "fedpaq",
        {**QSGD, "server_lr": 0.9},
        oracles.fedpaq,
        {"server_lr": 0.9, "Q": Q},
        full=True,
    ),
    "qsgd": Case(
        "qsgd",
        {**QSGD, "local_steps": 1},
        oracles.fedpaq,
        {"server_lr": 1.0, "Q": Q, "tau": 1},
        sampled=False,
        full=True,
    ),
    "fedcom": Case(
        "fedcom",
        {**QSGD, "server_lr": 0.9},
        oracles.fedcom,
        {"server_lr": 0.9, "Q": Q},
        full=True,
    ),
    "fedgate": Case(
        "fedgate", {"server_lr": 0.9}, oracles.fedgate, {"server_lr": 0.9, "N": N}, full=True
    ),
    "fedcomgate": Case(
        "fedcomgate",
        {**QSGD, "server_lr": 0.9},
        oracles.fedcomgate,
        {"server_lr": 0.9, "N": N, "Q": Q},
        full=True,
        float32=False,
    ),
    "fedcomgate, topk with local memory": Case(
        "fedcomgate",
        {"compressor": "topk", "topk__ratio": 0.5, "fedcomgate__memory": "local", "lr": 0.1},
        oracles.fedcomgate,
        {"server_lr": 1.0, "N": N, "Q": Q, "memory": "local", "lr": 0.1},
        full=True,
        float32=False,
    ),
    "fedcomgate, topk with the paper's memory": Case(
        "fedcomgate",
        {"compressor": "topk", "topk__ratio": 0.5, "fedcomgate__memory": "paper", "lr": 0.1},
        oracles.fedcomgate,
        {"server_lr": 1.0, "N": N, "Q": Q, "memory": "paper", "lr": 0.1},
        full=True,
    ),
    "fedcomgate, topk with the paper's memory, of the sampled": Case(
        "fedcomgate",
        {
            "compressor": "topk",
            "topk__ratio": 0.5,
            "fedcomgate__memory": "paper-sampled",
            "lr": 0.1,
        },
        oracles.fedcomgate,
        {"server_lr": 1.0, "N": N, "Q": Q, "memory": "paper-sampled", "lr": 0.1},
    ),
    "fedcomgate, its own with error feedback": Case(
        "fedcomgate",
        {
            "compressor": "topk",
            "topk__ratio": 0.3,
            "fedcomgate__track": "own",
            "error_feedback": True,
        },
        oracles.fedcomgate,
        {"server_lr": 1.0, "N": N, "Q": Q, "memory": "local", "track": "own"},
        full=True,
        float32=False,
    ),
    "fedcomgate, damped": Case(
        "fedcomgate",
        {**COARSE, "server_lr": 0.9},
        oracles.fedcomgate,
        {"server_lr": 0.9, "N": N, "Q": Q, "a": DAMPING},
        full=True,
        float32=False,
    ),
    "fedgate, damped": Case(
        "fedgate",
        {**COARSE, "fedgate__damping": 0.4},
        oracles.fedgate,
        {"server_lr": 1.0, "N": N, "Q": Q, "a": 0.4},
        full=True,
        float32=False,
    ),
    "scaffold, damped": Case(
        "scaffold",
        {**COARSE},
        oracles.scaffold,
        {"server_lr": 1.0, "N": N, "Q": Q, "a": DAMPING},
        full=True,
        float32=False,
    ),
    "fedcomgate, topk with error feedback": Case(
        "fedcomgate",
        {"compressor": "topk", "topk__ratio": 0.5, "error_feedback": True, "lr": 0.1},
        oracles.fedcomgate,
        {"server_lr": 1.0, "N": N, "Q": Q, "memory": "local", "lr": 0.1},
    ),
    "scaffold": Case(
        "scaffold", {"server_lr": 0.9}, oracles.scaffold, {"server_lr": 0.9, "N": N}, full=True
    ),
    "scaffold, option 1": Case(
        "scaffold",
        {"scaffold__option": 1},
        oracles.scaffold,
        {"server_lr": 1.0, "N": N, "option": 1},
        full=True,
    ),
    "scaffold, compressed": Case(
        "scaffold",
        {**QSGD},
        oracles.scaffold,
        {"server_lr": 1.0, "N": N, "Q": Q},
        full=True,
        float32=False,
    ),
    "fedcet": Case(
        "fedcet", {"fedcet__c": 0.6}, oracles.fedcet, {"c": 0.6}, sampled=False, full=True
    ),
    "fedcet, its own c": Case(
        "fedcet", {}, oracles.fedcet, {"c": 0.9 * 2 / ((TAU + 3) * LR)}, sampled=False, full=True
    ),
    "fedcet, one step": Case(
        "fedcet",
        {"fedcet__c": 1.0, "local_steps": 1},
        oracles.fedcet,
        {"c": 1.0, "tau": 1},
        sampled=False,
        full=True,
    ),
    "fedcet, compressed": Case(
        "fedcet",
        {**QSGD, "fedcet__c": 0.6},
        oracles.fedcet,
        {"c": 0.6, "Q": Q},
        sampled=False,
        full=True,
        float32=False,
    ),
    "feddyn": Case(
        "feddyn", {"feddyn__alpha": 0.4}, oracles.feddyn, {"N": N, "alpha": 0.4}, full=True
    ),
    "feddyn, compressed": Case(
        "feddyn",
        {**QSGD, "feddyn__alpha": 0.4},
        oracles.feddyn,
        {"N": N, "alpha": 0.4, "Q": Q},
        full=True,
        float32=False,
    ),
    "feddc": Case(
        "feddc", {"feddc__alpha": 0.05}, oracles.feddc, {"N": N, "alpha": 0.05}, full=True
    ),
    "feddc, compressed": Case(
        "feddc",
        {"compressor": "topk", "topk__ratio": 0.5, "feddc__alpha": 0.05},
        oracles.feddc,
        {"N": N, "alpha": 0.05, "Q": Q},
        full=True,
        float32=False,
    ),
    "mimelite": Case(
        "mimelite",
        {"mimelite__beta": 0.7, "server_lr": 0.9, "quadratic__noise": 0.5},
        mimelite,
        {"server_lr": 0.9, "beta": 0.7, "config": CONFIG},
        full=True,
    ),
    "gradma": Case("gradma", GRADMA, gradma, GRADMA_NUMBERS | {"config": CONFIG}),
    "gradma-w": Case(
        "gradma-w", GRADMA, gradma, GRADMA_NUMBERS | {"config": CONFIG, "server": False}, full=False
    ),
    "gradma-s": Case(
        "gradma-s", GRADMA, gradma, GRADMA_NUMBERS | {"config": CONFIG, "worker": False}
    ),
    "gradma, all clients": Case(
        "gradma",
        GRADMA | {"gradma__memory_size": 0},
        gradma,
        GRADMA_NUMBERS | {"m": N, "config": CONFIG},
        full=True,
    ),
    "fedbcgd": Case("fedbcgd", BLOCKS, fedbcgd, BLOCK_NUMBERS | {"config": CONFIG}, full=True),
    "fedbcgd, more blocks than clients": Case(
        "fedbcgd", BLOCKS | {"fedbcgd__blocks": 5}, fedbcgd, BLOCK_NUMBERS | {"config": CONFIG}
    ),
    "fedbcgd-plus": Case(
        "fedbcgd-plus",
        BLOCKS,
        fedbcgd,
        BLOCK_NUMBERS | {"config": CONFIG, "control": "consistent"},
        full=True,
    ),
    "fedbcgd-plus, as printed": Case(
        "fedbcgd-plus",
        BLOCKS | {"fedbcgd__control": "printed"},
        fedbcgd,
        BLOCK_NUMBERS | {"config": CONFIG, "control": "printed"},
        full=True,
    ),
    "diana": Case(
        "diana",
        {**QSGD, "local_steps": 1, "server_lr": 0.8},
        oracles.diana,
        {"server_lr": 0.8, "N": N, "Q": Q, "alpha": ALPHA, "tau": 1},
        full=True,
    ),
    "vrdiana": Case(
        "vrdiana",
        {**QSGD, "local_steps": 1, "vrdiana__probability": 0.3, "quadratic__noise": 0.5},
        vrdiana,
        {"server_lr": 1.0, "N": N, "Q": Q, "alpha": ALPHA, "tau": 1, "config": CONFIG},
        full=True,
    ),
}


def expected(case: Case, config: RunConfig, **other: Any) -> list[oracles.Vector]:
    x, gradient, cohorts = oracle_inputs(config)
    stands_for: dict[int, Any] = {id(Q): quantizer(config), id(CONFIG): config}
    numbers = {"tau": TAU, "lr": LR} | case.numbers | other
    numbers = {name: stands_for.get(id(value), value) for name, value in numbers.items()}
    return list(case.oracle(x, gradient, cohorts, **numbers))


def largest_difference(ours: list[oracles.Vector], theirs: list[oracles.Vector]) -> float:
    assert len(ours) == len(theirs) == ROUNDS
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)
