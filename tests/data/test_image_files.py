"""Images as plain bytes, by their paths, in folders, and from any repository of the hub."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedapp.data import load_images
from fedapp.errors import ConfigError
from tests.support.datasets import write_parquet
from tests.support.images import encoded

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 5), dtype=np.uint8)


def test_bytes_and_paths_give_the_same_pixels(tmp_path: Path) -> None:
    files = [encoded(Image.fromarray(image)) for image in PIXELS]
    for k, file in enumerate(files):
        (tmp_path / f"{k}.png").write_bytes(file)
    columns = {
        "plain": pa.array(files, pa.binary()),
        "paths": pa.array([{"bytes": None, "path": str(tmp_path / f"{k}.png")} for k in range(6)]),
    }
    for name, column in columns.items():
        for split in ("train", "test"):
            place = tmp_path / name / f"{split}-0.parquet"
            place.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"image": column, "label": [0, 1, 2, 0, 1, 2]}), place)
        data = load_images(name, str(tmp_path))
        np.testing.assert_array_equal(data.train_images[:, 0], PIXELS)
    (tmp_path / "3.png").unlink()
    (tmp_path / "paths" / "test-0.parquet").touch()
    with pytest.raises(ConfigError, match=r"row 3 of .* names the image .*3.png, which cannot"):
        load_images("paths", str(tmp_path))


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for k, name in enumerate(("cat", "dog", "cow") * 2):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(PIXELS[k]).save(folder / f"{k}.png")
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not an image")
    data = load_images("pets", str(tmp_path))
    assert data.train_labels.tolist() == [0, 0, 1, 1, 2, 2]  # cat, cow, dog
    np.testing.assert_array_equal(data.train_images[:, 0], PIXELS[[0, 3, 2, 5, 1, 4]])
    assert data.num_classes == 3 and len(data.test_labels) == 6
    (tmp_path / "pets" / "train" / "emu").mkdir()
    with pytest.raises(ConfigError, match=r"differ in their classes \(emu\)"):
        load_images("pets", str(tmp_path))


def test_folders_without_a_test_split(tmp_path: Path) -> None:
    for k in range(20):
        folder = tmp_path / "pets" / "train" / f"{k % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[k % 6]).save(folder / f"{k}.png")
    data = load_images("pets", str(tmp_path))
    assert (len(data.train_labels), len(data.test_labels)) == (18, 2)
    (tmp_path / "empty" / "train").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds no images: give it a folder for each class"):
        load_images("empty", str(tmp_path))


def test_images_of_any_repository_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's loader takes a local directory for a repository: the loading code is the real one."""
    for split in ("train", "validation"):
        write_parquet(tmp_path / "zoo" / "pets" / f"{split}-0.parquet", PIXELS, [0, 1, 2, 0, 1, 2])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = load_images("zoo/pets", "")
    np.testing.assert_array_equal(data.train_images[:, 0], PIXELS)
    assert len(data.test_labels) == 6
