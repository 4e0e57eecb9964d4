"""How the settings that a table shows were chosen: among how many, at the edge of which grid, and on which data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapp.figures import find_figure
from fedapp.report.runs import Run, best_per, in_settings, judged_by, setting_of


@dataclass(frozen=True)
class Choice:
    """The settings that `--per` chose, and what each was chosen from."""

    runs: list[Run]  # the runs with the chosen settings
    everything: Sequence[Run]
    keys: tuple[str, ...]  # those that --per names
    judge: str  # the metric that decided

    def rivals(self, run: Run) -> list[list[Run]]:
        """Return the settings that a chosen one was compared with, itself included."""
        place = [run.config.get(key) for key in self.keys]
        return in_settings(
            [r for r in self.everything if [r.config.get(key) for key in self.keys] == place]
        )

    def varied(self, run: Run) -> dict[str, list[Any]]:
        """Return the values of each key that was varied for a method, in their order."""
        configs = [setting_of(members[0]) for members in self.rivals(run)]
        values = {key: {config.get(key) for config in configs} for key in configs[0]}
        return {key: _sorted(found) for key, found in values.items() if len(found) > 1}

    def chosen(self, run: Run) -> dict[str, Any]:
        """Return the value that was chosen for each key that was varied."""
        return {key: run.config.get(key) for key in self.varied(run)}

    def at_edge(self, run: Run) -> list[str]:
        """Return the keys whose chosen value is the smallest or the largest that was tried."""
        return [
            key
            for key, values in self.varied(run).items()
            if all(map(_is_number, values)) and run.config[key] in (values[0], values[-1])
        ]

    def never_varied(self, run: Run) -> list[str]:
        """Return the step sizes and the numbers among a method's own keys that had one value only."""
        varied = self.varied(run)
        return [key for key in _tunable(run.config) if key not in varied]

    def chosen_on(self) -> str:
        """Say which data the choice was made on."""
        return {
            "valid": "validation data",
            "test": "test data",
            "client": "clients' held-out data",
        }.get(self.judge.partition("_")[0], "training data")

    def in_words(self) -> str:
        """Say what was chosen, by what and on which data."""
        how = f"by the best {find_figure(self.judge).label} ({self.judge}), mean over seeds"
        said = f"Settings were chosen on {self.chosen_on()}, {how}"
        if self.judge.startswith("test_"):
            said += "; with valid-share they would be chosen on data that the test does not see"
        return said + "."


def choose(runs: Sequence[Run], keys: Sequence[str], figure: str, best_by: str = "") -> Choice:
    """Choose the best setting for each value of some keys, on validation data if there are any."""
    judge = best_by or judged_by(runs, figure)
    return Choice(best_per(runs, keys, judge), runs, tuple(keys), judge)


def _tunable(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of an algorithm that people tune: step sizes, and its own numbers."""
    from fedapp.registry import ALGORITHMS  # takes a second: flwr comes with it

    algorithm = ALGORITHMS.get(config["algorithm"])
    own = algorithm.keys() if algorithm else {}
    return [key for key in ("lr", *own) if _is_number(config.get(key))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sorted(values: set[Any]) -> list[Any]:
    return sorted(values, key=lambda v: (not _is_number(v), v if _is_number(v) else 0, str(v)))
