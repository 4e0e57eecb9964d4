"""How a model's parameter vector is laid out: tensors, layers, and its division into blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Self

from fedapp.errors import ConfigError


class Piece(NamedTuple):
    """A tensor, or a part of one, in a vector: how many numbers it has, and how many of them are a row."""

    size: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix; the last row may be cut short."""
        columns = min(max(self.columns, 1), max(self.size, 1))
        return -(-self.size // columns), columns


def pieces_of(size: int, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the pieces of a vector that are not empty; without any, the vector is one row."""
    found = tuple(piece for piece in pieces or (Piece(size, size),) if piece.size)
    if (total := sum(piece.size for piece in found)) != size:
        raise ConfigError(f"The tensors have {total} numbers, and the vector has {size}.")
    return found


@dataclass(frozen=True)
class Layout:
    """The pieces that a vector is made of, in order: its tensors, and coarser, its layers.

    The last `head` numbers are the classifier's; a problem that is not a network has one layer and no head.
    """

    tensors: tuple[int, ...]
    layers: tuple[int, ...]  # without the head's; a layer's weight and bias are one piece
    head: int = 0
    model: str = ""
    # Slices of the buffers, which are not part of the vector:
    variances: tuple[tuple[int, int], ...] = ()
    # Methods may look into the network: at its representation, head and levels.
    has_levels: bool = False
    # Length of a row of each tensor, as a matrix with a row for every output; (): each tensor is one row.
    columns: tuple[int, ...] = ()

    @classmethod
    def single(cls, size: int) -> Self:
        """Return the layout of a vector that is one tensor."""
        return cls((size,), (size,))

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(self.tensors)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The tensors, with the lengths of their rows."""
        return tuple(map(Piece, self.tensors, self.columns or self.tensors))

    def pieces_within(self, part: slice) -> tuple[Piece, ...]:
        """Return the tensors, or parts of tensors, in a part of the vector."""
        pieces, start = [], 0
        for size, columns in self.pieces:
            overlap = min(part.stop, start + size) - max(part.start, start)
            if overlap > 0:
                pieces.append(Piece(overlap, min(columns, overlap)))
            start += size
        return tuple(pieces)


EVERY_BLOCK = -1  # in place of a block's number


@dataclass(frozen=True)
class Division:
    """Contiguous blocks, and the shared block behind them."""

    blocks: tuple[slice, ...]
    shared: slice

    def parts(self, block: int) -> tuple[slice, slice]:
        """Return a block, or all of them, and the shared one."""
        everything = slice(0, self.shared.start)
        return everything if block == EVERY_BLOCK else self.blocks[block], self.shared


# The layers of each block in FedBCGD's tables (section 6.6 of its supplement); biases go with their layers.
# LeNet-5's fifth group has an empty block: it uploads only the shared one.
TABLES = {
    "lenet5": (1, 1, 1, 1, 0),
    "vgg11": (2, 2, 2, 2, 2),
    "vgg19": (8, 2, 2, 2, 4),
    "resnet18": (5, 5, 5, 3, 2),  # counts the 1x1 convolutions of shortcuts, which its table omits
}


@lru_cache
def divide(layout: Layout, count: int) -> Division:
    """Divide a model into blocks and the shared block, which is its head."""
    body = layout.size - layout.head
    shared = slice(body, layout.size)
    table = TABLES.get(layout.model, ())
    if len(table) == count and sum(table) == len(layout.layers):
        ends = [sum(layout.layers[:n]) for n in accumulate(table)]
    elif len(layout.layers) >= count:
        ends = _near_equal(layout.layers, count)
    else:  # fewer layers than blocks: borders within them
        ends = [round(body * (n + 1) / count) for n in range(count)]
    starts = [0, *ends[:-1]]
    return Division(tuple(slice(a, b) for a, b in zip(starts, ends, strict=True)), shared)


def _near_equal(sizes: Sequence[int], count: int) -> list[int]:
    """Return where `count` runs of pieces end, so that the longest run is as short as possible."""
    ends = list(accumulate(sizes, initial=0))
    n = len(sizes)
    # longest[k][i]: the longest of k runs over the first i pieces, at its shortest; cut[k][i]: the last border.
    longest = [[0] + [ends[-1] + 1] * n for _ in range(count + 1)]
    cut = [[0] * (n + 1) for _ in range(count + 1)]
    longest[0] = [0] + [ends[-1] + 1] * n
    for k in range(1, count + 1):
        for i in range(k, n + 1):
            for j in range(k - 1, i):
                run = max(longest[k - 1][j], ends[i] - ends[j])
                if run < longest[k][i]:
                    longest[k][i], cut[k][i] = run, j
    borders, i = [n], n
    for k in range(count, 1, -1):
        i = cut[k][i]
        borders.append(i)
    return [ends[i] for i in reversed(borders)]
