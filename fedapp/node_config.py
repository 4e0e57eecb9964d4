"""The keys of a node's config that several modules read."""

from collections.abc import Mapping

from fedapp.errors import ConfigError
from fedapp.tables import Value


def data_dir_of(node_config: Mapping[str, Value]) -> str:
    """Return the directory of a node's own data, `data-dir` or, as Flower's own apps name it, `data-path`; "" without one."""
    named = [str(node_config[key]) for key in ("data-dir", "data-path") if node_config.get(key)]
    if len(set(named)) > 1:
        raise ConfigError(
            f"A node's config has data-dir = {named[0]!r} and data-path = {named[1]!r}, which mean the same: leave one out."
        )
    return named[0] if named else ""
