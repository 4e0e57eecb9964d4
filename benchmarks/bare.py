"""The yardstick: the local steps in plain PyTorch, in as many processes as there are workers."""

import multiprocessing as mp
from itertools import count
from multiprocessing.connection import Connection

from benchmarks.workloads import DISTINCT, Workload


def _work(pipe: Connection, workload: Workload, share: int) -> None:
    import torch

    from benchmarks.plain import client_tensors, plain_model, train

    torch.set_num_threads(1)
    model = plain_model(workload)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = [client_tensors(workload, client) for client in range(DISTINCT)]
    clients = count()
    while pipe.recv():
        for _ in range(share):
            model.load_state_dict(start)
            train(model, *data[next(clients) % DISTINCT])
        pipe.send(True)


class BareTraining:
    """Processes that train a cohort whenever they are told to; nothing is exchanged."""

    def __init__(self, workload: Workload, processes: int) -> None:
        context = mp.get_context("spawn")
        self._pipes, self._processes = [], []
        for index in range(processes):
            share = len(range(index, workload.cohort, processes))
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, workload, share), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def round(self) -> None:
        """Train one cohort."""
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(False)
            process.join()
