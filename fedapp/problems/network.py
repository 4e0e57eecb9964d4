"""The training of a network: from a `Problem` to what clients and server compute with."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedapp.config import LocalWork, RunConfig
from fedapp.data import Facts
from fedapp.data.augmentation import Augmented, augmented_batches
from fedapp.devices import full_memory_as
from fedapp.doors import is_outside, user_code
from fedapp.errors import ConfigError, RunError
from fedapp.models.compiled import compiled, compiler_errors
from fedapp.models.flat import FlatModel, at_least_float32
from fedapp.models.frozen import FrozenPart
from fedapp.models.networks import layout_of
from fedapp.models.outside import seeded
from fedapp.models.partial import select
from fedapp.problems.batches import shuffled_batches, take_rows
from fedapp.problems.problem import Batch, Data, Indices, Loss, Problem, Rows
from fedapp.problems.protocols import Vector
from fedapp.randomness import Generator, generator, torch_seed
from fedapp.threads import in_shares

EVALUATION_BATCH = 1000  # samples at a time
# Our networks on the CPU: batches that fit into caches, several at a time, which need no more memory.
SMALL_BATCH, AT_ONCE = 125, 8
NOTHING = nullcontext()
Tensors = tuple[Tensor, ...]
Taken = slice | Tensor  # the rows of a batch


def as_rows(data: Data, what: str) -> Rows:
    """Return samples as rows of tensors, or say what is wrong with them."""
    if isinstance(data, Rows):
        return data
    tensors = tuple(_tensor(array) for array in data)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    lengths = {shape[0] if shape else None for shape in shapes}
    if len(tensors) < 2 or len(lengths) != 1 or None in lengths:
        raise ConfigError(
            f"{what} should be inputs and targets, arrays with a row for each sample, and has the shapes {shapes}: "
            "return at least two arrays of equal length."
        )
    return Rows(tensors, np.arange(len(tensors[0])))


def _tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array
    numbers = np.asarray(array)
    return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())


def _batches(arrays: Tensors, rows: Indices | None, size: int) -> Iterator[tuple[Tensors, Taken]]:
    """Yield what to evaluate at a time: some rows of arrays, or of all rows a slice."""
    chosen = None if rows is None else torch.from_numpy(rows)
    for start in range(0, len(arrays[0] if chosen is None else chosen), size):
        part = slice(start, start + size)
        yield arrays, part if chosen is None else chosen[part]


class NetworkProblem:
    """One network for all the clients of this process."""

    def __init__(self, problem: Problem, config: RunConfig) -> None:
        self.problem = problem
        self.config = config
        self.device = torch.device(config.device)
        self._pins = self.device.type == "cuda"  # batches wait for the GPU in pinned memory
        self._mixed = config.precision == "bf16"
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        with seeded(torch_seed(config.seed, "model")):
            network = problem.model()
        with seeded(torch_seed(config.seed, "lora")):
            select(network, config.trainable, config.lora)
        self.model = FlatModel(network._apply(self._typed))
        self.frozen_part = FrozenPart(self.model)
        if config.batch_size == 1 and any(isinstance(m, _BatchNorm) for m in network.modules()):
            raise ConfigError("batch-size = 1 does not go with batch norm: set norm to group.")
        self.layout = layout_of(network, config.model)
        self._initial = tuple(
            v.cpu().numpy().copy() for v in (self.model.vector, self.model.buffers)
        )
        self._gathered: tuple[Any, Any] = (None, None)  # the last batch
        # Others' networks and metrics may draw numbers, or keep what they have computed.
        ours = not any(is_outside(name) or "/" in name for name in (config.model, config.problem))
        self._divides = ours and self.device.type == "cpu"
        self._evaluation_batch = SMALL_BATCH if self._divides else EVALUATION_BATCH
        self._threads = False  # whether to evaluate in several threads

    @property
    def facts(self) -> Facts | None:
        """What nodes with their own data must know."""
        return self.problem.facts

    def adopt_frozen(self, arrays: dict[str, NDArray[Any]], digest: str) -> None:
        """Replace what is frozen by the server's."""
        self.frozen_part.adopt(arrays, digest)
        for copied in ("second", "second_frozen_part"):
            vars(self).pop(copied, None)

    def _typed(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device; real numbers, and only those, have the run's type."""
        there = tensor.to(self.device, non_blocking=self._pins)
        return there.to(self.dtype if there.is_floating_point() else there.dtype)

    @cached_property
    def second(self) -> FlatModel:
        """A second network like the first, whose parameters have no gradients."""
        with self.frozen_part.as_made():
            network = copy.deepcopy(self.model.module)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        return FlatModel(network, self.model.names)

    @cached_property
    def second_frozen_part(self) -> FrozenPart:
        """What the second network holds beside its vector."""
        return FrozenPart(self.second)

    def initial(self) -> tuple[Vector, Vector]:
        """Return the network's initial weights and statistics."""
        x, buffers = self._initial
        return x.copy(), buffers.copy()

    def objective(self, client: int) -> "ClientSamples":
        """Return the loss over a client's samples."""
        data = as_rows(self.problem.client_data(client), f"The data of client {client}")
        if not len(data.rows):
            raise ConfigError(f"Client {client} has no samples: give it at least one.", tell=True)
        self.frozen_part.restore()  # all clients begin alike, whoever was trained before
        rows_kept, _ = self._validation_of(client, data.rows)
        if (test := self.problem.client_test_data(client)) is not None:
            held = as_rows(test, f"The test data of client {client}")
            return ClientSamples(self, data.arrays, rows_kept, held)
        kept, rows = self._hold_out(client, rows_kept)
        return ClientSamples(self, data.arrays, kept, Rows(data.arrays, rows))

    def _hold_out(self, client: int, rows: Indices) -> tuple[Indices, Indices]:
        """Return a client's training samples, and those that only its own evaluation sees."""
        return self._divided(client, rows, self.config.test_share, "held out")

    def _validation_of(self, client: int, rows: Indices) -> tuple[Indices, Indices]:
        """Return the samples left to a client, and those of `valid-share`; none where a data set is divided."""
        divides = type(self.problem).validation_data is not Problem.validation_data
        share = 0.0 if divides else self.config.valid_share
        return self._divided(client, rows, share, "validation")

    def _divided(
        self, client: int, rows: Indices, share: float, purpose: str
    ) -> tuple[Indices, Indices]:
        count = len(rows)
        if not share:
            return rows, rows[:0]
        order = generator(self.config.seed, purpose, client=client).permutation(count)
        held = min(max(round(share * count), 1), count - 1)  # one is left to train on
        return rows[np.sort(order[held:])], rows[np.sort(order[:held])]

    def gather(self, arrays: tuple[Tensor, ...], batch: Indices | Augmented) -> Batch:
        """Return training samples by their rows; several gradients on one batch gather it once."""
        if batch is not self._gathered[0]:
            rows = batch.rows if isinstance(batch, Augmented) else batch
            chosen = torch.from_numpy(rows)
            taken = [take_rows(a, chosen, self._pins) for a in arrays]
            if isinstance(batch, Augmented):
                taken[0] = batch.augment(taken[0])
            self._gathered = batch, self._prepared(taken)
        found: Batch = self._gathered[1]
        return found

    def _prepared(self, tensors: Sequence[Tensor]) -> Batch:
        """Bring rows to the device and the run's type, and as the problem wants them."""
        return self.problem.prepare(tuple(map(self._typed, tensors)))

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the problem's mean loss on a batch, to train by."""
        if self.config.compile and len(batch[-1]) == self.config.batch_size:
            module = self._compiled
        return self.problem.loss(self._outputs(module, batch), batch)

    @cached_property
    def _compiled(self) -> nn.Module:
        """The network, compiled for batches of `batch-size`.

        Shorter ones are computed by the network as it is: each size would take seconds to compile, and torch would
        choose code by the sizes that this process has seen, so that bits would depend on who trained here before.
        """
        return compiled(self.model.module)

    def compiler_errors(self) -> AbstractContextManager[object]:
        """Return a context in which what goes wrong with compiling is one sentence."""
        return compiler_errors() if self.config.compile else NOTHING

    def _outputs(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the network's outputs; errors in a user's network are reported as the user's."""
        name = self.config.model
        told = user_code("model", name, "computing its outputs") if is_outside(name) else NOTHING
        with told, self.lowered():
            return self.widened(self.problem.predict(module, batch))

    def lowered(self) -> AbstractContextManager[object]:
        """Return a context in which networks compute in the run's precision."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._mixed else NOTHING

    def widened(self, outputs: Tensor) -> Tensor:
        """Return a network's outputs as losses and metrics need them: in float32 if the network computes in bf16."""
        return at_least_float32(outputs) if self._mixed else outputs

    def in_precision(self, loss: Loss) -> Loss:
        """Return a loss that looks into the network, which computes in the run's precision there."""

        def lowered(module: nn.Module, batch: Batch) -> Tensor:
            with self.lowered():
                return loss(module, batch)

        return lowered if self._mixed else loss

    @cached_property
    def least_batch(self) -> int:
        """The least samples of a batch: batch norm in a user's network may not be able to train on one."""
        users = is_outside(self.config.model) or is_outside(self.config.problem)
        normed = any(isinstance(m, _BatchNorm) for m in self.model.module.modules())
        return 2 if users and normed else 1

    def rehearse(self, client: int, with_test_data: bool) -> None:
        """Train on one batch of a client, and evaluate on one where the run will: errors in a user's code show here."""
        samples, statistics = self.objective(client), self.model.buffers.clone()
        with seeded(0):
            batch = next(samples.batches(self.config.local_work, generator(0, "rehearsal")))
            self._check_outputs(self.gather(samples.arrays, batch))
            samples.loss_gradient(torch.tensor(self.initial()[0], device=self.device), batch)
            self.model.buffers.copy_(statistics)
            held = samples.held_out
            if len(held.rows):
                self.measure(held.arrays, held.rows[:EVALUATION_BATCH])
            if with_test_data and (test := self.problem.test_data()) is not None:
                data = as_rows(test, "The test data")
                self.measure(data.arrays, data.rows[:EVALUATION_BATCH])

    @torch.no_grad()
    def _check_outputs(self, batch: Batch) -> None:
        """Raise ConfigError if a user's network does not fit the classes or numbers of one of our problems."""
        facts = self.facts
        if facts is None or is_outside(self.config.problem):
            return
        outputs = self._outputs(self.model.module, batch)
        shape = tuple(outputs.shape)
        expected = (len(batch[-1]), facts.num_classes or 1)
        fits = (
            shape[:1] + shape[-1:] == expected
            if facts.num_classes
            else shape in (expected, expected[:1])
        )
        if not fits:
            what = f"{facts.num_classes} classes" if facts.num_classes else "one number"
            raise ConfigError(
                f"model = {self.config.model!r} gives outputs of the shape {shape} for {len(batch[-1])} samples, and there "
                f"should be one for each of {what}: return the shape {expected}.",
                tell=True,
            )

    def _load(self, x: Vector, buffers: Vector) -> None:
        self.model.bind(torch.tensor(x, device=self.device))
        self.model.buffers.copy_(torch.tensor(buffers))

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return the metrics on the test set and, with eval-train, f(x): the loss on the clients' samples.

        No client trains meanwhile, so all cores compute.
        """
        with full_memory_as(RunError):
            self._threads = self._divides
            try:
                return self._evaluate(x, buffers)
            finally:
                self._threads = False

    def _evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        self._load(x, buffers)
        figures: dict[str, float] = {}
        if (test := self.problem.test_data()) is not None:
            data = as_rows(test, "The test data")
            whole = len(data.rows) == len(data.arrays[0])
            measured = self.measure(data.arrays, None if whole else data.rows)
            figures = {f"test_{name}": value for name, value in measured.items()}
        if self.config.valid_share:
            measured = self._measure_all(self._validation())
            figures |= {f"valid_{name}": value for name, value in measured.items()}
        if self.config.eval_train:
            figures["objective"] = self._training_loss()
        return figures

    def _validation(self) -> list[Rows]:
        """Return the samples that `valid-share` holds out."""
        if (held := self.problem.validation_data()) is not None:
            return [held]
        parts = []
        for client in range(self.config.num_clients):
            data = as_rows(self.problem.client_data(client), f"The data of client {client}")
            parts.append(Rows(data.arrays, self._validation_of(client, data.rows)[1]))
        if not any(len(part.rows) for part in parts):
            raise ConfigError("valid-share finds no client with two samples: set valid-share = 0.")
        return parts

    def _training_loss(self) -> float:
        """Return the mean loss over all the clients' training samples."""
        total, count = 0.0, 0
        for client in range(self.config.num_clients):
            samples = self.objective(client)
            size = samples.num_examples
            total += size * self.measure(samples.arrays, samples.indices)["loss"]
            count += size
        return total / count

    def measure(self, arrays: Tensors, rows: Indices | None = None) -> dict[str, float]:
        """Return the metrics over samples: over all rows, or over some; the network is where it is bound."""
        return self._measure_batches(_batches(arrays, rows, self._evaluation_batch))

    def _measure_all(self, samples: Sequence[Rows]) -> dict[str, float]:
        """Return the metrics over samples of several sets of arrays."""
        size = self._evaluation_batch
        return self._measure_batches(
            batch for held in samples for batch in _batches(held.arrays, held.rows, size)
        )

    def _measure_batches(self, batches: Iterable[tuple[Tensors, Taken]]) -> dict[str, float]:
        self.model.module.eval()
        self.frozen_part.restore()
        with seeded(torch_seed(self.config.seed, "evaluation")):  # for networks that draw numbers
            batches = list(batches)
            if self._threads and len(batches) >= AT_ONCE:  # for fewer, waking threads costs more
                measured = in_shares(self._measure_batch, batches, AT_ONCE)
            else:
                measured = [self._measure_batch(batch) for batch in batches]
        return self.problem.combine([part for part, _ in measured], sum(n for _, n in measured))

    @torch.no_grad()
    def _measure_batch(self, batch: tuple[Tensors, Taken]) -> tuple[dict[str, Any], int]:
        arrays, taking = batch
        rows = [take_rows(a, taking, self._pins) for a in arrays]
        prepared = self._prepared(rows)
        outputs = self._outputs(self.model.module, prepared)
        return self.problem.metrics(outputs, prepared), len(rows[0])

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return the network's state dict; counters, which each process has for itself, are as at the start."""
        self._load(x, buffers)
        self.frozen_part.restore()
        state = self.model.module.state_dict()
        return {name: tensor.cpu().numpy().copy() for name, tensor in state.items()}


class ClientSamples:
    """f_i: the mean loss over one client's samples."""

    def __init__(
        self, problem: NetworkProblem, arrays: tuple[Tensor, ...], indices: Indices, held: Rows
    ) -> None:
        self.problem = problem
        self.arrays, self.indices, self.held_out = arrays, indices, held
        self.num_examples = len(indices)
        self.layout = problem.layout
        self.buffers = problem.model.buffers

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[Any]:
        """Go through the data in a new order each pass; with `augmentation`, batches know theirs."""
        batches = shuffled_batches(self.indices, work, rng, self.problem.least_batch)
        return augmented_batches(batches, self.problem.config.augmentation, rng)

    def loss_gradient(
        self, y: Tensor, batch: Indices | Augmented, loss: Loss | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return loss and gradient on a batch of rows."""
        problem = self.problem
        samples = problem.gather(self.arrays, batch)
        with problem.compiler_errors():
            if loss is None:
                return problem.model.loss_gradient(y, samples, problem.loss)
            return problem.model.loss_gradient(y, samples, problem.in_precision(loss))

    def criterion(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the problem's loss of a network's outputs."""
        return self.problem.problem.loss(self.problem.widened(outputs), batch)

    @torch.no_grad()
    def representation(self, y: Tensor, batch: Indices | Augmented) -> Tensor:
        """Return the input of the classifier for a batch, with the network at y."""
        statistics, model = self.buffers.clone(), self.problem.model
        model.bind(y)
        model.module.train()
        inputs = self.problem.gather(self.arrays, batch)[:-1]
        with self.problem.lowered():
            z: Tensor = model.module.representation(*inputs)  # type: ignore[operator]
        self.buffers.copy_(statistics)
        return self.problem.widened(z)

    def frozen(self, x: Tensor) -> nn.Module:
        """Return the problem's second network, at x, with the statistics that came with it."""
        frozen = self.problem.second
        self.problem.second_frozen_part.restore()
        frozen.bind(x)
        frozen.buffers.copy_(self.buffers)
        frozen.module.train()
        return frozen.module

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return the gradient over all samples, a batch at a time."""
        statistics = self.buffers.clone()
        total = torch.zeros_like(y)
        for start in range(0, self.num_examples, EVALUATION_BATCH):
            batch = self.indices[start : start + EVALUATION_BATCH]
            total.add_(self.loss_gradient(y, batch)[1], alpha=len(batch) / self.num_examples)
        self.buffers.copy_(statistics)
        return total

    def evaluate(self, y: Tensor) -> tuple[dict[str, float], int]:
        """Return the metrics at y on the held-out samples, and their number."""
        held = self.held_out
        if not len(held.rows):
            return {}, 0
        self.problem.model.bind(y)
        return self.problem.measure(held.arrays, held.rows), len(held.rows)
