"""Two coders of cells, close to their entropy.

ANS, of the constriction library, with the cells' counts before them: within a few bytes of the
entropy, whatever it is. Huffman's, as zlib has it: a per cent above it if symbols have some bits of
entropy each, but several times as fast to decode.
"""

import zlib
from functools import cached_property

import constriction
import numpy as np
from numpy.typing import NDArray

from fedapp.compression.cells import Cells, Integers, cell_of, chunks
from fedapp.compression.payload import PayloadError, Reader, varint

ANS_ALPHABET = 36**2  # symbols that are groups of cells
BYTE = 256


class CountedCells(Cells):
    """Cells, and how often each occurs."""

    def __init__(self, m: int, counts: NDArray[np.int64]) -> None:
        super().__init__(m, len(counts))
        self.counts = counts

    @cached_property
    def entropy(self) -> float:
        """Bits of all cells together."""
        total, occupied = self.counts.sum(), self.counts[self.counts > 0]
        return float(total * np.log2(total) - (occupied * np.log2(occupied)).sum())

    @cached_property
    def cost(self) -> float:
        """About the bits of all that is written for these cells."""
        offsets = (self.counts * (np.arange(self.alphabet) >> self.m)).sum()
        table = (2 * np.floor(np.log2(self.counts + 1)) + 1).sum()
        return float(self.entropy + offsets + table + 64)

    @property
    def single(self) -> bool:
        """Whether all numbers are in one cell; then nothing needs to be coded."""
        return bool(np.count_nonzero(self.counts) == 1)

    def model(self) -> constriction.stream.model.Categorical:
        """Return the model of a group of cells: the product of their frequencies."""
        frequency = self.counts / self.counts.sum()
        product = np.ones(1)
        for _ in range(self.group_for(ANS_ALPHABET)):
            product = np.multiply.outer(product, frequency).ravel()
        return constriction.stream.model.Categorical(product, perfect=False)

    def write_counts(self) -> bytes:
        """Write the counts in Elias's gamma code."""
        codes = (f"{count + 1:b}" for count in self.counts.tolist())
        bits = "".join("0" * (len(code) - 1) + code for code in codes)
        data = int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")
        return varint(len(data)) + data

    @classmethod
    def read_counts(cls, reader: Reader, cells: Cells, count: int) -> "CountedCells":
        """Read what `write_counts` wrote; they must be those of `count` numbers."""
        length = reader.varint()
        if length > 16 * cells.alphabet:
            raise PayloadError("its table of frequencies is too long")
        bits = f"{int.from_bytes(reader.bytes(length), 'little'):0{8 * length}b}"[::-1]
        counts, at = np.zeros(cells.alphabet, np.int64), 0
        for cell in range(cells.alphabet):
            first = bits.find("1", at, at + 63)
            end = 2 * first - at + 1
            if first < 0 or end > len(bits):
                raise PayloadError("its table of frequencies is damaged")
            counts[cell] = int(bits[first:end], 2) - 1
            at = end
        if counts.max() > count or counts.sum() != count:
            raise PayloadError("its table of frequencies does not fit the numbers")
        return cls(cells.m, counts)


def count_cells(values: Integers, fineness: tuple[int, ...], tabulated: int) -> list[CountedCells]:
    """Count the cells of numbers, for each m."""
    highest = int(values.max())
    if highest >= tabulated:
        return [CountedCells(m, np.bincount(cell_of(values, m))) for m in fineness if m <= 4]
    exact = np.zeros(highest + 1, np.int64)
    for part in chunks(values):
        exact += np.bincount(part, minlength=highest + 1)
    present = np.arange(highest + 1)
    return [
        CountedCells(m, np.bincount(cell_of(present, m), exact).astype(np.int64)) for m in fineness
    ]


def pack_ans(values: Integers, cells: CountedCells) -> bytes:
    """Code numbers with their cells' counts."""
    group = cells.group_for(ANS_ALPHABET)
    symbols, offsets = [], []
    for part in chunks(values):
        found = cells.of(part)
        symbols.append(cells.join(found, group))
        offsets.append(cells.pack_offsets(part, found))
    coder = constriction.stream.stack.AnsCoder()
    if not cells.single:
        model = cells.model()
        for part in reversed(symbols):  # the coder gives back last what it took first
            coder.encode_reverse(part, model)
    words = coder.get_compressed().astype("<u4")
    head = cells.write() + cells.write_counts() + varint(len(words))
    return b"".join((head, words.tobytes(), *offsets))


def unpack_ans(reader: Reader, count: int, limit: int) -> Integers:
    """Read what `pack_ans` wrote."""
    cells = CountedCells.read_counts(reader, Cells.read(reader, limit), count)
    words = reader.numbers("<u4", reader.varint()).astype(np.uint32)
    try:
        coder = constriction.stream.stack.AnsCoder(words)
    except ValueError:
        raise PayloadError("its coded numbers are damaged") from None
    group = cells.group_for(ANS_ALPHABET)
    values = _empty(count, limit)
    if cells.single:
        values[:] = cells.lowest[cells.counts.argmax()]
    else:
        model = cells.model()
        for part in chunks(values):
            symbols = coder.decode(model, -(-len(part) // group))
            part[:] = cells.numbers(cells.split(symbols, group, len(part)))
    if not coder.is_empty():
        raise PayloadError("its coded numbers are damaged")
    for part in chunks(values):
        cells.unpack_offsets(reader, part)
    return values


def pack_huffman(values: Integers, cells: Cells) -> bytes:
    """Code numbers whose cells, or groups of cells, are bytes."""
    group = cells.group_for(BYTE)
    coder = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    coded, offsets = [], []
    for part in chunks(values):
        found = cells.of(part)
        coded.append(coder.compress(cells.join(found, group).astype(np.uint8).data))
        offsets.append(cells.pack_offsets(part, found))
    coded.append(coder.flush())
    size = sum(map(len, coded))
    return b"".join((cells.write(), varint(size), *coded, *offsets))


def unpack_huffman(reader: Reader, count: int, limit: int) -> Integers:
    """Read what `pack_huffman` wrote."""
    cells = Cells.read(reader, limit)
    if cells.alphabet > BYTE:
        raise PayloadError("its alphabet is too large")
    group = cells.group_for(BYTE)
    sizes = [-(-len(part) // group) for part in chunks(np.empty(count, np.void))]
    coder = zlib.decompressobj(-15)
    try:
        # No more than is due is ever decompressed; the one byte too many shows a bomb.
        data = coder.decompress(reader.bytes(reader.varint()), sum(sizes) + 1)
    except zlib.error as error:
        raise PayloadError(f"its coded numbers are damaged ({error})") from None
    symbols = np.frombuffer(data, np.uint8)
    if len(symbols) != sum(sizes) or not coder.eof or coder.unused_data:
        raise PayloadError("its coded numbers are not as many as they should be")
    if symbols.max() >= cells.alphabet**group:
        raise PayloadError("its coded numbers are damaged")
    values, start = _empty(count, limit), 0
    for part, size in zip(chunks(values), sizes, strict=True):
        found = cells.split(symbols[start : start + size], group, len(part))
        part[:] = cells.numbers(found)
        cells.unpack_offsets(reader, part)
        start += size
    return values


def _empty(count: int, limit: int) -> Integers:
    return np.empty(count, np.int32 if limit < 1 << 30 else np.int64)
