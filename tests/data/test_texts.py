"""Texts: as hashed words, and as windows of characters."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedapp.data.files import play_table
from fedapp.data.texts import ALPHABET, characters, tokens, windows, words
from fedapp.errors import ConfigError
from fedapp.problems.keys import TextKeys
from fedapp.tables import Value
from tests.support.tabular import array_problem, write_csv

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS: dict[str, Value] = {
    "problem": "text-classification",
    "dataset": "mail",
    "model": "bag",
    "partition": "iid",
}


def test_words_have_the_same_numbers_in_every_process() -> None:
    """Python's own hash differs from process to process; nodes would train different embeddings."""
    keys = TextKeys(vocabulary=100, length=6)
    row = tokens(words("To be, or NOT to be"), keys)
    assert row[0] == row[4] and row[1] == row[5]
    assert row.min() >= 1 and row.max() < 100
    program = (
        "from fedapp.data.texts import tokens, words; from fedapp.problems.keys import TextKeys; "
        "print(tokens(words('To be, or NOT to be'), TextKeys(vocabulary=100, length=6)).tolist())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)  # fmt: skip
    assert json.loads(other.stdout) == row.tolist()


def test_short_texts_are_padded_before_their_words() -> None:
    row = tokens(words("Speak, speak."), TextKeys(length=5))
    assert row[:3].tolist() == [0, 0, 0] and row[3] == row[4] > 0
    assert not tokens(words("... !"), TextKeys(length=5)).any()


def test_characters_are_numbered_by_a_fixed_alphabet() -> None:
    assert len(ALPHABET) == 96
    assert characters(ALPHABET).tolist() == list(range(1, 97))
    assert characters("a\tb\u00e9\U0001f600?\x7f").tolist() == [
        *characters("a"), 0, *characters("b"), 0, 0, *characters("?"), 0,
    ]  # fmt: skip


def test_windows_predict_every_character_but_the_first_once() -> None:
    text = characters("".join(chr(97 + k % 26) for k in range(23)))
    cut = windows(text, 5)
    assert cut.shape == (4, 6)
    np.testing.assert_array_equal(cut[:, 1:].ravel(), text[1:21])
    assert windows(text[:5], 5).shape == (0, 6)


def test_shakespeare_is_divided_by_speaker_and_its_ends_are_held_out() -> None:
    problem = array_problem(dataset="shakespeare", model="gru-8", partition="writer", num_clients=8)
    data = problem.data
    assert data.train.inputs.shape[1] == 80 and data.facts.vocabulary == 97
    np.testing.assert_array_equal(data.train.inputs[:, 1:], data.train.targets[:, :-1])
    assert 0.08 < len(data.test) / (len(data.train) + len(data.test)) < 0.12
    assert problem.partition is not None and data.writers is not None
    for client in range(8):
        assert len(set(data.writers[problem.partition[client]])) == 1
    seen = {row.tobytes() for row in data.train.inputs}
    assert not any(row.tobytes() in seen for row in data.test.inputs)


def test_a_play_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "play").mkdir()
    blocks = [f"{name}:\n{'Word after word, ' * 12}" for name in ("ANN", "BOB") for _ in range(5)]
    (tmp_path / "play" / "input.txt").write_text("\n\n".join(blocks))
    keys: dict[str, Value] = {"dataset": "play", "data_dir": str(tmp_path), "num_clients": 2}
    problem = array_problem(
        **keys, problem="next-character", model="gru-8", partition="writer", characters__length=20
    )
    assert len(set(problem.data.writers.tolist())) == 2  # type: ignore[union-attr]
    told = array_problem(**keys, problem="text-classification", model="bag", text__length=8)
    assert told.data.facts.num_classes == 2
    (tmp_path / "play" / "input.txt").write_text("ANN:\nHello.\n\nno name\nHello.")
    with pytest.raises(ConfigError, match="block 2 does not begin with a line such as ROMEO:"):
        array_problem(**keys, problem="next-character", model="gru-8")
    with pytest.raises(ConfigError, match=r"make characters.length smaller"):
        (tmp_path / "play" / "input.txt").write_text("ANN:\nHello.")
        array_problem(**keys, problem="next-character", model="gru-8")


@pytest.mark.skipif(not SHARED.exists(), reason="needs the whole of Shakespeare's plays")
def test_the_whole_of_shakespeare() -> None:
    table = play_table((SHARED / "shakespeare" / "input.txt").read_text())
    assert table.num_rows == 7222
    problem = array_problem(dataset="shakespeare", data_dir=str(SHARED), model="gru-8")
    assert len(problem.data.train) > 10_000
    assert not (problem.data.train.targets == 0).any()


def test_texts_and_classes_of_a_csv(tmp_path: Path) -> None:
    rows = [f'"Buy now, only {k} left",spam,ann' for k in range(6)] + [
        f'"See you at {k},\nas always",ham,bob' for k in range(6)
    ]
    write_csv(tmp_path / "mail" / "train.csv", rows, "text,label,writer")
    write_csv(tmp_path / "mail" / "test.csv", rows[4:8], "text,label,writer")
    data = array_problem(**TEXTS, data_dir=str(tmp_path)).data
    assert data.train.targets.tolist() == [1] * 6 + [0] * 6
    assert data.train.groups is not None and data.train.groups.tolist() == [0] * 6 + [1] * 6
    np.testing.assert_array_equal(data.train.inputs[4:8], data.test.inputs)
    with pytest.raises(ConfigError, match="set features to the one that holds the texts"):
        write_csv(tmp_path / "mail" / "train.csv", ["1,2"], "a,label")
        array_problem(**TEXTS, data_dir=str(tmp_path), seed=1)
    with pytest.raises(ConfigError, match="does not hold texts"):
        array_problem(**TEXTS, data_dir=str(tmp_path), features="a")
