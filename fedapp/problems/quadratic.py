"""Quadratics with unequal Hessians: the problem that separates exact methods from the others.

f_i(x) = 1/2 (x - b_i)' A_i (x - b_i), f = mean of the f_i, x* in closed form. The eigenvalues of
every A_i lie in [1 / condition, 1], and every client has its own axes: with equal Hessians
(`quadratic.hessians = "shared"`) every method would look exact. In `quadratic.flat` directions, the
same for all, they are 0: f then satisfies the PL condition only, and x* is the optimum nearest to 0.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.config import LocalWork, RunConfig
from fedapp.errors import ConfigError
from fedapp.models.layout import Layout
from fedapp.problems.keys import QuadraticKeys
from fedapp.problems.outline import Outline
from fedapp.problems.protocols import Vector
from fedapp.randomness import Generator, generator


class Quadratic:
    """All the clients' quadratics."""

    facts = None  # there are no images

    def __init__(self, config: RunConfig) -> None:
        keys, dtype = config.table(QuadraticKeys), getattr(torch, config.dtype)
        if keys.flat >= keys.dim:
            raise ConfigError(
                f"quadratic.flat = {keys.flat} leaves nothing to minimise: set it below "
                f"quadratic.dim = {keys.dim}."
            )
        drawn = [_draw(config, client) for client in range(config.num_clients)]
        self.A = torch.tensor(np.stack([a for a, _ in drawn]), dtype=dtype)
        self.b = torch.tensor(np.stack([b for _, b in drawn]), dtype=dtype)
        self.noise = keys.noise
        self.layout = Layout.single(keys.dim)
        A, b = self.A.numpy().astype(np.float64), self.b.numpy().astype(np.float64)
        self._A, self._b = A, b
        # Without flat directions this is the one solution; with some, the shortest.
        self.optimum = np.linalg.lstsq(A.sum(0), np.einsum("cij,cj->i", A, b), rcond=1e-10)[0]
        self.lowest = self.value(self.optimum)

    def initial(self) -> tuple[Vector, Vector]:
        """Start at zero; there are no buffers."""
        x = np.zeros_like(self.b[0].numpy())
        return x, x[:0]

    def objective(self, client: int) -> "ClientQuadratic":
        """Return f_i."""
        return ClientQuadratic(self.A[client], self.b[client], self.noise)

    def value(self, x: NDArray[np.float64]) -> float:
        """Return f(x)."""
        away = x - self._b
        return float(0.5 * np.einsum("ci,cij,cj->c", away, self._A, away).mean())

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return f(x) - f*, |x - x*| and |grad f(x)|^2."""
        point = x.astype(np.float64)
        slope = np.einsum("cij,cj->i", self._A, point - self._b) / len(self._b)
        return {
            "test_loss": self.value(point),
            "gap": self.value(point) - self.lowest,
            "distance": float(np.linalg.norm(point - self.optimum)),
            "squared_gradient": float(slope @ slope),
        }

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return x."""
        return {"x": x}


def outline(config: RunConfig) -> Outline:
    """Return the size of the config's quadratics."""
    return Outline(Layout.single(config.table(QuadraticKeys).dim), 0, config.dtype)


def _draw(config: RunConfig, client: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    keys = config.table(QuadraticKeys)
    rng = generator(config.seed, "quadratic", client=client)
    steep = keys.dim - keys.flat
    drawn = rng.standard_normal((keys.dim, keys.dim))
    if keys.hessians == "shared":
        drawn = generator(config.seed, "quadratic axes").standard_normal((keys.dim, keys.dim))
    if keys.flat:  # axes in the space that all share
        space, _ = np.linalg.qr(
            generator(config.seed, "quadratic space").standard_normal((keys.dim, steep))
        )
        axes = space @ np.linalg.qr(drawn[:steep, :steep])[0]
    else:
        axes, _ = np.linalg.qr(drawn)
    eigenvalues = keys.condition ** -np.linspace(0, 1, steep)
    own = 1 + keys.heterogeneity * rng.standard_normal(keys.dim)
    return (axes * eigenvalues) @ axes.T, own


class ClientQuadratic:
    """f_i. A batch is the noise that its gradient carries."""

    num_examples = 1

    def __init__(self, A: Tensor, b: Tensor, noise: float) -> None:
        self.A, self.b, self.noise = A, b, noise
        self.layout = Layout.single(len(b))
        self.buffers = b.new_empty(0)

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[Tensor]:
        """Yield one draw of gradient noise for each step."""
        shape = work.num_steps(self.num_examples), len(self.b)
        draws = rng.standard_normal(shape) if self.noise else np.zeros(shape)
        yield from torch.tensor(self.noise * draws, dtype=self.b.dtype).unbind()

    def loss_gradient(self, y: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return f_i(y) and A_i (y - b_i) + noise."""
        away = y - self.b
        slope = self.A @ away
        return 0.5 * (away @ slope), slope + batch

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return A_i (y - b_i)."""
        return self.A @ (y - self.b)

    def evaluate(self, y: Tensor) -> tuple[dict[str, float], int]:
        """Return f_i(y)."""
        away = y - self.b
        return {"loss": float(0.5 * (away @ self.A @ away))}, self.num_examples
