"""Low rank: each matrix as the product of two thin ones.

Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization, NeurIPS 2019. Without their
warm start, which would be state of the compressor: a power iteration from random numbers stands in for it.
"""

from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.compression.compressor import Compressor, Parts, Vector
from fedapp.compression.floats import Float16
from fedapp.compression.payload import NotFiniteError, Reader
from fedapp.models.layout import Piece, pieces_of
from fedapp.randomness import Generator

Matrix = NDArray[np.float64]
LARGEST = np.finfo(np.float32).max
NEGLIGIBLE = 1e-12  # share of a column's length: what is left below it is rounding
HALF = Float16()


class LowRank(Compressor):
    """M ~ P Q^T, P orthonormal, Q = M^T P, in half precision; so is all that would be no smaller as two factors.

    Biased, so it wants error feedback.
    """

    rank: int = Field(4, ge=1, le=1024, description="columns of the two factors of each matrix")
    # The tensors with their rows, which `for_pieces` sets; (): one row, which is sent as it is.
    pieces: tuple[Piece, ...] = Field((), exclude=True)
    name: ClassVar[str] = "lowrank"
    codec: ClassVar[int] = 11

    def for_pieces(self, pieces: tuple[Piece, ...]) -> "LowRank":
        """Take the tensors as matrices."""
        return self.model_copy(update={"pieces": pieces})

    def quantize(self, v: Vector, rng: Generator) -> Parts:
        """Return the left factors, the right ones and the rest, in half precision, and the size."""
        left, right, rest = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
        for start, piece in self._places(v.size):
            part = v[start : start + piece.size]
            if not self._factors(piece):
                rest.append(part.astype(np.float64))
                continue
            unit = np.ldexp(1.0, int(np.frexp(np.abs(part).max())[1]))
            matrix = np.zeros(piece.shape)
            matrix.ravel()[: piece.size] = part / unit
            P, Q = _factorize(matrix, rng.normal(size=(matrix.shape[1], self.rank)))
            left.append(P.ravel())
            right.append(Q.ravel() * unit)
        parts = []
        for numbers in (left, right, rest):
            joined = np.concatenate(numbers)
            if np.abs(joined).max(initial=0) > LARGEST:
                raise NotFiniteError("a matrix whose factors overflow cannot be compressed")
            parts.append(HALF.quantize(joined.astype(np.float32), rng))
        return (*parts, v.size)

    def dequantize(self, left: Parts, right: Parts, rest: Parts, size: int) -> Vector:
        """Return the products P Q^T and the rest; the sums have the same order, and bits, everywhere."""
        factors = [HALF.dequantize(*part).astype(np.float64) for part in (left, right, rest)]
        places, vector = [0, 0, 0], np.empty(size, np.float32)

        def take(which: int, count: int) -> Matrix:
            places[which] += count
            return factors[which][places[which] - count : places[which]]

        for start, piece in self._places(size):
            out = vector[start : start + piece.size]
            with np.errstate(all="ignore"):  # what is decoded is checked
                if not self._factors(piece):
                    out[:] = take(2, piece.size)
                    continue
                rows, columns = piece.shape
                P = take(0, rows * self.rank).reshape(rows, self.rank)
                Q = take(1, columns * self.rank).reshape(columns, self.rank)
                product = np.zeros((rows, columns))
                for n in range(self.rank):
                    product += P[:, n, None] * Q[:, n]
                out[:] = product.ravel()[: piece.size].clip(-LARGEST, LARGEST)
        return vector

    def write(self, left: Parts, right: Parts, rest: Parts, size: int) -> bytes:
        """Write the factors and the rest."""
        return b"".join(HALF.write(*part) for part in (left, right, rest))

    def parse(self, reader: Reader, size: int) -> Parts:
        """Read what `write` wrote."""
        return (*(HALF.parse(reader, count) for count in self._counts(size)), size)

    def _places(self, size: int) -> list[tuple[int, Piece]]:
        pieces = pieces_of(size, self.pieces)
        starts = accumulate((piece.size for piece in pieces), initial=0)
        return list(zip(starts, pieces, strict=False))

    def _factors(self, piece: Piece) -> bool:
        """Return whether two factors are smaller than the piece."""
        return self.rank * sum(piece.shape) < piece.size

    def _counts(self, size: int) -> tuple[int, int, int]:
        """Return how many numbers of left factors, of right ones, and others there are."""
        pieces = pieces_of(size, self.pieces)
        shapes = [piece.shape for piece in pieces if self._factors(piece)]
        rest = sum(piece.size for piece in pieces if not self._factors(piece))
        return self.rank * sum(s[0] for s in shapes), self.rank * sum(s[1] for s in shapes), rest

    def variants(self) -> list[Compressor]:
        """Lower the rank."""
        return self.with_each(
            "rank", [1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, *range(32, 0, -1)]
        )

    def nominal_bits(self, size: int) -> int:
        """Return 16 bits for each number of the factors and of the rest."""
        return 16 * sum(self._counts(size))

    def variance(self, size: int) -> float:
        """Return 1: a matrix may be orthogonal to P; and the rounding."""
        return 1.0 + 2.0**-9

    def typical_variance(self, size: int) -> float:
        """Return about the part of Gaussian numbers that is left out."""
        pieces = pieces_of(size, self.pieces)
        left = sum(p.size * (1 - self.rank / min(p.shape)) for p in pieces if self._factors(p))
        return left / max(size, 1)


def _factorize(matrix: Matrix, start: Matrix) -> tuple[Matrix, Matrix]:
    """Return P and Q; einsum adds up in one thread, whatever BLAS does."""
    P = _orthonormal(np.einsum("ij,jk->ik", matrix, start))
    Q = np.einsum("ij,ik->jk", matrix, P)
    P = _orthonormal(np.einsum("ij,jk->ik", matrix, Q))
    return P, np.einsum("ij,ik->jk", matrix, P)


def _orthonormal(matrix: Matrix) -> Matrix:
    """Orthonormalize columns by Gram and Schmidt, twice each; a column that depends on the others becomes 0."""
    result = np.zeros_like(matrix)
    for n in range(matrix.shape[1]):
        column = matrix[:, n]
        length = np.sqrt((column * column).sum())
        for _ in range(2):
            inner = np.einsum("ik,i->k", result, column)
            column = column - np.einsum("ik,k->i", result, inner)
        left = np.sqrt((column * column).sum())
        if left > NEGLIGIBLE * length:
            result[:, n] = column / left
    return result
