"""One client's evaluation of a model on its held-out samples, and again after a few local steps from it."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedapp.compression import NotFiniteError
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.models.outside import seeded
from fedapp.optimizers import clip_
from fedapp.problems.protocols import Objective
from fedapp.randomness import generator, torch_seed
from fedapp.wire import Arrays, Evaluation


def evaluate_client(
    objective: Objective, config: RunConfig, client: int, round_: int, model: Arrays
) -> Evaluation:
    """Return a client's metrics of a model, x and its buffers; the client's state plays no part in it."""
    device = objective.buffers.device
    x = torch.tensor(model["x"], device=device)
    objective.buffers.copy_(torch.tensor(model["buffers"], device=device))
    with seeded(torch_seed(config.seed, "evaluate", round_, client)):
        metrics, count = objective.evaluate(x)
    if not count:
        raise ConfigError(
            f"Client {client} has no held-out samples to evaluate on: set test-share, or give its node's data-dir "
            "a test-*.parquet.",
            tell=True,
        )
    finetuned: dict[str, float] = {}
    if config.eval_finetune:
        with seeded(torch_seed(config.seed, "finetune", round_, client)):
            finetuned, _ = objective.evaluate(_finetuned(objective, config, client, round_, x))
    return Evaluation(client, count, _defined(metrics), _defined(finetuned))


def _finetuned(
    objective: Objective, config: RunConfig, client: int, round_: int, x: Tensor
) -> Tensor:
    """Return x after `eval-finetune` steps of SGD on the client's training samples; they change the buffers, too."""
    y, lr = x.clone(), config.lr_at(round_)
    work = replace(config.local_work, steps=config.eval_finetune, epochs=0)
    rng = generator(config.seed, "finetune batches", round_, client)
    for batch in objective.batches(work, rng):
        _, g = objective.loss_gradient(y, batch)
        clip_(g, config.clip_gradient)
        y.sub_(g.add(y, alpha=config.weight_decay), alpha=lr)
    return y


def _defined(metrics: dict[str, float]) -> dict[str, float]:
    """Leave out metrics that these samples do not define, such as the AUC of a single class."""
    if not math.isfinite(metrics.get("loss", 0.0)):
        raise NotFiniteError("its loss on the held-out samples is not finite")
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
