"""Real updates for the leaderboard of codecs: what clients of FedAvg hand to their compressor while four models train.

`python -m benchmarks.updates --data-dir DIR --out updates` runs fedapp in this process and writes a file
`<model>-<phase>[-feedback].npz` for each model and phase: `us` are the vectors of the first clients of one round, a row
each; `shapes` are the shapes of the tensors that a row is made of. With feedback, clients send the largest 5% and
remember the rest, so that a vector is an update and what was left behind before. A file that exists is kept.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp import run
from fedapp.compression.compressor import Vector
from fedapp.compression.floats import Identity
from fedapp.compression.sparsifiers import TopK
from fedapp.problems import make_problem
from fedapp.randomness import Generator

# All of them in every round, so that each remembers what it left behind in the round before.
CLIENTS = 4
KEPT = 2  # clients whose vectors are kept
EVERY = {"algorithm": "fedavg", "num-clients": CLIENTS, "clients-per-round": CLIENTS, "seed": 1}
DIRICHLET = {"partition": "dirichlet", "partition-alpha": 0.5}
handed: list[Vector] = []  # to the compressor, in the order of rounds and clients


@dataclass(frozen=True)
class Training:
    """A model, what it learns, and the rounds of its phases."""

    config: dict[str, Any]
    phases: dict[str, int]

    @property
    def rounds(self) -> int:
        """How many rounds to run."""
        return max(self.phases.values())


TRAININGS = {
    "mlp": Training(
        {"dataset": "mnist", "model": "mlp-200-200", "local-steps": 10, "batch-size": 32, "lr": 0.1} | DIRICHLET,
        {"early": 2, "middle": 20, "late": 100},
    ),
    "lenet5": Training(
        {"dataset": "cifar10", "model": "lenet5", "local-steps": 10, "batch-size": 32, "lr": 0.05} | DIRICHLET,
        {"early": 2, "middle": 20, "late": 100},
    ),
    "gru": Training(
        {"dataset": "shakespeare", "model": "gru", "local-steps": 5, "batch-size": 16, "lr": 1.0, "partition": "writer"},
        {"early": 2, "middle": 10, "late": 40},
    ),
    "resnet20": Training(
        {"dataset": "cifar10", "model": "resnet20", "local-steps": 5, "batch-size": 32, "lr": 0.1} | DIRICHLET,
        {"early": 2, "middle": 10, "late": 40},
    ),
}  # fmt: skip


class Watched(Identity):
    """Loses nothing, and remembers what it was handed."""

    name: ClassVar[str] = "watched"
    codec: ClassVar[int] = 200

    def quantize(self, v: Vector, rng: Generator) -> tuple[Vector]:
        """Remember the vector."""
        handed.append(v.copy())
        return super().quantize(v, rng)


class WatchedTopK(TopK):
    """Keeps the largest numbers, and remembers what it was handed."""

    name: ClassVar[str] = "watched-topk"
    codec: ClassVar[int] = 201
    ratio: float = 0.05

    def quantize(self, v: Vector, rng: Generator) -> Any:
        """Remember the vector."""
        handed.append(v.copy())
        return super().quantize(v, rng)


def captured(
    training: Training, data_dir: str, feedback: bool
) -> tuple[list[Vector], NDArray[Any], float]:
    """Run a training; return all vectors in order, the tensors' shapes, and the last test accuracy."""
    handed.clear()
    with tempfile.TemporaryDirectory() as results:
        result = run(
            EVERY | training.config,
            num_rounds=training.rounds,
            data_dir=data_dir,
            compressor=WatchedTopK if feedback else Watched,
            error_feedback=feedback,
            eval_every=training.rounds,
            results_dir=results,
            show=False,
        )
        last, shapes = result.rounds[-1], shapes_of(make_problem(result.config))
    if len(handed) != CLIENTS * training.rounds:
        raise SystemExit("the run did not hand over one vector for each client and round")
    return list(handed), shapes, float(last["test_accuracy"])


def shapes_of(problem: Any) -> NDArray[Any]:
    """Return the shapes of the tensors that a model's vector is made of, in its order."""
    tensors = dict(problem.model.module.named_parameters())
    shapes = np.empty(len(problem.model.names), object)
    shapes[:] = [tuple(tensors[name].shape) for name in problem.model.names]
    return shapes


def main() -> None:
    """Write the files that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", required=True, help="holds mnist/, cifar10/, shakespeare/")
    parser.add_argument("--out", type=Path, default=Path("updates"))
    parser.add_argument("--models", nargs="*", choices=TRAININGS, default=list(TRAININGS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for model in arguments.models:
        training = TRAININGS[model]
        for feedback in (False, True):
            ending = "-feedback.npz" if feedback else ".npz"
            paths = {phase: arguments.out / f"{model}-{phase}{ending}" for phase in training.phases}
            if all(path.exists() for path in paths.values()):
                continue
            vectors, shapes, accuracy = captured(training, arguments.data_dir, feedback)
            for phase, path in paths.items():
                first = CLIENTS * (training.phases[phase] - 1)
                us = np.stack(vectors[first : first + KEPT])
                np.savez(path, us=us, shapes=shapes)
                print(f"{path}: {us.shape[0]} vectors of {us.shape[1]:,} numbers", flush=True)
            print(f"{model}: test accuracy {accuracy:.1%} after {training.rounds} rounds")


if __name__ == "__main__":
    main()
