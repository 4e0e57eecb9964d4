"""Data sets that tests write."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from fedapp.data import load_images, load_partition
from fedapp.parsing import parse_run_config
from fedapp.tables import Value


def write_parquet(
    path: Path,
    images: NDArray[Any],
    labels: list[int],
    column: str = "image",
    **more: list[int],
) -> None:
    """Write images as PNG in the layout of the Hugging Face hub."""
    encoded = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: encoded, "label": labels, **more}), path)


OWN_DATA: dict[str, Value] = {
    "model": "mlp-10",
    "num-clients": 3,
    "clients-per-round": 3,
    "num-rounds": 3,
    "partition": "iid",
}


def write_shards(directory: Path, keys: dict[str, Value] = OWN_DATA) -> list[str]:
    """Write each client's part of the digits as a node's own data; return the nodes' directories."""
    config = parse_run_config(keys)
    data = load_images("digits", "")
    held = load_partition(data, config)
    for client in range(config.num_clients):
        images, labels = data.train_images[held[client]], data.train_labels[held[client]]
        place = directory / f"node-{client}" / "digits" / "train-00000-of-00001.parquet"
        write_parquet(place, images[:, 0].astype(np.uint8), labels.tolist())
    return [str(directory / f"node-{client}") for client in range(config.num_clients)]


def write_tests(places: list[str]) -> None:
    """Give each node's own data a test split: its part of the digits' test samples, in their order."""
    data = load_images("digits", "")
    for place, rows in zip(
        places, np.array_split(np.arange(len(data.test_labels)), len(places)), strict=True
    ):
        path = Path(place) / "digits" / "test-00000-of-00001.parquet"
        images = data.test_images[rows][:, 0].astype(np.uint8)
        write_parquet(path, images, data.test_labels[rows].tolist())
