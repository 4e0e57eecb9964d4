"""What runs are called in pictures and on the page, and what their configs differ in."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedapp.data.sources import SHAPES
from fedapp.errors import ConfigError
from fedapp.names import display_name
from fedapp.registry import ALGORITHMS
from fedapp.report.runs import NOT_COMPARED, Group, Run, in_settings
from fedapp.unused import ignored

# What the titles of panels say instead of a key.
IN_WORDS = {
    "lr": "local step size",
    "server-lr": "server step size",
    "clients-per-round": "clients per round",
    "num-clients": "number of clients",
    "num-rounds": "number of rounds",
    "local-steps": "local steps per round",
    "local-epochs": "local epochs per round",
    "partition-alpha": "Dirichlet concentration",
    "qsgd.levels": "quantization levels",
    "uniform.bits": "bits per number",
    "topk.ratio": "share of numbers sent",
}


def readable(name: str, config: Mapping[str, Any]) -> str:
    """Return a run's name for people: "fedavg-lr-0.1" becomes "FedAvg, lr = 0.1".

    Words that are neither the run's algorithm nor a key of its config with its value stay as they are.
    """
    known = {str(config.get("algorithm", "")): display_name(str(config.get("algorithm", "")))}
    for key, value in config.items():  # a sweep's names leave out the table: levels-8
        for written in (key.rpartition(".")[2], key):
            known[f"{written}-{value}"] = f"{written} = {value}"
    known.pop("", None)
    present = sorted((text for text in known if text in name), key=len, reverse=True)
    if not present:
        return name
    pattern = "|".join(map(re.escape, present))
    pieces = re.split(rf"(?<![^-])({pattern})(?![^-])", name)
    if len(pieces) == 1:
        return name
    words = [known[p] if k % 2 else p.strip("-") for k, p in enumerate(pieces)]
    return ", ".join(word for word in words if word)


def readable_names(groups: Sequence[Group]) -> list[str]:
    """Return the groups' names for people; as they are, if two of them would be the same."""
    names = [readable(group.name, group.runs[0].config) for group in groups]
    return names if len(set(names)) == len(names) else [group.name for group in groups]


def labels_of(groups: Sequence[Group], given: Mapping[str, str]) -> list[str]:
    """Return the groups' labels: those given by the name of a run or a group, or else readable names."""
    found = []
    for group, name in zip(groups, readable_names(groups), strict=True):
        keys = [name, group.name, *(run.name for run in group.runs)]
        label = next((given[key] for key in keys if key in given), name)
        found.append(f"{label} ({group.note})" if group.note else label)
    return found


def read_labels(assignments: Sequence[str], groups: Sequence[Group]) -> dict[str, str]:
    """Return the labels that RUN=NAME gives, by RUN; a run that is not there is refused."""
    known = {name for group in groups for name in (group.name, *(run.name for run in group.runs))}
    known |= set(readable_names(groups))
    labels = {}
    for text in assignments:
        # A name may hold the sign itself: "lr = 0.1=small steps".
        cuts = [k for k, sign in enumerate(text) if sign == "=" and text[:k] in known]
        if not cuts:
            raise ConfigError(
                f"--label {text} names no run: write RUN=NAME with one of {_listed(groups)}."
            )
        labels[text[: cuts[-1]]] = text[cuts[-1] + 1 :]
    return labels


def _listed(groups: Sequence[Group], most: int = 10) -> str:
    names = [group.name for group in groups]
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def unread(keys: Collection[str], config: Mapping[str, Any]) -> set[str]:
    """Return those of these keys on which a run's result cannot depend: where it is kept, and what it ignores."""
    known = ALGORITHMS.get(str(config.get("algorithm")))  # None: from elsewhere
    found = {*ignored(keys, config, known), *NOT_COMPARED} - {"seed"}
    if config.get("dataset") in SHAPES:
        found.add("data-dir")
    return found.intersection(keys)


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys in which runs differ and that matter to those runs."""
    values: dict[str, set[str]] = {}
    for run in runs:
        skipped = unread(run.config, run.config)
        for key, value in run.config.items():
            if key not in skipped:
                values.setdefault(key, set()).add(repr(value))
    return [key for key, found in values.items() if len(found) > 1]


def what_varies(runs: Sequence[Run], among: Sequence[str] = ()) -> str:
    """Return the title of a panel: the keys in which its runs differ, in words; only some keys, if they are named."""
    keys = [key for key in differing_keys(runs) if key != "seed" and (not among or key in among)]
    algorithms = {run.config.get("algorithm") for run in runs}
    if "algorithm" in keys and (not among or len(algorithms) == len(in_settings(runs))):
        return "algorithm"  # others have other settings
    keys.sort(key=lambda key: key == "algorithm")
    return ", ".join(IN_WORDS.get(key, key) for key in keys[:3])
