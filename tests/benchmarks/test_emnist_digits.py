"""FEMNIST's digits in place of EMNIST's."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmarks import emnist_digits
from fedapp.data import load_images


def png(grey: int) -> bytes:
    content = BytesIO()
    Image.new("L", (28, 28), grey).save(content, "PNG")
    return content.getvalue()


def test_digits_are_taken_out_and_turned_white_on_black(tmp_path: Path) -> None:
    (tmp_path / "femnist").mkdir()
    images = [{"bytes": png(grey)} for grey in (255, 200, 0, 55)]
    rows = pa.table({"image": images, "label": [9, 10, 0, 61], "writer_id": list("abcd")})
    for part in ("train", "test"):
        pq.write_table(rows, tmp_path / "femnist" / f"{part}-0.parquet")
    words = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "digits")]
    assert emnist_digits.main(words) == 0
    data = load_images("emnist", str(tmp_path / "digits"))
    assert data.train_labels.tolist() == [9, 0]
    assert np.ptp(data.train_images, axis=(1, 2, 3)).tolist() == [0, 0]
    black, white = data.train_images[:, 0, 0, 0]
    assert black < white


def test_without_femnist_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no parquet files in"):
        emnist_digits.main(["--data-dir", str(tmp_path), "--out", str(tmp_path / "digits")])
