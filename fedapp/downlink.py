"""What goes down to clients: as it is, or on a grid that follows the model (`downlink = "grid"`). The server's side.

The server keeps x, and broadcasts w_t: x_t on the grid whose step is Delta_t = 2^floor(log2(kappa rms(x_t - w_{t-1}))).
Clients train from w_t and send their updates against it; the server applies them to x, so rounding does not add up.
As x moves less and less, the step shrinks, and nothing stalls. Every vector of `broadcast()` is its own stream.

A client that took part in round t' receives w_t - w_t', whole numbers of steps of the finer of both grids. One that holds
nothing, or a model that the server no longer keeps, receives w_t / Delta_t. Bytes are counted for each client as if it were
alone on its node. A node holds one model for all of its clients, so what it is really sent may be less.

What the clients of a round receive later (`deliver`) is rounded too, D~ = C(D + e), and e <- D + e - D~ stays for the next.

The server keeps at most `grid.keep` past models, those that some client holds: keep * streams * size of the model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedapp import wire
from fedapp.client_numbers import TalliedNumbers
from fedapp.compression import grid
from fedapp.compression.contexts import Pieces
from fedapp.compression.grid import OnGrid
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.figures import human_bytes
from fedapp.files import arrays_digest
from fedapp.wire import Arrays

FIRST = 8  # the first model, of which no movement is known, has a step 2^FIRST times as fine
OFF_GRID = -(1 << 15)  # in checkpoints, instead of an exponent
COARSE = 2.0  # a kappa above it is warned of
Model = dict[str, OnGrid]  # the streams of a round, by name


@dataclass(frozen=True)
class Parcel:
    """What a node is sent for all of its clients."""

    shared: ArrayRecord
    alone: Sequence[ArrayRecord]  # what each invited client would receive if it were alone there
    model: str = ""  # digest of what is on a grid; see `wire/downlink.py`
    base: str = ""


class Downlink:
    """Everything goes down as it is."""

    def __init__(self) -> None:
        self._shared = ArrayRecord()

    def begin(self, round_: int, vectors: Arrays, shared: ArrayRecord, remembers: bool) -> bool:
        """Prepare what an attempt at a round broadcasts; return whether it is the first of the run.

        `shared` is the record of the vectors and of what goes beside them. `remembers`: a node has what it received in
        the round before, whichever process serves it.
        """
        self._shared = shared
        return False

    @property
    def broadcast(self) -> Arrays:
        """What clients receive in place of vectors that are on a grid."""
        return {}

    def parcel(self, node: int, clients: Sequence[int]) -> Parcel:
        """Return what a node is sent for some of its clients."""
        return Parcel(self._shared, len(clients) * [self._shared])

    def arrived(self, clients: Iterable[int]) -> None:
        """Note which clients sent an update, and so hold what they were sent."""

    def delivered(self, vectors: Arrays, unit: float = 1.0) -> Arrays:
        """Return vectors for a round's clients as they are sent; clients use them over `unit`."""
        return vectors

    def reset(self) -> None:
        """Forget what was lost of vectors that were delivered, because all clients forget these."""

    def expected_bytes(self, vectors: Arrays, delivered: int) -> float:
        """Return about what a client receives in a round."""
        return sum(vector.nbytes for vector in vectors.values()) + delivered

    def notes(self, vectors: Arrays) -> list[str]:
        """Return what to tell the user before the first round."""
        return []

    def warnings(self) -> list[str]:
        """Return what may go wrong."""
        return []

    def saved(self) -> Arrays:
        """Return what changes from round to round, for a checkpoint."""
        return {}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned."""


class GridDownlink(Downlink):
    """Vectors of the model's size go down on a grid."""

    def __init__(self, config: RunConfig, pieces: Pieces) -> None:
        super().__init__()
        self._keys, self._pieces = config.grid, pieces
        self._size = sum(piece.size for piece in pieces)
        self._absence = config.num_clients / config.clients_per_round  # in rounds, on average
        self._round = 0  # the newest model's round
        self._models: dict[int, Model] = {}  # round -> what was broadcast
        self._held = TalliedNumbers()  # client -> round of the model that it received last
        self._errors: Arrays = {}  # what is still to be added to a vector that is delivered
        self._unit = 0.0  # that clients use those over; 0: none yet
        # Known to this process only: a node that the server does not know holds nothing.
        self._remembers = True
        self._on_node: dict[int, int] = {}  # node -> round of the model that it holds
        self._asked: dict[int, int] = {}  # client of the attempt under way -> its node
        self._records: dict[int, ArrayRecord] = {}  # base -> what is sent; 0: to who holds nothing
        self._digests: dict[int, str] = {}  # round -> digest of its model

    # A round.

    def begin(self, round_: int, vectors: Arrays, shared: ArrayRecord, remembers: bool) -> bool:
        """Round the vectors to their grids; an attempt that is repeated broadcasts the same."""
        first = not self._models
        if round_ != self._round or first:
            before = self._models.get(self._round, {})
            self._models[round_] = {
                name: self._follow(vector, before.get(name))
                for name, vector in vectors.items()
                if self._is_stream(vector)
            }
            self._round = round_
        self._shared, self._remembers = shared, remembers
        self._asked, self._records = {}, {}
        return first

    def _is_stream(self, vector: NDArray[Any]) -> bool:
        return vector.shape == (self._size,) and vector.dtype in grid.TYPES

    def _follow(self, vector: NDArray[Any], before: OnGrid | None) -> OnGrid:
        """Return a vector on the grid that its movement since the last broadcast asks for."""
        if before is not None:
            moved = vector.astype(np.float64) - before.vector
            exponent = grid.exponent_of(self._keys.kappa * grid.rms(moved))
            if exponent is not None:
                return grid.round_to(vector, exponent)
            if np.array_equal(vector, before.vector):
                return before
        exponent = grid.exponent_of(self._keys.kappa * grid.rms(vector))
        return grid.round_to(vector, (exponent or 0) - FIRST)

    @property
    def broadcast(self) -> Arrays:
        """The newest w of each stream."""
        return {name: on_grid.vector for name, on_grid in self._models[self._round].items()}

    def parcel(self, node: int, clients: Sequence[int]) -> Parcel:
        """Return the difference to what a node holds; without memory, the vectors as they are."""
        alone = [self._record(self._held.get(client, 0)) for client in clients]
        if not self._remembers:
            return Parcel(self._as_it_is(), alone)
        self._asked |= dict.fromkeys(clients, node)
        # Until an update confirms it, it is not known which of two models a node holds.
        base = self._on_node.pop(node, 0)
        base = base if base in self._models else 0
        known = self._digest(base) if base else ""
        return Parcel(self._record(base), alone, self._digest(self._round), known)

    def _record(self, base: int) -> ArrayRecord:
        """Return what goes to who holds the model of round `base`; encoded once for all of these."""
        base = base if base in self._models else 0
        if base not in self._records:
            known = self._models.get(base, {})
            coded = {
                wire.coded_name(name): wire.encode(self._coded(on_grid, known.get(name)))
                for name, on_grid in self._models[self._round].items()
            }
            self._records[base] = ArrayRecord(coded | self._beside())
        return self._records[base]

    def _as_it_is(self) -> ArrayRecord:
        if -1 not in self._records:
            plain = {name: wire.encode(vector) for name, vector in self.broadcast.items()}
            self._records[-1] = ArrayRecord(plain | self._beside())
        return self._records[-1]

    def _beside(self) -> dict[str, Array]:
        """Return what is not on a grid, such as the buffers."""
        streams = self._models[self._round]
        return {name: array for name, array in self._shared.items() if name not in streams}

    def _digest(self, round_: int) -> str:
        if round_ not in self._digests:
            vectors = {name: on_grid.vector for name, on_grid in self._models[round_].items()}
            self._digests[round_] = arrays_digest(vectors, {})
        return self._digests[round_]

    def arrived(self, clients: Iterable[int]) -> None:
        """Note who holds the newest model, and forget models that nobody holds, or that are too many."""
        arrived = list(clients)
        self._held.put(arrived, self._round)
        for client in arrived:
            if client in self._asked:
                self._on_node[self._asked[client]] = self._round
        past = sorted(self._held.distinct & self._models.keys() - {self._round})
        kept = {self._round, *past[-self._keys.keep :]}
        self._models = {round_: m for round_, m in self._models.items() if round_ in kept}
        self._digests = {round_: d for round_, d in self._digests.items() if round_ in kept}

    def _coded(self, new: OnGrid, base: OnGrid | None = None) -> NDArray[Any]:
        return np.frombuffer(grid.encode(new, base, self._pieces), np.uint8)

    # What is delivered.

    def delivered(self, vectors: Arrays, unit: float = 1.0) -> Arrays:
        """Round vectors, and add to each what rounding took off the one before it, as much of it over `unit`."""
        sent: Arrays = {}
        if self._unit not in (0, unit):
            self._errors = {name: e * (unit / self._unit) for name, e in self._errors.items()}
        self._unit = unit
        for name, vector in vectors.items():
            if not self._is_stream(vector):
                sent[name] = vector
                continue
            whole = vector + self._errors.get(name, np.zeros_like(vector))
            exponent = grid.exponent_of(self._keys.kappa * (grid.rms(vector) or grid.rms(whole)))
            rounded = grid.round_to(whole, exponent or 0)
            self._errors[name] = whole - rounded.vector
            sent[wire.coded_name(name)] = self._coded(rounded)
        return sent

    def reset(self) -> None:
        """Forget what is still to be added."""
        self._errors = {}

    # What it costs.

    def expected_bytes(self, vectors: Arrays, delivered: int) -> float:
        """Return about what a client receives in a round, after an absence of the average length."""
        streams = [v for v in vectors.values() if self._is_stream(v)]
        other = sum(v.nbytes for v in vectors.values()) - sum(v.nbytes for v in streams)
        coded = sum(v.size for v in streams) * bits_expected(self._keys.kappa, self._absence) / 8
        width = 8 * next((v.itemsize for v in streams), 4)
        return coded + other + delivered * bits_expected(self._keys.kappa, 1) / width

    def notes(self, vectors: Arrays) -> list[str]:
        """Say what is sent, and what the server keeps for it."""
        size = sum(v.nbytes for v in vectors.values() if self._is_stream(v))
        return [
            f"Clients receive what changed since their last round, on a grid (kappa = {self._keys.kappa:g}); the server "
            f"keeps up to {self._keys.keep} past models for that, {human_bytes(self._keys.keep * size)}."
        ]

    def warnings(self) -> list[str]:
        """Warn of a coarse grid."""
        if self._keys.kappa <= COARSE:
            return []
        return [
            f"With grid.kappa = {self._keys.kappa:g} rounding moves the model about as far as a round does, and methods that "
            "are exact otherwise may stall: choose 1 or 2"
        ]

    # Checkpoints.

    def saved(self) -> Arrays:
        """Return the models that are kept, who holds which, and what is still to be added to deliveries."""
        arrays: Arrays = {
            "round": np.array([self._round], np.int64),
            "held": np.column_stack(self._held.rows()),
        }
        for round_, model in self._models.items():
            for name, on_grid in model.items():
                arrays[f"model.{round_}.{name}"] = on_grid.vector
                number = OFF_GRID if on_grid.exponent is None else on_grid.exponent
                arrays[f"exponent.{round_}.{name}"] = np.array([number], np.int64)
        arrays["unit"] = np.array([self._unit])
        return arrays | {f"error.{name}": error for name, error in self._errors.items()}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned; nodes may hold anything by now, and are sent the model whole."""
        self._round = int(saved["round"][0])
        self._held = TalliedNumbers(*saved["held"].reshape(-1, 2).T)
        self._models, self._errors, self._on_node, self._digests = {}, {}, {}, {}
        self._unit = float(saved["unit"][0]) if "unit" in saved else 0.0  # older checkpoints
        for key, array in saved.items():
            kind, _, rest = key.partition(".")
            if kind == "error":
                self._errors[rest] = array
            elif kind == "model":
                round_text, _, name = rest.partition(".")
                number = int(saved[f"exponent.{rest}"][0])
                on_grid = OnGrid(array, None if number == OFF_GRID else number)
                self._models.setdefault(int(round_text), {})[name] = on_grid


def bits_expected(kappa: float, absence: float) -> float:
    """Return about how many bits a number takes after some rounds of absence.

    The entropy of Gaussian numbers whose deviation grows with the rounds as it did for networks on MNIST and CIFAR-10.
    """
    return max(2.55 + 2 / 3 * math.log2(absence) - math.log2(kappa), 0.3)


def check(config: RunConfig, hides_participants: bool) -> None:
    """Refuse a grid where its bytes would tell who took part."""
    if config.downlink == "grid" and hides_participants:
        raise ConfigError(
            "What a client receives depends on when it last took part, and dp protects only while nobody knows that: set "
            'downlink = "none", or dp.where = "client", or dp.clip = 0.'
        )


def make_downlink(config: RunConfig, pieces: Pieces) -> Downlink:
    """Return the downlink that a config asks for, for a model of these pieces."""
    return GridDownlink(config, pieces) if config.downlink == "grid" else Downlink()
