"""Run every algorithm on one engine, in this process, and print what came out: `python -m tests.engine.load inline DIR [NAME ...]`.

Models have a layer of 12,800 numbers: longer than what the projection multiplies in float64, and than what
OpenBLAS adds up on one thread.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from flwr.serverapp import Grid

from fedapp import client_app, server_app
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.projection import SHORT
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import read_rounds

KEYS: dict[str, Value] = {
    "model": "mlp-200",
    "num-clients": 12,
    "clients-per-round": 6,
    "local-steps": 2,
    "lr": 0.05,
    "num-rounds": 2,
    "eval-every": 2,
    "seed": 3,
}
LAYER = 64 * 200
assert LAYER > SHORT


def configs() -> dict[str, dict[str, Value]]:
    """Return a config for every algorithm, and some for what else computes."""
    found: dict[str, dict[str, Value]] = {}
    for name in ALGORITHMS:
        found[name] = KEYS | {"algorithm": name}
        if name in ("fedcet", "qsgd"):
            found[name]["clients-per-round"] = 12
        if name in ("qsgd", "diana", "vrdiana"):
            found[name]["local-steps"] = 1
        if name.startswith("gradma"):  # its server's products need many rows
            found[name]["num-rounds"] = 5
            found[f"{name}-again"] = found[name]
    # Shorter than all updates, so that each is scaled by its norm; in float64, which shows its last bit.
    exact: dict[str, Value] = KEYS | {"dtype": "float64"}
    private: dict[str, Value] = exact | {"dp.clip": 0.01, "dp.noise-from": "seed"}
    found["clipped"] = exact | {"max-update-norm": 0.01, "on-long-update": "clip"}
    found["private-server"] = private
    found["private-clients"] = private | {"dp.where": "client"}
    found["logistic"] = KEYS | {"model": "logistic"}
    found["quadratic"] = KEYS | {"dataset": "quadratic", "quadratic.dim": 120}
    return found


def digests(grid: Callable[[RunConfig], Grid], results: Path) -> dict[str, str]:
    """Run all, or those named on the command line; return a digest of each one's model and figures."""
    found = {}
    for name, keys in configs().items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        config = parse_run_config(keys | {"results-dir": str(results), "run-name": name})
        path = server_app.run(grid(config), config).path
        figures = [record | {"wall_seconds": 0} for record in read_rounds(path)]
        digest = hashlib.sha256((path / "model.safetensors").read_bytes())
        digest.update(json.dumps(figures).encode())
        found[name] = digest.hexdigest()[:16]
    return found


def main() -> None:
    """Print the digests as a line of JSON."""
    engine, results = sys.argv[1], Path(sys.argv[2])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with ExitStack() as stack:
        if engine == "ray":
            from fedapp.engine.ray import RayGrid
            from fedapp.engine.ray_workers import RayWorkers

            workers = stack.enter_context(RayWorkers(2))
            found = digests(lambda config: RayGrid(workers, config.flat()), results)
        else:
            found = digests(lambda config: InlineGrid(client_app.app, config.flat()), results)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
