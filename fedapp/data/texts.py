"""Texts: as hashed words for classification, and as characters for predicting the next one.

Neither needs a vocabulary that nodes would have to agree on: a word's number is a hash of it, a character's its place in
printable ASCII.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data import columns
from fedapp.data.arrays import Decoder
from fedapp.data.facts import Facts
from fedapp.data.files import Table, embedded_speeches
from fedapp.data.parts import TEST_SHARE, Part, both_splits, num_classes_of, numbered
from fedapp.data.tabular import checked_classes
from fedapp.errors import ConfigError
from fedapp.problems.keys import CharacterKeys, TextKeys

WORD = re.compile(r"\w+(?:'\w+)*")
SPEAKERS = 10  # only those who say most in a play have a class each
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # the number 0 is any other character
_CODES = np.zeros(128, np.uint8)  # ASCII only; the last is not printable, so 0
_CODES[[ord(character) for character in ALPHABET]] = np.arange(1, len(ALPHABET) + 1)


def words(text: str) -> list[str]:
    """Return a text's words in lower case."""
    return WORD.findall(text.lower())


def tokens(found: Sequence[str], keys: TextKeys) -> NDArray[np.int32]:
    """Return the numbers of the first words, from 1, with zeros before them if there are few."""
    row = np.zeros(keys.length, np.int32)
    if read := found[: keys.length]:
        row[-len(read) :] = [1 + zlib.crc32(w.encode()) % (keys.vocabulary - 1) for w in read]
    return row


def _words(
    train: Table | None, test: Table | None, config: RunConfig, whole: bool
) -> tuple[Part, Part]:
    keys = config.table(TextKeys)
    if train and train.is_play:
        return numbered(
            *_passages(_texts_by_group(train, config), keys, 0.0 if whole else TEST_SHARE)
        )

    def part(table: Table | None) -> Part | None:
        if table is None:
            return None
        texts = columns.texts(table, columns.text_column(table, config.features))
        labels = columns.classes(table, columns.target_column(table, config.target))
        group = columns.find_column(table, "group", config.group, columns.GROUP_COLUMNS)
        rows = np.stack([tokens(words(text), keys) for text in texts])
        return Part(rows, labels, columns.groups(table, group))

    return both_splits(part(train), part(test), whole)


def _passages(said: dict[str, str], keys: TextKeys, share: float) -> tuple[Part, Part]:
    """Cut what those who say most say into passages, to tell who speaks; the last share of each is for the test."""
    train: list[tuple[NDArray[np.int32], str]] = []
    test: list[tuple[NDArray[np.int32], str]] = []
    for name in sorted(said, key=lambda name: (-len(said[name]), name))[:SPEAKERS]:
        found = words(said[name])
        starts = range(0, max(len(found) - keys.length + 1, 1), keys.length)
        rows = [(tokens(found[start:], keys), name) for start in starts]
        held = round(share * len(rows))
        train += rows[: len(rows) - held]
        test += rows[len(rows) - held :]
    first, second = (
        Part(
            np.array([row for row, _ in pairs], np.int32).reshape(-1, keys.length),
            np.array([name for _, name in pairs], str),
            np.array([name for _, name in pairs], str),
        )
        for pairs in (train, test)
    )
    return first, second


def _checked_words(train: Part, test: Part, config: RunConfig) -> tuple[Part, Part]:
    """Return given texts, or given tokens, as tokens."""
    keys = config.table(TextKeys)
    train, test = checked_classes(train, test, config)
    if train.inputs.dtype.kind in "UO":
        first, second = (
            replace(p, inputs=np.stack([tokens(words(str(text)), keys) for text in p.inputs]))
            for p in (train, test)
        )
        return first, second
    for part in (train, test):
        whole = part.inputs.ndim == 2 and part.inputs.dtype.kind in "iu"
        if not whole or part.inputs.min() < 0 or part.inputs.max() >= keys.vocabulary:
            raise ConfigError(
                f"dataset = {config.dataset!r} should give texts, or tokens (n, length) from 0 to {keys.vocabulary - 1}: "
                "0 stands for no word; text.vocabulary sets how many there are."
            )
    return train, test


def _facts_of_words(train: Part, test: Part, config: RunConfig) -> Facts:
    length = (train if len(train) else test).inputs.shape[1]
    vocabulary = config.table(TextKeys).vocabulary
    return Facts((length,), num_classes_of((train, test)), vocabulary=vocabulary)


def characters(text: str) -> NDArray[np.uint8]:
    """Return the numbers of a text's characters."""
    points = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    return np.asarray(_CODES[np.minimum(points, len(_CODES) - 1)])


def windows(text: NDArray[np.uint8], length: int) -> NDArray[np.uint8]:
    """Cut a text into windows of length + 1 characters; each begins with the last character of the one before."""
    count = (len(text) - 1) // length
    if count < 1:
        return np.zeros((0, length + 1), np.uint8)
    starts = np.arange(count) * length
    return np.asarray(text[starts[:, None] + np.arange(length + 1)])


def _characters(
    train: Table | None, test: Table | None, config: RunConfig, whole: bool
) -> tuple[Part, Part]:
    """Cut each speaker's text into windows; without a test split, the last tenth of each text is for the test."""
    length = config.table(CharacterKeys).length
    if train is None:
        first, second = (_windows_by_group(said, length) for said in ({}, _coded(test, config)))
    elif test is not None:
        first, second = (_windows_by_group(_coded(t, config), length) for t in (train, test))
    else:
        said = _coded(train, config)
        share = 0.0 if whole else TEST_SHARE
        ends = {name: len(text) - round(share * len(text)) for name, text in said.items()}
        first = _windows_by_group({n: text[: ends[n]] for n, text in said.items()}, length)
        second = _windows_by_group({n: text[ends[n] :] for n, text in said.items()}, length)
    if not len(first) + len(second):
        raise ConfigError(
            f"No text of {config.dataset} has characters.length + 1 = {length + 1} characters: make characters.length "
            "smaller.",
            tell=True,
        )
    return both_splits(first, second, whole)


def _texts_by_group(table: Table, config: RunConfig) -> dict[str, str]:
    """Return all that each group says, in order, line by line; without groups, all texts are one."""
    texts = columns.texts(table, columns.text_column(table, config.features))
    name = columns.find_column(table, "group", config.group, columns.GROUP_COLUMNS)
    groups = columns.groups(table, name)
    said: dict[str, list[str]] = {}
    for row, text in enumerate(texts):
        said.setdefault("" if groups is None else str(groups[row]), []).append(text)
    return {name: "\n".join(parts) for name, parts in said.items()}


def _coded(table: Table | None, config: RunConfig) -> dict[str, NDArray[np.uint8]]:
    """Return what each group says as characters' numbers."""
    said = _texts_by_group(table, config) if table else {}
    return {name: characters(text) for name, text in said.items()}


def _windows_by_group(said: dict[str, NDArray[np.uint8]], length: int) -> Part:
    cut = {name: windows(text, length) for name, text in said.items()}
    rows = np.concatenate([np.zeros((0, length + 1), np.uint8), *cut.values()])
    groups = np.repeat(list(cut), [len(part) for part in cut.values()]) if cut else None
    return Part(rows[:, :-1], rows[:, 1:], groups)


def _checked_characters(train: Part, test: Part, config: RunConfig) -> tuple[Part, Part]:
    raise ConfigError(
        f"dataset = {config.dataset!r} gives arrays: for next-character, return a Hugging Face Dataset or a DataFrame with "
        "a column of texts."
    )


def _facts_of_characters(train: Part, test: Part, config: RunConfig) -> Facts:
    size = len(ALPHABET) + 1
    return Facts((config.table(CharacterKeys).length,), size, vocabulary=size)


WORDS = Decoder(
    name="words",
    embedded={"speeches": embedded_speeches},
    decode=_words,
    check=_checked_words,
    facts=_facts_of_words,
    settings=lambda config: (config.table(TextKeys),),
)
CHARACTERS = Decoder(
    name="characters",
    embedded={"shakespeare": embedded_speeches},
    decode=_characters,
    check=_checked_characters,
    facts=_facts_of_characters,
    settings=lambda config: (config.table(CharacterKeys),),
    per_token=True,
)
