"""Flower as it comes: its FedAvg, one SuperNode per client, in its simulation.

`python -m benchmarks.stock_flower WORKLOAD ROUNDS WORKERS` prints the seconds of each round. A client asks for one CPU,
so that Flower's simulation has as many processes as there are workers.
"""

import json
import sys
import time
from itertools import pairwise

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.plain import client_tensors, plain_model, train
from benchmarks.workloads import SAMPLES, WORKLOADS, Workload

client_app = ClientApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train one client."""
    torch.set_num_threads(1)
    workload = WORKLOADS[str(message.content["config"]["workload"])]
    model = plain_model(workload)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    train(model, *client_tensors(workload, int(context.node_config["partition-id"])))
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": SAMPLES})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def serve(workload: Workload, rounds: int, times: list[float]) -> ServerApp:
    """Return a ServerApp that notes the time after every round."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def note(server_round: int, arrays: ArrayRecord) -> None:
            times.append(time.perf_counter())

        strategy = FedAvg(
            fraction_train=workload.cohort / workload.num_clients,
            fraction_evaluate=0.0,
            min_available_nodes=workload.num_clients,
        )
        result = strategy.start(
            grid,
            ArrayRecord(plain_model(workload).state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"workload": workload.name}),
            evaluate_fn=note,
        )
        if len(result.train_metrics_clientapp) != rounds:
            raise RuntimeError("A round without results is no measurement.")

    return app


def main() -> None:
    """Run, and print the times."""
    chosen, count, workers = WORKLOADS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    noted: list[float] = []
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": workers},
    }
    run_simulation(serve(chosen, count, noted), client_app, chosen.num_clients, "ray", backend)  # type: ignore[arg-type]
    print(json.dumps([after - before for before, after in pairwise(noted)]))


if __name__ == "__main__":
    from benchmarks import stock_flower  # by this name, Ray's workers find the ClientApp

    stock_flower.main()
