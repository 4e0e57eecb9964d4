"""From a config to the rule that makes one vector of a round's updates; chosen once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedapp.aggregation.rules import (
    CenteredClipping,
    GeometricMedian,
    Mean,
    Median,
    MultiKrum,
    NearestNeighborMixing,
    Rule,
    TrimmedMean,
    Vector,
)
from fedapp.aggregation.sums import Summed, exact_sum
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.privacy import Privacy, ServerNoise
from fedapp.wire import Arrays, Update

OFTEN = 0.01  # share of rounds with more hostile clients than assumed that a user is warned of


class Aggregator(Protocol):
    """What stands for the mean of a round's vectors."""

    def mean(self, updates: Sequence[Update], name: str, tag: int) -> Vector:
        """Return the mean of the vectors of a name, or what takes its place; `tag` is the attempt's."""

    def reset(self) -> None:
        """Forget earlier rounds."""

    def saved(self) -> Arrays:
        """Return what is remembered of earlier rounds, by name."""

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned."""


class _Forgetful:
    """An aggregator that looks at one round only."""

    def reset(self) -> None:
        """Nothing is remembered."""

    def saved(self) -> Arrays:
        """Nothing is remembered."""
        return {}

    def restore(self, saved: Arrays) -> None:
        """Nothing is remembered."""


@dataclass(frozen=True)
class PlainMean(_Forgetful):
    """The mean, which may be weighted by the clients' numbers of examples."""

    weighted: bool = False

    def mean(self, updates: Sequence[Update], name: str, tag: int) -> Vector:
        """Return the mean, from the sum if that is all there is."""
        if isinstance(updates, Summed) and name in updates.means:
            return updates.means[name]
        weight = sum(u.num_examples for u in updates) if self.weighted else len(updates)
        return exact_sum(updates, name, self.weighted).mean(weight)


@dataclass(frozen=True, eq=False)
class PrivateMean(_Forgetful):
    """The mean of clipped vectors with noise, also of a round without updates."""

    privacy: ServerNoise
    zero: Vector  # has the model's size and type

    def mean(self, updates: Sequence[Update], name: str, tag: int) -> Vector:
        """Return the mean with noise."""
        vectors = [update[name] for update in updates] or [self.zero]
        return self.privacy.mean(vectors, tag).astype(self.zero.dtype)


@dataclass(eq=False)
class ByRule:
    """A rule, which may look at its result of the round before: the centre."""

    rule: Rule
    zero: Vector  # has the model's size and type
    centre: Vector | None = field(init=False)

    def __post_init__(self) -> None:
        """Start at 0."""
        self.reset()

    def mean(self, updates: Sequence[Update], name: str, tag: int) -> Vector:
        """Apply the rule."""
        mean = self.rule([update[name] for update in updates], self.centre)
        if self.rule.recalls:
            self.centre = mean
        return mean

    def reset(self) -> None:
        """Set the centre to 0, if the rule has one."""
        self.centre = np.zeros_like(self.zero) if self.rule.recalls else None

    def saved(self) -> Arrays:
        """Return the centre, if the rule has one."""
        return {} if self.centre is None else {"centre": self.centre}

    def restore(self, saved: Arrays) -> None:
        """Restore the centre."""
        self.centre = saved.get("centre")


def aggregator_of(config: RunConfig, privacy: Privacy, zero: Vector) -> Aggregator:
    """Return what stands for the mean; `zero` is a vector of the model's size and type."""
    if isinstance(privacy, ServerNoise):
        return PrivateMean(privacy, zero)
    rule = rule_of(config)
    if isinstance(rule, Mean):
        return PlainMean(config.weighting == "examples")
    return ByRule(rule, zero)


def total(updates: Sequence[Update], name: str) -> Vector:
    """Return the sum of the vectors of a name."""
    return exact_sum(updates, name).mean(1)


def check(config: RunConfig, rule_is_a_mean: bool) -> None:
    """Raise ConfigError for a robust aggregate, or clipping, where the algorithm does not survive it."""
    keys = {"aggregation": (config.aggregation, "mean"), "mixing": (config.mixing, "none")}
    for key, (rule, default) in keys.items():
        if rule == default:
            continue
        if not rule_is_a_mean:
            raise ConfigError(
                f"{config.algorithm} relies on sums over its clients, which {key} = "
                f'"{rule}" is not: set {key} = "{default}".'
            )
        if config.weighting != "uniform":
            raise ConfigError(f'The {rule} has no weights: set weighting = "uniform".')
        if config.dp.clip:
            raise ConfigError(
                f"The noise is made for a mean, and a {rule} can move further: set "
                f'{key} = "{default}", or dp.clip = 0.'
            )
    if config.max_update_norm and config.on_long_update == "clip" and not rule_is_a_mean:
        raise ConfigError(
            f"{config.algorithm}'s clients go by what they sent, and would not know that it was "
            'clipped: set on-long-update = "reject".'
        )
    rule_of(config)


def hostile_in_a_round(config: RunConfig) -> int:
    """Return f: how many of a round's clients are assumed to be hostile."""
    return _ceil(config.hostile * config.clients_per_round)


def rule_of(config: RunConfig) -> Rule:
    """Return the rule for updates; refuse one that cannot withstand what is assumed."""
    f, n = hostile_in_a_round(config), config.clients_per_round
    if (config.aggregation == "multi-krum" or config.mixing == "nnm") and not f:
        key = "aggregation" if config.aggregation == "multi-krum" else "mixing"
        raise ConfigError(
            f'{key} = "{config.model_dump()[key]}" needs to know how many clients may be hostile: set hostile to '
            "their share, for example 0.2."
        )
    if n < (least := least_updates(config)):
        raise ConfigError(
            f"hostile = {config.hostile:g} means {f} of {n} clients, and {_name(config)} withstands them among "
            f"{least} or more: set clients-per-round to at least that, or hostile lower."
        )
    rules: dict[str, Rule] = {
        "mean": Mean(),
        "median": Median(),
        "trimmed-mean": TrimmedMean(config.trim),
        "multi-krum": MultiKrum(f),
        "geometric-median": GeometricMedian(),
        "centered-clipping": CenteredClipping(config.clip_radius),
    }
    rule = rules[config.aggregation]
    if isinstance(rule, TrimmedMean) and rule.cut(n) < f:
        raise ConfigError(
            f"trim = {config.trim:g} leaves out {rule.cut(n)} of {n} clients at each end and would protect nobody "
            f"from the {f} of hostile = {config.hostile:g}: set trim to at least {config.hostile:g}."
        )
    return NearestNeighborMixing(f, rule) if config.mixing == "nnm" else rule


def buffer_rule_of(config: RunConfig) -> Rule:
    """Return the rule for the model's statistics, which have no length that a limit could be set to."""
    if config.aggregation == "trimmed-mean":
        return TrimmedMean(config.trim)
    robust = config.aggregation != "mean" or config.mixing != "none" or config.max_update_norm
    return Median() if robust else Mean()


def least_updates(config: RunConfig) -> int:
    """Return how many updates a round needs so that the rule withstands those that are assumed to be hostile."""
    f = hostile_in_a_round(config)
    if not f or (config.aggregation == "mean" and config.mixing == "none"):
        return 1
    return 2 * f + (3 if config.aggregation == "multi-krum" else 1)


def advice(config: RunConfig) -> list[str]:
    """Return what a user should know of what the rule withstands."""
    n, total = config.clients_per_round, config.num_clients
    said = []
    if config.aggregation == "trimmed-mean":
        cut = TrimmedMean(config.trim).cut(n)
        said.append(
            f"The trimmed mean with trim = {config.trim:g} withstands {cut} hostile of {n} clients in a round, and "
            "protects nobody from more: trim must be at least the share of hostile clients"
        )
    if not config.hostile:
        return said
    if config.aggregation == "mean" and config.mixing == "none":
        said.append(
            f'aggregation = "mean" withstands no hostile client, and hostile = {config.hostile:g} changes nothing: '
            "choose another aggregation"
        )
        return said
    f, hostile = hostile_in_a_round(config), _ceil(config.hostile * total)
    if (often := _share_of_cohorts(total, hostile, n, f)) >= OFTEN:
        said.append(
            f"With {hostile} of {total} clients hostile, {100 * often:.0f} % of rounds of {n} clients hold more than "
            f"the {f} that are assumed: set hostile or clients-per-round higher"
        )
    return said


def _share_of_cohorts(total: int, hostile: int, n: int, f: int) -> float:
    """Return how likely n clients, drawn of `total`, hold more than f hostile ones."""
    ways = math.comb(total, n)
    more = range(f + 1, min(hostile, n) + 1)
    return sum(math.comb(hostile, k) * math.comb(total - hostile, n - k) for k in more) / ways


def _ceil(count: float) -> int:
    """Round up, but for what is a rounding error: 0.07 of 100 is 7."""
    return math.ceil(count - 1e-9)


def _name(config: RunConfig) -> str:
    mixed = " after mixing" if config.mixing != "none" else ""
    return f"the {config.aggregation}{mixed}"
