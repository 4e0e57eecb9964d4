"""Quadratics with unequal Hessians: the problem that separates exact methods from the others.

f_i(x) = 1/2 (x - b_i)' A_i (x - b_i), f = mean of the f_i, x* in closed form. The eigenvalues of
every A_i lie in [1 / condition, 1], and every client has its own axes: with equal Hessians
(`quadratic.hessians = "shared"`) every method would look exact. In `quadratic.flat` directions, the
same for all, they are 0: f then satisfies the PL condition only, and x* is the optimum nearest to 0.

There are at most `DISTINCT` different quadratics: client c has that of client c mod DISTINCT. So a million clients need no
more memory than ten thousand, and x* is still that of all of them.
"""

from collections.abc import Iterator
from functools import cached_property
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

DISTINCT = 10_000  # different quadratics
Numbers = NDArray[np.float64]


class Quadratic:
    """All the clients' quadratics. A process that only trains draws those of its clients, as it needs them."""

    facts = None  # there are no images

    def __init__(self, config: RunConfig) -> None:
        keys, dtype = config.table(QuadraticKeys), getattr(torch, config.dtype)
        if keys.flat >= keys.dim:
            raise ConfigError(
                f"quadratic.flat = {keys.flat} leaves nothing to minimise: set it below "
                f"quadratic.dim = {keys.dim}."
            )
        self.config, self.dtype, self.noise = config, dtype, keys.noise
        self.layout = Layout.single(keys.dim)
        distinct = min(config.num_clients, DISTINCT)
        # Memory that is not written to yet takes none.
        self._A = torch.empty((distinct, keys.dim, keys.dim), dtype=dtype)
        self._b = torch.empty((distinct, keys.dim), dtype=dtype)
        self._drawn = np.zeros(distinct, bool)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """Return A_i and b_i, which are drawn when they are first asked for."""
        place = client % DISTINCT
        if not self._drawn[place]:
            A, b = _draw(self.config, place)
            self._A[place], self._b[place] = torch.from_numpy(A), torch.from_numpy(b)
            self._drawn[place] = True
        return self._A[place], self._b[place]

    def _draw_all(self) -> None:
        for place in np.flatnonzero(~self._drawn):
            self.of(int(place))

    @property
    def A(self) -> Tensor:  # noqa: N802 - the usual symbol
        """The Hessian of each of the first DISTINCT clients."""
        self._draw_all()
        return self._A

    @property
    def b(self) -> Tensor:
        """The optimum of each of the first DISTINCT clients."""
        self._draw_all()
        return self._b

    @cached_property
    def _f(self) -> "_Mean":
        A, b = (v.numpy().astype(np.float64, copy=False) for v in (self.A, self.b))
        clients = self.config.num_clients
        return _Sums(A, b, clients) if clients > DISTINCT else _Mean(A, b)

    @property
    def optimum(self) -> Numbers:
        """x*."""
        return self._f.optimum

    def value(self, x: Numbers) -> float:
        """Return f(x)."""
        return self._f.value(x)

    def initial(self) -> tuple[Vector, Vector]:
        """Start at zero; there are no buffers."""
        x = torch.zeros(self.layout.size, dtype=self.dtype).numpy()
        return x, x[:0]

    def objective(self, client: int) -> "ClientQuadratic":
        """Return f_i."""
        return ClientQuadratic(self, client)

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return f(x) - f*, |x - x*| and |grad f(x)|^2."""
        point, f = x.astype(np.float64), self._f
        slope = f.gradient(point)
        return {
            "test_loss": f.value(point),
            "gap": f.gap(point),
            "distance": float(np.linalg.norm(point - f.optimum)),
            "squared_gradient": float(slope @ slope),
        }

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return x."""
        return {"x": x}


class _Mean:
    """f, the mean of some quadratics, computed from each of them."""

    def __init__(self, A: Numbers, b: Numbers) -> None:
        self._A, self._b = A, b
        # Without flat directions this is the one solution; with some, the shortest.
        self.optimum: Numbers = np.linalg.lstsq(
            A.sum(0), np.einsum("cij,cj->i", A, b), rcond=1e-10
        )[0]
        self.lowest = self.value(self.optimum)

    def value(self, x: Numbers) -> float:
        """Return f(x)."""
        away = x - self._b
        return float(0.5 * np.einsum("ci,cij,cj->c", away, self._A, away).mean())

    def gap(self, x: Numbers) -> float:
        """Return f(x) - f*."""
        return self.value(x) - self.lowest

    def gradient(self, x: Numbers) -> Numbers:
        """Return grad f(x)."""
        slope: Numbers = np.einsum("cij,cj->i", self._A, x - self._b) / len(self._b)
        return slope


class _Sums(_Mean):
    """The same from sums over all clients, some of which have the same quadratic: no longer by the client."""

    def __init__(self, A: Numbers, b: Numbers, clients: int) -> None:
        place = np.arange(len(A))
        share = (clients // len(A) + (place < clients % len(A))) / clients
        pulled = np.einsum("cij,cj->ci", A, b)
        self._hessian = np.tensordot(share, A, 1)
        self._slope = share @ pulled
        self._constant = float(share @ np.einsum("ci,ci->c", b, pulled))
        self.optimum = np.linalg.lstsq(self._hessian, self._slope, rcond=1e-10)[0]
        self.lowest = self.value(self.optimum)

    def value(self, x: Numbers) -> float:
        """Return f(x)."""
        return float(0.5 * (x @ self._hessian @ x) - x @ self._slope + 0.5 * self._constant)

    def gap(self, x: Numbers) -> float:
        """Return f(x) - f*, which does not cancel as a difference would."""
        away = x - self.optimum
        return float(0.5 * (away @ self._hessian @ away))

    def gradient(self, x: Numbers) -> Numbers:
        """Return grad f(x)."""
        slope: Numbers = self._hessian @ x - self._slope
        return slope


def outline(config: RunConfig) -> Outline:
    """Return the size of the config's quadratics."""
    return Outline(Layout.single(config.table(QuadraticKeys).dim), 0, config.dtype)


def _draw(config: RunConfig, client: int) -> tuple[Numbers, Numbers]:
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

    def __init__(self, problem: Quadratic, client: int) -> None:
        self._problem, self._client = problem, client
        self.noise, self.layout = problem.noise, problem.layout
        self.buffers = torch.empty(0, dtype=problem.dtype)

    @cached_property
    def A(self) -> Tensor:  # noqa: N802 - the usual symbol
        """Its Hessian."""
        return self._problem.of(self._client)[0]

    @cached_property
    def b(self) -> Tensor:
        """Its optimum."""
        return self._problem.of(self._client)[1]

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
