"""FEMNIST's digits in place of EMNIST's: `python -m benchmarks.emnist_digits --data-dir DATA --out DIR`.

Where `dataset = "emnist"` cannot be had. Takes the ten digits out of `DATA/femnist`, turns them white on black as EMNIST
has them, and writes them to `DIR/emnist`; DIR is then the experiment's data-dir. They are of the same forms as EMNIST's,
but as many as DATA holds.
"""

import argparse
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image, ImageOps

DIGITS = 10  # the first classes of FEMNIST


def inverted(png: bytes) -> bytes:
    """Return the negative of an image."""
    content = BytesIO()
    ImageOps.invert(Image.open(BytesIO(png)).convert("L")).save(content, "PNG")
    return content.getvalue()


def digits_of(rows: pa.Table) -> pa.Table:
    """Return the digits among some rows, white on black."""
    rows = rows.filter(pc.less(rows["label"], DIGITS))
    images = [{"bytes": inverted(image["bytes"])} for image in rows["image"].to_pylist()]
    return pa.table({"image": images, "label": rows["label"]})


def main(words: Sequence[str] | None = None) -> int:
    """Write the digits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="holds femnist/*.parquet")
    parser.add_argument("--out", type=Path, required=True, help="where emnist/ is made")
    arguments = parser.parse_args(words)
    files = sorted((arguments.data_dir / "femnist").glob("*.parquet"))
    if not files:
        sys.exit(f"There are no parquet files in {arguments.data_dir / 'femnist'}.")
    (arguments.out / "emnist").mkdir(parents=True, exist_ok=True)
    for file in files:
        digits = digits_of(pq.read_table(file, columns=["image", "label"]))
        pq.write_table(digits, arguments.out / "emnist" / file.name)
        print(f"{arguments.out / 'emnist' / file.name}: {digits.num_rows:,} digits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
