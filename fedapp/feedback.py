"""EF21 on the server: the mean of what it knows of all clients, with which any algorithm can go on.

Richtarik, Sokolov, Fatkhullin, EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback, NeurIPS
2021; with sampling, Fatkhullin et al., EF21 with Bells & Whistles, 2021 (EF21-PP).

A client keeps g_i, all that the server knows of its vectors v_i, and sends c_i = C(v_i - g_i); both add it to g_i. To
keep every g_i, the server would need as many vectors as there are clients. It keeps their mean G alone, and an algorithm
receives G + (s/N) c_i as the update of a client, s updates of N clients: their mean is G + sum(c_i)/N, which is the
mean of all N renewed g_i, absent clients included. Hence what is refused: algorithms and rules that use single updates,
or sums over those clients that answered, have no use for such updates; and a client that lost its g_i cannot be told
apart in G, so all must restart then.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.aggregation.sums import Summed
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.wire import Arrays, Update

EF21 = "ef21"


class MeanOfKnown:
    """G for each vector that clients send with feedback."""

    def __init__(self, names: tuple[str, ...], num_clients: int) -> None:
        self.names, self.num_clients = names, num_clients
        self.G: Arrays = {}

    def applied(self, updates: Sequence[Update]) -> Sequence[Update]:
        """Return the updates that an algorithm receives, and renew G."""
        if isinstance(updates, Summed):
            return self._applied_to_sums(updates)
        renewed = []
        for update in updates:
            arrays = dict(update.arrays)
            for name in self.names:
                share = len(updates) / self.num_clients
                arrays[name] = self._known(name, update) + arrays[name] * share
            renewed.append(replace(update, arrays=arrays))
        for name in self.names:
            changes = np.sum([update[name] for update in updates], axis=0, dtype=np.float64)
            G = self._known(name, updates[0])
            self.G[name] = (G + changes / self.num_clients).astype(G.dtype)
        return renewed

    def _applied_to_sums(self, updates: Summed) -> Summed:
        """Give an algorithm G as the mean, once it is renewed."""
        for name in self.names:
            exact = updates.sums.exact[name]
            G = self.G.get(name, np.zeros(exact.slices.shape[1], exact.dtype))
            self.G[name] = (G + exact.total() / self.num_clients).astype(exact.dtype)
            updates.means[name] = self.G[name]
        return updates

    def _known(self, name: str, update: Update) -> NDArray[Any]:
        return self.G[name] if name in self.G else np.zeros_like(update[name])

    def reset(self) -> None:
        """Forget everything, as all clients do."""
        self.G = {}

    def saved(self) -> Arrays:
        """Return G, for a checkpoint."""
        return dict(self.G)

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned."""
        self.G = dict(saved)


def check(config: RunConfig, rule_is_a_mean: bool) -> None:
    """Raise ConfigError if EF21 is asked for where the mean of what is known cannot stand for the updates."""
    if config.error_feedback != EF21:
        return
    off = "or error-feedback = true"
    if config.weighting != "uniform" or config.aggregation != "mean" or config.mixing != "none":
        raise ConfigError(
            'EF21\'s server knows only the plain mean of its clients: set weighting = "uniform", aggregation = "mean" and '
            f'mixing = "none", {off}.'
        )
    if config.dp.clip or (config.max_update_norm and config.on_long_update == "clip"):
        raise ConfigError(
            "EF21's clients and server must add the same: set dp.clip = 0 and "
            f'on-long-update = "reject", {off}.'
        )
    if not rule_is_a_mean:
        raise ConfigError(
            f"EF21's server knows only the mean of its clients, and {config.algorithm} uses more than that: set "
            "error-feedback = true."
        )
    if config.on_lost_state != "reset":
        raise ConfigError(
            f'With EF21 a client that lost its state would be wrong for ever: set on-lost-state = "reset", {off}.'
        )
