"""Labels of every kind: read as they are, or refused in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from fedapp.cli import main
from fedapp.data import ImageData, load_images
from fedapp.errors import ConfigError
from tests.support.images import GREY, encoded, load, write


def labelled(parent: Path, labels: Any, name: str = "label") -> ImageData:
    files = [
        encoded(Image.fromarray(np.full((2, 2), 40 * k, np.uint8) + GREY[:2, :2]))
        for k in range(len(labels))
    ]
    write(parent / "set" / "train-0.parquet", files[:2], labels[:2], name)
    write(parent / "set" / "train-1.parquet", files[2:], labels[2:], name)
    write(parent / "set" / "test-0.parquet", files[:1], [0], name)
    return load_images("set", str(parent))


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([0, 3, 1, 2], pa.int8()),
        pa.array([0, 3, 1, 2], pa.uint64()),
        pa.array([0.0, 3.0, 1.0, 2.0], pa.float32()),
    ],
)
def test_whole_labels_of_any_type(labels: Any, tmp_path: Path) -> None:
    assert labelled(tmp_path, labels).train_labels.tolist() == [0, 3, 1, 2]


def test_yes_and_no_are_1_and_0(tmp_path: Path) -> None:
    files = [encoded(Image.fromarray(GREY)), encoded(Image.fromarray(GREY[::-1]))]
    assert load(tmp_path, files, [True, False]).train_labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ([0, 1, 1, -1], "-1"),
        (pa.array([0.0, 1.0, 1.0, 0.7]), "0.7"),
        (pa.array([0.0, 1.0, 1.0, float("nan")]), "nan"),
        (pa.array([0.0, 1.0, 1.0, float("inf")]), "inf"),
        ([0, 1, 1, None], "None"),
        (pa.array([0, 1, 1, 2**63], pa.uint64()), "9223372036854775808"),
    ],
)
def test_other_labels_are_refused_by_row(labels: Any, shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        labelled(tmp_path, labels, "character")
    place = f"row 1 of {tmp_path}/set/train-1.parquet has {shown} in its column character"
    assert place in str(told.value)
    assert "number the classes from 0" in str(told.value)


@pytest.mark.parametrize("labels", [["a", "b", "c"], pa.array(["a", "b", "a"]).dictionary_encode()])
def test_words_are_no_labels(labels: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"row 0 of .* has 'a' in its column label"):
        labelled(tmp_path, labels)


@pytest.mark.parametrize("labels", [[0, 1, -1], [0.0, 1.0, 0.5]])
def test_a_bad_label_ends_a_run_at_once(
    labels: list[float],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    files = [encoded(Image.fromarray(GREY)), encoded(Image.fromarray(GREY[::-1]))]
    for split in ("train", "test"):
        write(tmp_path / "set" / f"{split}-0.parquet", [*files, files[0]], labels)
    keys = f'dataset="set" data-dir="{tmp_path}" num-clients=1 clients-per-round=1 num-rounds=1'
    assert main(["run", "--engine", "inline", "--out", str(tmp_path / "out"), "-c", keys]) == 2
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err
    assert shown.err.count("Labels should be whole numbers from 0") == 1
    assert not (tmp_path / "out").exists()
