"""What runs are called in pictures and on the page, and what their configs differ in."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedapp.data.sources import SHAPES
from fedapp.doors import short
from fedapp.errors import ConfigError
from fedapp.names import display_name
from fedapp.report.runs import (
    NOT_COMPARED,
    Group,
    Run,
    in_groups,
    in_settings,
    setting_of,
    short_names,
)

# What axes and the titles of panels say instead of a key.
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


# What people call data sets.
DATASETS = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny ImageNet",
    "femnist": "FEMNIST",
    "emnist": "EMNIST digits",
}


def dataset_name(dataset: str) -> str:
    """Return what people call a data set; of one from elsewhere, the last part of its name."""
    return DATASETS.get(dataset, short(dataset))


def what_runs_are(runs: Sequence[Run]) -> str:
    """Return the algorithms and the data sets of runs, two at most of each: "GradMA, MNIST"."""
    algorithms, datasets = (
        list(dict.fromkeys(name(str(run.config.get(key, ""))) for run in runs))
        for key, name in (("algorithm", display_name), ("dataset", dataset_name))
    )
    shown = [" and ".join(names) for names in (algorithms, datasets) if len(names) < 3]
    return ", ".join(filter(None, shown))


def in_words(key: str) -> str:
    """Return a config key as axes and titles name it."""
    return IN_WORDS.get(key, key.rpartition(".")[2].replace("-", " "))


def names_of(groups: Sequence[Group]) -> list[str]:
    """Return the groups' names for people: the algorithm, and the keys that tell an algorithm's settings apart.

    Groups that are still the same have their seeds and the keys that they do not read, or else what is special in
    the names of their runs.
    """
    runs = [group.runs[0] for group in groups]
    names = [
        [display_name(str(run.config.get("algorithm", ""))) or group.name]
        for run, group in zip(runs, groups, strict=True)
    ]
    for same in _tied(names):
        keys = [key for key in differing_keys([runs[k] for k in same]) if key != "seed"]
        keys.sort(key="num-rounds".__eq__)  # which often go with another key
        skipped = [unread(keys, runs[k].config) for k in same]
        said = {
            key: [
                "" if key in s else _key_and_value(key, runs[k], keys)
                for k, s in zip(same, skipped, strict=True)
            ]
            for key in keys
        }
        needed = _needed(said)
        for place, k in enumerate(same):
            names[k] += [said[key][place] for key in needed if said[key][place]]
    settings = [setting_of(run) for run in runs]
    others = list(dict.fromkeys(key for setting in settings for key in setting))
    for key in [*others, "seed"]:
        for tied in _tied(names):
            texts = [
                ""
                if key == "seed" and len(groups[k].runs) > 1
                else _key_and_value(key, runs[k], others)
                for k in tied
            ]
            if len(set(texts)) > 1:
                for k, text in zip(tied, texts, strict=True):
                    names[k] += [text] if text else []
    for tied in _tied(names):
        for k, special in zip(tied, _special([runs[k].name for k in tied]), strict=True):
            names[k] += [special] if special else []
    return [", ".join(name) for name in names]


def _key_and_value(key: str, run: Run, among: Collection[str]) -> str:
    """Write a key and its value, without the key's table if no other key ends like it: "levels = 8"."""
    end = key.rpartition(".")[2]
    alike = [other for other in among if other.rpartition(".")[2] == end]
    value = run.config.get(key)
    text = short(value) or '""' if isinstance(value, str) else str(value)
    return f"{key if len(alike) > 1 else end} = {text.lower() if isinstance(value, bool) else text}"


def _needed(said: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the keys without which fewer groups can be told apart; `said` is what each key says of each group."""

    def told_apart(keys: Sequence[str]) -> int:
        return len(set(zip(*(said[key] for key in keys), strict=True))) if keys else 1

    needed: list[str] = []
    for key in said:
        if told_apart([*needed, key]) > told_apart(needed):
            needed.append(key)
    for key in list(needed):
        others = [other for other in needed if other != key]
        if told_apart(others) == told_apart(needed):
            needed = others
    return needed


def _tied(names: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the places of names that several groups have."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(", ".join(name), []).append(place)
    return [found for found in places.values() if len(found) > 1]


TIME = r"\d{8}-\d{6}"  # in the names of runs that nobody named


def _special(names: Sequence[str]) -> list[str]:
    """Return names without the words that all begin and end with, and without times that are not needed."""
    timeless = [re.sub(f"-?{TIME}", "", name) or name for name in names]
    if len(set(timeless)) == len(names):
        names = timeless
    parts = [re.findall(rf"{TIME}|[^-]+", name) for name in names]
    for end in (0, -1):
        while all(parts) and all(words[end] == parts[0][end] for words in parts):
            for words in parts:
                words.pop(end)
    found = ["-".join(words) for words in parts]
    return found if len(set(found)) == len(found) else list(names)


def name_of_each(runs: Sequence[Run]) -> dict[int, str]:
    """Return the name for people of each run's group, by the run's id."""
    groups = in_groups(runs)
    named = zip(names_of(groups), groups, strict=True)
    return {id(run): name for name, group in named for run in group.runs}


def runs_named(word: str, runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose names begin with a word or, if none does, with these letters.

    A run has several names: for people, its directory's, and that without what all of them begin with.
    """
    people = name_of_each(runs)
    names = [
        (run, (people[id(run)], run.name, short_name))
        for run, short_name in zip(runs, short_names(runs), strict=True)
    ]
    for end in ("(?![^-, ])", ""):
        begins = re.compile(re.escape(word) + end, re.IGNORECASE)
        if chosen := [run for run, those in names if any(map(begins.match, those))]:
            return chosen
    raise ConfigError(
        f"--panel {word}: no run's name begins so. In the legend they are {_listed(people.values())}; "
        f"their directories, {_listed(run.name for run in runs)}."
    )


def labelled(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Return the label and the runs of each setting."""
    groups = in_groups(runs)
    return [(label, g.runs) for label, g in zip(labels_of(groups), groups, strict=True)]


def labels_of(groups: Sequence[Group], given: Mapping[str, str] | None = None) -> list[str]:
    """Return the groups' labels, with notes: those given by the name of a run or a group, or else names for people."""
    found = []
    for group, name in zip(groups, names_of(groups), strict=True):
        keys = [name, group.name, *(run.name for run in group.runs)]
        label = next((given[key] for key in keys if given and key in given), name)
        found.append(f"{label} ({group.note})" if group.note else label)
    return found


def read_labels(assignments: Sequence[str], panels: Sequence[Sequence[Group]]) -> dict[str, str]:
    """Return the labels that RUN=NAME gives, by RUN; a run that is not in a panel is refused."""
    shown = [name for groups in panels for name in names_of(groups)]
    drawn = [group for groups in panels for group in groups]
    known = {name for group in drawn for name in (group.name, *(run.name for run in group.runs))}
    known |= set(shown)
    labels = {}
    for text in assignments:
        # A name may hold the sign itself: "lr = 0.1=small steps".
        cuts = [k for k, sign in enumerate(text) if sign == "=" and text[:k] in known]
        if not cuts:
            raise ConfigError(
                f"--label {text} names no run: write RUN=NAME with one of {_listed(shown)}."
            )
        labels[text[: cuts[-1]]] = text[cuts[-1] + 1 :]
    return labels


def _listed(names: Iterable[str], most: int = 10) -> str:
    known = list(dict.fromkeys(names))
    return "; ".join(known[:most]) + (" and others" if len(known) > most else "")


def unread(keys: Collection[str], config: Mapping[str, Any]) -> set[str]:
    """Return those of these keys on which a run's result cannot depend: where it is kept, and what it ignores."""
    from fedapp.registry import ALGORITHMS  # takes a second: flwr comes with it
    from fedapp.unused import ignored

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
    return ", ".join(map(in_words, keys[:3]))
