"""How many Ray workers there are, and how much of a GPU each of them takes: pure functions of what Ray sees."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedapp.errors import ConfigError

Node = Mapping[str, float]  # the resources of a machine, as Ray names them
MOST_PER_GPU = 100
SHARES = 10_000  # into which Ray divides a GPU


@dataclass(frozen=True)
class Placement:
    """A number of workers, and the share of a GPU that each takes; 0: none."""

    workers: int
    gpu_share: float = 0.0


def device_for_all(devices: Iterable[str]) -> str:
    """Return what runs that share workers ask for: "cuda", "auto" or "cpu".

    A run that names its GPU by number finds it by itself, and asks for none.
    """
    asked = set(devices)
    return next((device for device in ("cuda", "auto") if device in asked), "cpu")


def place(workers: int, device: str, workers_per_gpu: int, nodes: Sequence[Node]) -> Placement:
    """Return where workers go; by default one for each CPU or, if the runs use GPUs, one for each GPU.

    Fewer workers than fit are spread over all GPUs.
    """
    if not 0 <= workers_per_gpu <= MOST_PER_GPU:
        raise ConfigError(
            f"--workers-per-gpu = {workers_per_gpu} is not allowed: choose 1 to {MOST_PER_GPU}."
        )
    if workers_per_gpu and device == "cpu":
        raise ConfigError(
            f'--workers-per-gpu = {workers_per_gpu} is for runs on GPUs: set device = "auto" or "cuda", or leave it out.'
        )
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if not gpus and (workers_per_gpu or device == "cuda"):
        what = f"--workers-per-gpu = {workers_per_gpu}" if workers_per_gpu else 'device = "cuda"'
        raise ConfigError(
            f'{what} needs GPUs, and Ray sees none: set device = "cpu" or leave it out.'
        )
    if device == "cpu" or not gpus:
        cpus = int(sum(node.get("CPU", 0) for node in nodes)) or 1
        if workers > cpus:
            raise ConfigError(f"--workers = {workers} is more than the {cpus} CPUs that Ray sees.")
        return Placement(workers or cpus)
    per_gpu = workers_per_gpu or 1
    room = _room(nodes, per_gpu)
    if workers > room or not room:
        raise ConfigError(
            f"--workers = {workers} is more than the {room} that have a CPU each and fit on {gpus} GPUs: raise "
            f"--workers-per-gpu = {per_gpu}, or lower --workers."
        )
    count = workers or room
    fewest = next(n for n in range(1, per_gpu + 1) if _room(nodes, n) >= count)
    return Placement(count, SHARES // fewest / SHARES)


def _room(nodes: Sequence[Node], per_gpu: int) -> int:
    """Return how many workers find a CPU and their share of a GPU on one machine."""
    return sum(min(int(n.get("CPU", 0)), int(n.get("GPU", 0)) * per_gpu) for n in nodes)
