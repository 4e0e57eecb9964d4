# mypy: ignore-errors
"""pfl-research with the same work: `python -m benchmarks.pfl_research WORKLOAD ROUNDS`.

Run by the Python of an environment with `pfl[pytorch]`; prints the seconds of each round. Several processes share the
work if PFL_WORKER_ADDRESSES and PFL_WORKER_RANK are set, as pfl's guide to fast simulations says.
"""

import json
import sys
import time
from itertools import pairwise

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.plain import client_tensors, plain_model
from benchmarks.workloads import BATCH, LR, WORKLOADS


class Model(torch.nn.Module):
    """The plain model with the two methods that pfl asks for."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, images, labels, eval=False):
        """Return what is minimised."""
        return torch.nn.functional.cross_entropy(self.inner(images), labels)

    def metrics(self, images, labels, eval=True):
        """Return nothing that takes time."""
        return {"loss": Weighted(0.0, 1)}


class Clock(TrainingProcessCallback):
    """Notes the time after every round."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Note the time; go on."""
        self.times.append(time.perf_counter())
        return False, Metrics()


workload, rounds = WORKLOADS[sys.argv[1]], int(sys.argv[2])
torch.set_num_threads(1)
np.random.seed(0)  # noqa: NPY002 (pfl's: every process must sample the same users)
torch.manual_seed(0)
sampler = get_user_sampler("random", list(range(workload.num_clients)))
training = FederatedDataset(
    lambda user: Dataset(raw_data=list(client_tensors(workload, user)), user_id=str(user)), sampler
)
module = Model(plain_model(workload))
model = PyTorchModel(
    module,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
)
clock = Clock()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10**6,
        train_cohort_size=workload.cohort,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=training, val_data=training),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
)
print(json.dumps([b - a for a, b in pairwise(clock.times)]))
