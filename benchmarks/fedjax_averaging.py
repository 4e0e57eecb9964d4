# mypy: ignore-errors
"""FedJAX with the same work: `python -m benchmarks.fedjax_averaging WORKLOAD ROUNDS`.

Run by the Python of an environment with fedjax (docs/engines.md says with which versions); prints the seconds of each
round. If XLA shows several devices, its pmap backend trains a client on each; if one, its jit backend is used.
"""

import json
import sys
import time

import fedjax
import haiku as hk
import jax
import optax
from fedjax.algorithms import fed_avg

from benchmarks.workloads import BATCH, CLASSES, LR, WORKLOADS, client_data


def network(model: str) -> hk.Sequential:
    """Return the model of a workload, which takes images with the channels last."""
    match model:
        case "mlp-200-200":
            widths, layers = (200, 200), []
        case "logreg":
            widths, layers = (), []
        case _:
            widths, layers = (
                (384, 192),
                [
                    hk.Conv2D(64, 5, padding="VALID"), jax.nn.relu, hk.MaxPool(2, 2, "VALID"),
                    hk.Conv2D(64, 5, padding="VALID"), jax.nn.relu, hk.MaxPool(2, 2, "VALID"),
                ],
            )  # fmt: skip
    dense = [layer for width in widths for layer in (hk.Linear(width), jax.nn.relu)]
    return hk.Sequential([*layers, hk.Flatten(), *dense, hk.Linear(CLASSES)])


workload, rounds = WORKLOADS[sys.argv[1]], int(sys.argv[2])
model = hk.without_apply_rng(hk.transform(lambda x: network(workload.model)(x)))


def loss(params, batch, rng):
    """Return what is minimised."""
    logits = model.apply(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def examples(client):
    """Return a client's data, channels last."""
    images, labels = client_data(workload, client)
    return {"x": images.transpose(0, 2, 3, 1), "y": labels}


fedjax.set_for_each_client_backend("pmap" if jax.local_device_count() > 1 else "jit")
data = fedjax.InMemoryFederatedData({str(c): examples(c) for c in range(workload.num_clients)})
sampler = fedjax.client_samplers.UniformGetClientSampler(data, workload.cohort, seed=0)
algorithm = fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(learning_rate=LR),
    fedjax.optimizers.sgd(learning_rate=1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
)
state = algorithm.init(model.init(jax.random.PRNGKey(0), examples(0)["x"][:1]))
times = []
for _ in range(rounds):
    started = time.perf_counter()
    state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    times.append(time.perf_counter() - started)
print(json.dumps(times))
