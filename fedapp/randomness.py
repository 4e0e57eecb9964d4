"""Every random draw comes from a generator keyed by what it is for.

Nothing depends on the order of calls, on the engine or on the process that draws.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

Generator = np.random.Generator


def generator(
    seed: int, purpose: str, round_: int = 0, client: int = 0, attempt: int = 0
) -> Generator:
    """Return the generator of one purpose, in one round, for one client."""
    return np.random.default_rng([seed, crc32(purpose.encode()), round_, client, attempt])


def torch_seed(seed: int, purpose: str, round_: int = 0, client: int = 0) -> int:
    """Return a seed for torch's own generator."""
    return int(generator(seed, purpose, round_, client).integers(2**62))


def sample_cohort(
    clients: Sequence[int], size: int, seed: int, round_: int, attempt: int = 0
) -> list[int]:
    """Draw a round's clients, without replacement, in the order of their ids.

    `clients` are those that can be reached; a repeated round (`attempt` > 0) draws anew.
    """
    return chosen(generator(seed, "cohort", round_, attempt=attempt), clients, size)


def chosen(rng: Generator, clients: Sequence[int], size: int) -> list[int]:
    """Draw some clients, at most all, in the order of their ids; NumPy goes through all of them only to draw over 2 %."""
    places = rng.choice(len(clients), size=min(size, len(clients)), replace=False)
    return sorted(clients[place] for place in places.tolist())
