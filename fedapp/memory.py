"""Whether a run fits into this machine's memory: what grows with clients times parameters is refused before it starts."""

import os

from fedapp.algorithm import Algorithm
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.traffic import human_bytes


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def demand_server_memory(
    algorithm: Algorithm, config: RunConfig, compressor: Compressor | None, size: int, width: int
) -> None:
    """Raise ConfigError if what the server holds is larger than the memory; numbers take `width` bytes."""
    held = algorithm.held(config)
    _demand(
        held * size * width,
        f"{algorithm.name}'s server holds {held:,} updates of {size:,} numbers",
        f"lower {algorithm.table}.memory-size, or choose another algorithm",
    )
    vector = compressor.nominal_bits(size) / 8 if compressor else size * width
    sampled, sent = config.clients_per_round, len(algorithm.client.sends)
    fewer = "num-clients" if algorithm.needs.all_clients else "clients-per-round"
    _demand(
        sampled * sent * vector,
        f"The updates of a round are {sampled:,} times {human_bytes(sent * vector)}",
        f"lower {fewer}, or set a compressor that sends less",
    )


def demand_client_memory(config: RunConfig, size: int, width: int) -> None:
    """Raise ConfigError if clients' states, at least a vector each, are larger than the memory that they are kept in."""
    clients = min(config.num_clients, config.clients_per_round * config.num_rounds)
    _demand(
        clients * size * width,
        f"The states of up to {clients:,} clients are at least {human_bytes(size * width)} each",
        "set state-dir, so that they are on a disk",
    )


def _demand(needed: float, what: str, remedy: str) -> None:
    if needed > (there := machine_memory()):
        raise ConfigError(
            f"{what}, {human_bytes(needed)} together, and this machine has {human_bytes(there)} of memory: {remedy}."
        )
