"""What there is to say about one algorithm: `fedapp algorithms NAME` and `fedapp keys NAME`."""

import json
import sys
import textwrap
from inspect import getdoc

from fedapp import memory
from fedapp.algorithm import Algorithm
from fedapp.doors import is_outside
from fedapp.keys import Key, declared_keys
from fedapp.parsing import config_type, parse_run_config
from fedapp.registry import find_algorithm, module_of
from fedapp.unused import ignored

INDENT = "#     "


def describe(name: str, width: int) -> str:
    """Return what an algorithm is, its paper, what travels, what it needs, and its own keys."""
    algorithm = find_algorithm(name)
    parts = [f"{algorithm.name}: {algorithm.summary}.", *_paragraphs(name, algorithm)]
    if needs := algorithm.needs.in_words():
        parts.append(f"Needs: {', '.join(needs)}.")
    kept = memory.in_words(algorithm.strategy, parse_run_config({}))
    parts.append(f"The server keeps: {kept}.")
    text = "\n\n".join(textwrap.fill(part, width, break_on_hyphens=False) for part in parts)
    declared = {key.path: key for key in declared_keys(config_type(name))}
    own = [(declared[key], value) for key, value in algorithm.keys().items()]
    lines = [line for key, value in own for line in _lines(key, value, width)]
    after = f"`fedapp keys {name}` lists the keys of every run, too."
    if lines:
        return "\n".join([text, "", "Keys, with their defaults:", *lines, "", after])
    return f"{text}\n\n{algorithm.name} has no keys of its own: {after}"


def keys_of(name: str, width: int) -> str:
    """Return every key that an algorithm listens to with its default, as TOML: it can be saved as a preset."""
    algorithm = find_algorithm(name)
    fixed = algorithm.needs.fixed(parse_run_config({}).num_clients)
    own = algorithm.keys()
    keys = {key.path: key for key in declared_keys(config_type(name))}
    common = {k.path: k.default for k in listened_to(name) if k.path not in own | fixed}
    lines = [f"algorithm = {json.dumps(name)}"]
    for title, values in (
        (f"Keys of {algorithm.name}", own),
        ("Keys of every run", {k: v for k, v in common.items() if not keys[k].table}),
        (
            "Keys of compressors, problems and other parts, for runs that use them",
            {k: v for k, v in common.items() if keys[k].table},
        ),
    ):
        if values:
            lines += ["", f"# {title}"]
            lines += [line for k, value in values.items() for line in _lines(keys[k], value, width)]
    if fixed:
        lines += ["", f"# {algorithm.name} allows only these values"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in fixed.items()]
    return "\n".join(lines)


def listened_to(name: str) -> list[Key]:
    """Return the keys that can make a difference to an algorithm's runs: not those of other algorithms."""
    keys = {key.path: key for key in declared_keys(config_type(name)) if key.path != "algorithm"}
    unused = ignored(keys, {"algorithm": name}, find_algorithm(name))
    return [key for path, key in keys.items() if path not in unused]


def _lines(key: Key, value: object, width: int) -> list[str]:
    """Write a key with its value and what it takes, and below what it means; as TOML, with comments."""
    first = f"{key.path} = {json.dumps(value)}"
    described = textwrap.wrap(
        key.description,
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_on_hyphens=False,
    )
    return [f"{first}  # {key.allowed}", *described]


def _paragraphs(name: str, algorithm: Algorithm) -> list[str]:
    """Return what the module that declares an algorithm says of it: the paper, what goes down and up, who keeps what."""
    outside = sys.modules.get(name.partition(":")[0])
    module = outside if is_outside(name) else module_of(algorithm)
    text = (module and getdoc(module)) or ""
    return [" ".join(part.split()) for part in text.split("\n\n")]
