"""The contestants of `benchmarks/rounds.py`: each is a function that runs some rounds and returns their seconds.

Each is started for a measurement and ended after it, so that nothing else is awake on the machine meanwhile. Everyone
has one thread in each process, the same model, the same number of local steps, and images of the same shape: ours read
theirs from the cache, as `fedapp run` does; the others hold theirs in memory, ready to use.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid

from benchmarks.bare import BareTraining
from benchmarks.superlink import own_superlink
from benchmarks.workloads import BATCH, CIFAR, LR, SAMPLES, STEPS, WARM_UP, Workload
from deploy.processes import assignments, free_port
from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.data.cache import cache_dir, write_splits
from fedapp.data.samples import Split
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.rounds_file import Record
from fedapp.runner import EngineChoice
from fedapp.tables import Value

ROOT = Path(__file__).parent.parent
VECTORIZE = 32  # clients at most in a group
LIMIT = 1800  # seconds after which a peer counts as hanging
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Setting:
    """How many processes train, a directory for results, and the Pythons of peers by name."""

    workers: int
    scratch: Path
    pythons: dict[str, str] = field(default_factory=dict)


Contestant = Callable[[Workload, int, Setting], list[float]]


def data_set(workload: Workload) -> str:
    """Return the data set whose place in the cache a workload's random images take."""
    if workload.shape == CIFAR:
        return "cifar10"
    if workload.num_clients < 100:
        return "emnist"
    return "mnist" if workload.num_clients * SAMPLES <= 50_000 else "fashion_mnist"


def write_random_data(workload: Workload) -> None:
    """Put random images into the benchmark's cache, as if they had come from the hub."""
    directory = cache_dir() / "data" / f"hub-{data_set(workload)}"
    if directory.is_dir():
        return
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        images = rng.integers(0, 256, (count, *workload.shape), dtype=np.uint8)
        return Split(images, rng.integers(0, 10, count))

    write_splits(directory, split(min(workload.num_clients, 1000) * SAMPLES), split(1000))


def keys_of(workload: Workload, rounds: int, scratch: Path) -> dict[str, Value]:
    """Return the config of a run with that many rounds and one more, which is the only one to evaluate the model."""
    return {
        "dataset": data_set(workload), "model": workload.model, "partition": "iid",
        "num-clients": workload.num_clients, "clients-per-round": workload.cohort,
        "local-steps": STEPS, "batch-size": BATCH, "lr": LR, "num-rounds": rounds + 1,
        "eval-every": 1_000_000, "results-dir": str(scratch),
    }  # fmt: skip


def our_rounds(
    make_grid: Callable[[RunConfig], Grid],
    workload: Workload,
    rounds: int,
    scratch: Path,
    vectorize: int = 0,
) -> Generator[Record]:
    """Return the rounds of a run on one of our engines, one for each `next`."""
    write_random_data(workload)
    config = parse_run_config(keys_of(workload, rounds, scratch) | {"vectorize": vectorize})
    problem = make_problem(config)
    return run_rounds(make_grid(config), make_strategy(config, problem), problem, config)


def timed(step: Callable[[], object], rounds: int) -> list[float]:
    """Return how long each of some steps takes, after those that warm up."""
    times = []
    for _ in range(WARM_UP + rounds):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return times[WARM_UP:]


def bare(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run the local steps alone."""
    training = BareTraining(workload, setting.workers)
    try:
        return timed(training.round, rounds)
    finally:
        training.close()


def on_engine(
    engine: EngineChoice, workload: Workload, rounds: int, setting: Setting, vectorize: int = 0
) -> list[float]:
    """Run our rounds on an engine of `fedapp run`."""
    with engine.start([RunConfig()]) as make_grid:
        steps = our_rounds(make_grid, workload, WARM_UP + rounds, setting.scratch, vectorize)
        try:
            return timed(partial(next, steps), rounds)
        finally:
            steps.close()


def ray_grid(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run `fedapp run`."""
    return on_engine(EngineChoice(False, setting.workers, ""), workload, rounds, setting)


def ray_vectorized(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run `fedapp run` with clients that train side by side."""
    engine = EngineChoice(False, setting.workers, "")
    return on_engine(engine, workload, rounds, setting, vectorize=VECTORIZE)


def inline(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run `fedapp run --engine inline`: one process, whatever the number of workers."""
    return on_engine(EngineChoice(True, 0, ""), workload, rounds, setting)


def federation_options(workers: int) -> str:
    """Return the keys of `flwr run --federation-config` with which the simulation has a process for each worker.

    By default a client asks for two CPUs, and a machine of two cores trains in one process.
    """
    return f"client-resources-num-cpus=1 init-args-num-cpus={workers}"


def flwr_run(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run our app with `flwr run`, as many SuperNodes as workers; wall seconds are those of its own record."""
    write_random_data(workload)
    name = f"flwr-{time.time_ns()}"
    keys = keys_of(workload, WARM_UP + rounds, setting.scratch) | {"run-name": name}
    with tempfile.TemporaryDirectory() as home, own_superlink(Path(home)) as run:
        shown, status = run(assignments(keys), setting.workers, federation_options(setting.workers))
    if status.get("status") != "finished:completed":
        raise RuntimeError(f"flwr run failed:\n{shown[-3000:]}")
    lines = (setting.scratch / name / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["wall_seconds"] for line in lines[WARM_UP : WARM_UP + rounds]]


def in_processes(
    python: str, words: Sequence[str], environments: Sequence[dict[str, str]]
) -> list[float]:
    """Run a peer's program, in a process for each environment; return the rounds that the first prints."""
    shared = os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        processes, logs = [], []
        try:
            for rank, environment in enumerate(environments):
                logs.append(Path(directory) / f"log-{rank}")
                printed = output if rank == 0 else logs[rank]
                with printed.open("ab") as out, logs[rank].open("ab") as error:
                    process = subprocess.Popen(
                        [python, "-m", *words], cwd=ROOT, env=shared | environment,
                        stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                    )  # fmt: skip
                processes.append(process)
            failed = _wait(processes)
        finally:
            for process in processes:
                process.kill()  # does nothing to one that has ended
                process.wait()
        for rank, code in failed.items():
            text = logs[rank].read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{' '.join(words)} ended with {code}:\n{text}")
        return list(json.loads(output.read_text().strip().splitlines()[-1]))[WARM_UP:]


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Wait until all have ended, or one has failed, for which others would wait forever; return the codes of failures."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if failed or None not in codes:
            return failed
        time.sleep(0.2)
    raise RuntimeError(f"It has not ended after {LIMIT} seconds.")


def stock_flower(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run Flower's own FedAvg in its simulation."""
    words = ["benchmarks.stock_flower", workload.name, str(WARM_UP + rounds), str(setting.workers)]
    return in_processes(sys.executable, words, [{}])


def pfl(workload: Workload, rounds: int, setting: Setting, processes: int) -> list[float]:
    """Run pfl-research, set up for several processes as its guide to fast simulations says."""
    words = ["benchmarks.pfl_research", workload.name, str(WARM_UP + rounds)]
    addresses = ",".join(f"localhost:{free_port()}" for _ in range(processes))
    several = [
        {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)}
        for rank in range(processes)
    ]
    return in_processes(setting.pythons["pfl"], words, several if processes > 1 else [{}])


def pfl_alone(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run pfl-research in one process."""
    return pfl(workload, rounds, setting, 1)


def pfl_together(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run pfl-research in as many processes as workers."""
    return pfl(workload, rounds, setting, setting.workers)


def fedjax(workload: Workload, rounds: int, setting: Setting, devices: int) -> list[float]:
    """Run FedJAX, whose one process has as many CPU devices as told, each with one thread."""
    words = ["benchmarks.fedjax_averaging", workload.name, str(WARM_UP + rounds)]
    flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return in_processes(setting.pythons["fedjax"], words, [environment])


def fedjax_jit(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run FedJAX's jit backend."""
    return fedjax(workload, rounds, setting, 1)


def fedjax_pmap(workload: Workload, rounds: int, setting: Setting) -> list[float]:
    """Run FedJAX's pmap backend, with as many devices as workers."""
    return fedjax(workload, rounds, setting, setting.workers)


# Name -> (label, function, whose Python it needs). Bare training, the yardstick, is first.
CONTESTANTS: dict[str, tuple[str, Contestant, str]] = {
    "bare": ("bare PyTorch", bare, ""),
    "ray": ("RayGrid", ray_grid, ""),
    "ray-vectorized": (f"RayGrid, vectorize = {VECTORIZE}", ray_vectorized, ""),
    "inline": ("inline, 1 process", inline, ""),
    "flwr": ("flwr run", flwr_run, ""),
    "stock": ("stock Flower FedAvg", stock_flower, ""),
    "pfl": ("pfl-research", pfl_together, "pfl"),
    "pfl-1": ("pfl-research, 1 process", pfl_alone, "pfl"),
    "fedjax": ("FedJAX, pmap", fedjax_pmap, "fedjax"),
    "fedjax-1": ("FedJAX, jit, 1 device", fedjax_jit, "fedjax"),
}
