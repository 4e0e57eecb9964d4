"""What `fedapp check` does: find what is wrong with runs before they are submitted, and say it in one sentence each.

A mistake that the ServerApp finds after `flwr run` costs the upload, the start of an environment and a page of package
versions. Everything that can be known on this machine is checked here: presets and keys, the data and their columns,
whether model, data and algorithm fit together, memory, places to write to, and which nodes are online.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedapp import building, memory
from fedapp.commandline import absolute_paths, flat_keys, read_overrides
from fedapp.config import RunConfig
from fedapp.engine.inline import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.figures import human_bytes
from fedapp.keys import BLOCK
from fedapp.manifest import results_dir, run_path
from fedapp.names import one_line
from fedapp.parsing import config_problems, parse_run_config
from fedapp.problems import kind_of, make_problem, rehearse, subject
from fedapp.problems.protocols import FederatedProblem, Start
from fedapp.registry import find_algorithm
from fedapp.run_directory import existing_run
from fedapp.sweeps import PlannedRun, read_runs
from fedapp.tables import Value
from fedapp.trackers.log import find_trackers
from fedapp.unused import warning

T = TypeVar("T")
NODES_TIMEOUT = 60.0  # seconds for a SuperLink to answer


@dataclass
class Findings:
    """What is wrong, what a user should know, and what was checked."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    command: str = ""  # that submits the run, if it is one that `flwr run` takes

    def attempt(self, check: Callable[..., T], *arguments: Any, where: str = "") -> T | None:
        """Return what a check returns; note what is wrong, once, and return None."""
        try:
            return check(*arguments)
        except (ConfigError, RunError) as error:
            sentence = one_line(f"{where}{error}")
        except OSError as error:
            place = error.filename or "A file"
            sentence = one_line(
                f"{where}{place} cannot be used ({error.strerror or error}): choose another."
            )
        if sentence not in self.problems:
            self.problems.append(sentence)
        return None


def check(
    presets: Sequence[Path], assignments: Sequence[str], app: Path, superlink: str = ""
) -> Findings:
    """Check the runs that presets and assignments give, for the Flower app in a directory, if there is one."""
    findings = Findings()
    declared = findings.attempt(_declared, app / "pyproject.toml") or {}
    overrides: dict[str, Value] = {}
    for text in assignments:
        overrides |= findings.attempt(read_overrides, [], [text]) or {}
    runs: list[PlannedRun] = []
    for preset in presets:
        runs += findings.attempt(read_runs, preset) or []
    if not presets:
        runs = [PlannedRun("", {})]
    configs: list[RunConfig] = []
    for run in runs:
        given = run.values | overrides
        if run.name:  # `fedapp run` reads sweeps, and no pyproject.toml
            values = absolute_paths(given)
        else:
            _check_declared(given, declared, findings)
            values = absolute_paths(declared | given)
        where = f"{run.name}: " if run.name else ""
        if wrong := config_problems(values):
            fresh = [where + text for text in wrong if where + text not in findings.problems]
            findings.problems += fresh
            continue
        configs.append(parse_run_config(values | ({"run-name": run.name} if run.name else {})))
        _check_run(configs[-1], where, is_swept=bool(run.name), findings=findings, remote=superlink)
    if configs and not findings.problems:
        findings.checked.insert(0, f"{len(configs)} run{'s' if len(configs) > 1 else ''}")
    if unused := warning(configs):
        findings.notes.append(unused)
    if superlink and _is_simulation(superlink):
        findings.notes.append(f"{superlink} is a simulation: its nodes start with the run.")
    elif superlink:
        nodes = findings.attempt(online_nodes, superlink)
        if nodes is not None:
            findings.problems += node_problems(nodes, configs, superlink)
            findings.checked.append(f"{len(nodes)} nodes of {superlink}")
    if declared and len(runs) == 1 and not runs[0].name:
        given = absolute_paths(runs[0].values | overrides)  # as they were checked
        findings.command = _command(app, superlink, given)
    return findings


def _declared(pyproject: Path) -> dict[str, Value]:
    """Return the run config that a Flower app declares; empty if the file is not one's."""
    if not pyproject.is_file():
        return {}
    try:
        table = tomllib.loads(pyproject.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{pyproject} cannot be read: {error}.") from None
    for part in BLOCK.split("."):
        table = table.get(part, {})
    return flat_keys(pyproject, table)


def _check_declared(
    given: Mapping[str, Value], declared: Mapping[str, Value], findings: Findings
) -> None:
    """Note keys that Flower would refuse, because the app does not declare them."""
    known = parse_run_config({}).flat()
    for key in given.keys() & known.keys() - declared.keys() if declared else ():
        text = f"`flwr run` refuses {key}, because pyproject.toml does not declare it: add it to [{BLOCK}]."
        if text not in findings.problems:
            findings.problems.append(text)


def _check_run(
    config: RunConfig, where: str, is_swept: bool, findings: Findings, remote: str
) -> None:
    """Check one run: that its parts fit together, its data, its memory, and where it writes."""
    if findings.attempt(find_algorithm, config.algorithm, where=where) is None:
        return
    findings.attempt(find_trackers, config, where=where)
    for key, place in (("results-dir", results_dir(config)), ("state-dir", config.state_dir)):
        if place and not remote:
            findings.attempt(_demand_writable, key, Path(place), where=where)
    if not is_swept and not remote:
        findings.attempt(_demand_free_name, config, where=where)
    if findings.attempt(kind_of, config, where=where) is None:
        return
    away = remote and config.data_dir and not _is_found(Path(config.data_dir))
    if away or not config.server_data:
        findings.notes.append("The data are not on this machine, and were not checked.")
        return
    # The outline has the model's size, but not the model: one that does not fit must not be built.
    outline = findings.attempt(kind_of(config).outline, config, where=where)
    if outline is None or not findings.attempt(_fits_memory, config, outline, where=where):
        return
    problem = findings.attempt(make_problem, config, where=where)
    if problem is None:
        return
    findings.attempt(_fits_problem, config, problem, where=where)
    size = sum(part.nbytes for part in memory.parts(config, problem, 1))
    text = (
        f"{subject(config)} with {config.model if kind_of(config).uses_model else kind_of(config).name} "
        f"({problem.layout.size:,} parameters, at least {human_bytes(size)} of memory)"
    )
    if text not in findings.checked:
        findings.checked.append(text)


def _fits_problem(config: RunConfig, problem: FederatedProblem) -> None:
    """Raise ConfigError if a client's data cannot be loaded, or do not go with the model and the algorithm."""
    rehearse(config, problem)
    building.check(config, problem)


def _fits_memory(config: RunConfig, outline: Start) -> bool:
    """Raise ConfigError if a run on one process does not fit into this machine's memory."""
    on_disk = bool(config.state_dir or config.checkpoint_every)
    memory.check(config, outline, 1, InlineGrid.adds_up, states=not on_disk)
    return True


def _demand_writable(key: str, place: Path) -> None:
    """Raise ConfigError if a directory cannot be made or written to; nothing is made."""
    place = place.expanduser()
    try:
        there = next(parent for parent in (place, *place.parents) if _is_there(parent))
        writable = there.is_dir() and os.access(there, os.W_OK)
    except OSError:  # a name that is too long, or in a directory that this user may not enter
        writable = False
    if not writable:
        raise ConfigError(f"{key} = {str(place)!r} cannot be written: choose another.")


def _is_there(place: Path) -> bool:
    """Tell whether a file or directory exists; OSError if that cannot be told, which `Path.exists` does not raise in every Python."""
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_found(place: Path) -> bool:
    """Tell whether a file or directory exists, as far as this user can see."""
    with suppress(OSError):
        return _is_there(place)
    return False


def _demand_free_name(config: RunConfig) -> None:
    """Raise ConfigError if a run's directory holds results already, or does not hold the run to resume."""
    if config.resume:
        existing_run(config)
    elif config.run_name and _is_found(run_path(config)):
        raise ConfigError(
            f"run-name = {config.run_name!r} has results already, in {run_path(config)}: choose another name, remove "
            "them, or go on with resume = true."
        )


def _is_simulation(superlink: str) -> bool:
    """Tell whether Flower's config names a simulation on this machine; asking for its nodes would start it."""
    path = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser() / "config.toml"
    try:
        known = tomllib.loads(path.read_text())["superlink"]
        return bool(known[superlink]["address"] == ":local:")
    except (OSError, ValueError, KeyError, TypeError):  # Flower says what is wrong
        return superlink == "local"


def online_nodes(superlink: str) -> list[int]:
    """Return the ids of the SuperNodes that are online, as `flwr supernode list` has them."""
    beside = Path(sys.executable).with_name("flwr")
    flwr = str(beside) if beside.exists() else shutil.which("flwr") or "flwr"
    words = [flwr, "supernode", "list", superlink, "--format", "json"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=NODES_TIMEOUT)
        shown = done.stdout[max(done.stdout.find("{"), 0) :]
        answer = json.JSONDecoder().raw_decode(shown)[0]
        if answer.get("success"):
            found = [node for node in answer["nodes"] if node["status"] == "online"]
            return [int(node["node-id"]) for node in found]
        why = str(answer.get("error-message") or answer).strip().splitlines()[-1]
    except subprocess.TimeoutExpired:
        why = f"no answer within {NODES_TIMEOUT:g} s"
    except OSError as error:
        why = str(error)
    except (ValueError, KeyError, TypeError):
        said = [line.strip("│╭╮╰╯─ ") for line in (done.stderr + done.stdout).splitlines()]
        why = next((line for line in reversed(said) if line), "no answer")
    raise ConfigError(
        f"The SuperLink {superlink} does not list its nodes ({one_line(why)[:400].rstrip('.')}): start it, or fix its "
        "entry in Flower's config.toml."
    )


def node_problems(
    nodes: Sequence[int], configs: Sequence[RunConfig], superlink: str
) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with the nodes that are online."""
    if not nodes:
        yield f"No SuperNode of {superlink} is online: start the nodes."
        return
    for config in configs[:1]:
        for node in sorted(config.partition_of.keys() - set(nodes)):
            yield f"node-partitions names node {node}, which is not online: start it, or take it out."
        if len(nodes) > config.num_clients:
            yield (
                f"{len(nodes)} nodes are online, and num-clients = {config.num_clients} leaves some without a client: set "
                f"num-clients to {len(nodes)} or more."
            )


def _command(app: Path, superlink: str, values: Mapping[str, Value]) -> str:
    """Return the `flwr run` command for a config, with values as Flower reads them."""
    words = ["flwr", "run", str(app), *([superlink] if superlink else []), "--stream"]
    if values:
        texts = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        words += ["--run-config", " ".join(texts)]
    return shlex.join(words)
