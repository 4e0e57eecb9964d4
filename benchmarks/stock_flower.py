"""Flower as it comes: FedAvg, one SuperNode per client, data in memory. Prints seconds per round."""

import json
import sys
import time
from functools import lru_cache
from itertools import pairwise

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.workloads import SAMPLES, WORKLOADS, Workload, client_data, plain_model, train

client_app = ClientApp()
cached_data = lru_cache(maxsize=64)(client_data)


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train one client."""
    torch.set_num_threads(1)
    workload = WORKLOADS[str(message.content["config"]["workload"])]
    model = plain_model(workload)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    train(model, *cached_data(workload, int(context.node_config["partition-id"]) % 20))
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
    chosen, count = WORKLOADS[sys.argv[1]], int(sys.argv[2])
    noted: list[float] = []
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(serve(chosen, count, noted), client_app, chosen.num_clients, "ray", resources)  # type: ignore[arg-type]
    print(json.dumps([after - before for before, after in pairwise(noted)]))


if __name__ == "__main__":
    from benchmarks import stock_flower  # by this name, Ray's workers find the ClientApp

    stock_flower.main()
