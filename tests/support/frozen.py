"""A run whose frozen part a node may lack."""

from fedapp.tables import Value

KEYS: dict[str, Value] = {
    "algorithm": "scaffold",
    "model": "tests.models.outside.networks:Versioned",
    "trainable": "head",
    "num_clients": 4,
    "clients_per_round": 4,
    "num_rounds": 3,
    "local_steps": 2,
    "train_samples": 200,
    "partition": "iid",
}
# Bytes of weight, bias and order, and of the three arrays' headers.
FROZEN = 4 * (64 * 12 + 12) + 8 * 12 + 3 * 128
