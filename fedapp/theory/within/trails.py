"""What is measured of a played run, and how it is compared with a bound."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedapp.config import RunConfig
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, spread
from fedapp.theory.hypotheses import EVERYBODY, Condition, Setting
from fedapp.theory.outcome import Finding
from fedapp.theory.played import Played, play, quadratic_of

Trail = dict[str, Values]  # a figure of x_0, x_1, ..., x_R
Look = Callable[[Played], dict[str, float]]


def follow(config: RunConfig, look: Look | None = None) -> Trail:
    """Play a run; return the problem's figures of every model, and what `look` sees of every round.

    Rounds that a run did not reach, because it diverged, are infinite.
    """
    problem = quadratic_of(config)
    x, buffers = problem.initial()
    rows = [problem.evaluate(x, buffers)]
    seen: list[dict[str, float]] = []
    for played in play(config):
        rows.append(problem.evaluate(played.after, buffers))
        if look:
            seen.append(look(played))
    trail = {name: _padded([row[name] for row in rows], config.num_rounds + 1) for name in rows[0]}
    if seen:
        trail |= {name: _padded([row[name] for row in seen], config.num_rounds) for name in seen[0]}
    return trail


def _padded(values: Sequence[float], length: int) -> Values:
    padded = np.full(length, np.inf)
    padded[: len(values)] = values
    return padded


def mean_trail(configs: Iterable[RunConfig], look: Look | None = None) -> Trail:
    """Return the mean of runs that differ in their seeds."""
    trails = [follow(config, look) for config in configs]
    return {name: np.mean([trail[name] for trail in trails], axis=0) for name in trails[0]}


def points_of(configs: Iterable[RunConfig], preset: str) -> dict[str, list[RunConfig]]:
    """Return configs by the names of their points, without the preset's name and the seed."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        name = config.run_name.removeprefix(f"{preset}-").split("seed-")[0].strip("-")
        groups.setdefault(name, []).append(config)
    return groups


def settings_of(configs: Iterable[RunConfig]) -> list[Setting]:
    """Return runs as a theorem sees them."""
    return [exact_setting(config) for config in configs]


def admissible(conditions: Iterable[Sequence[Condition]]) -> Finding:
    """Say whether all hypotheses hold: of each, where it is closest to its limit."""
    worst: dict[str, Condition] = {}
    for condition in (one for several in conditions for one in several):
        known = worst.get(condition.text)
        if known is None or (known.holds and not condition.factor <= known.factor):
            worst[condition.text] = condition
    steps = [c for c in worst.values() if c.limit > 0 and c.text != EVERYBODY]
    failed = [f"{c.text} ({c.value:.3g})" for c in worst.values() if not c.holds]
    return Finding(
        "its hypotheses",
        "; ".join(c.text for c in steps),
        ", ".join(f"{c.value:.2g}" for c in steps)
        + (f"; fails: {'; '.join(failed)}" if failed else ""),
        not failed,
    )


def below(claim: str, measured: Iterable[Values], bounds: Iterable[Values]) -> Finding:
    """Say whether measured values stay below their bounds everywhere; an infinite bound says nothing."""
    pairs = list(zip(measured, bounds, strict=True))
    ratios = [float(np.max(m / b)) for m, b in pairs]
    bounded = all(bool(((b > 0) & np.isfinite(b)).all()) for _, b in pairs)
    holds = bounded and all(np.isfinite(ratio) and ratio <= 1 for ratio in ratios)
    return Finding(claim, "measured/bound at most 1", spread(ratios, ".2g"), holds)


def running_mean(values: Values) -> Values:
    """Return the means of the first one, two, ... values."""
    means: Values = np.cumsum(values) / np.arange(1, len(values) + 1)
    return means


def typical_noise(vector: Values, levels: int) -> float:
    """Return E|Q(v) - v|^2 of QSGD with these levels, exactly."""
    norm = float(np.linalg.norm(vector))
    if not norm:
        return 0.0
    part = np.abs(vector) / norm * levels % 1
    return float((norm / levels) ** 2 * (part * (1 - part)).sum())
