"""What an algorithm declares: its two sides, its options, and what it needs of a run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.doors import find_object
from fedapp.errors import ConfigError
from fedapp.models.layout import Layout
from fedapp.tables import NoOptions, Table, Value

if TYPE_CHECKING:
    from fedapp.client import Client
    from fedapp.strategy import FederatedStrategy


@dataclass(frozen=True)
class Needs:
    """What an algorithm needs of a run's config, checked before anything is built.

    Where a need is a text, it says why, for the error message; empty if there is no such need. The last two are advice:
    the user is warned, and the run goes on.
    """

    uniform_weighting: str = ""
    one_local_step: bool = False
    equal_local_steps: bool = False
    all_clients: bool = False
    every_update: bool = False  # a round with fewer is repeated
    no_server_lr: bool = False
    network: bool = False  # the method looks into a network; its clients train one after the other
    classes: bool = False  # the method compares distributions over classes
    unbiased_compressor: bool = False
    no_error_feedback: str = ""
    plain_sgd: str = ""  # no other client-optimizer
    no_clipping: str = ""
    low_variance: bool = False  # the compression error is fed back
    no_second_feedback: bool = False  # tracking makes up for a biased compressor already

    def check(self, config: RunConfig, name: str, compressor: Compressor | None) -> None:
        """Raise ConfigError if the config is not what the algorithm called `name` needs."""
        if self.one_local_step and (config.local_steps != 1 or config.local_epochs):
            raise ConfigError(
                f"{name} takes one local step: set local-steps = 1, local-epochs = 0."
            )
        if self.all_clients and config.clients_per_round != config.num_clients:
            raise ConfigError(
                f"{name} needs all clients in every round: set clients-per-round = {config.num_clients}."
            )
        if self.no_server_lr and config.server_lr not in (0.0, 1.0):
            raise ConfigError(f"{name} has no server step size: leave server-lr = 0.")
        if self.uniform_weighting and config.weighting != "uniform":
            raise ConfigError(f'{self.uniform_weighting}: set weighting = "uniform".')
        if self.equal_local_steps and config.local_epochs:
            raise ConfigError(
                f"{name} needs the same tau for all: set local-steps, local-epochs = 0."
            )
        if self.unbiased_compressor and compressor and not compressor.unbiased:
            raise ConfigError(
                f"{name} needs an unbiased compressor: set compressor to dithered, natural, qsgd, randk, none or "
                "uniform (with stochastic rounding)."
            )
        if self.no_error_feedback and config.error_feedback:
            raise ConfigError(f"{self.no_error_feedback}: set error-feedback = false.")
        if self.plain_sgd and config.client_optimizer != "sgd":
            raise ConfigError(f'{self.plain_sgd}: set client-optimizer = "sgd".')
        if self.no_clipping and config.clip_gradient:
            raise ConfigError(f"{self.no_clipping}: set clip-gradient = 0.")
        if self.network and config.vectorize:
            raise ConfigError(
                f"{name} has a loss that looks into the network, which vectorize does not compute: set vectorize = 0."
            )

    def fixed(self, num_clients: int) -> dict[str, Value]:
        """Return the keys of every run that can have one value only, and that value."""
        found: dict[str, Value] = {}
        if self.all_clients:
            found["clients-per-round"] = num_clients
        if self.one_local_step:
            found["local-steps"] = 1
        if self.one_local_step or self.equal_local_steps:
            found["local-epochs"] = 0
        if self.no_server_lr:
            found["server-lr"] = 0.0
        if self.uniform_weighting:
            found["weighting"] = "uniform"
        if self.no_error_feedback:
            found["error-feedback"] = False
        if self.plain_sgd:
            found["client-optimizer"] = "sgd"
        if self.no_clipping:
            found["clip-gradient"] = 0.0
        if self.network:
            found["vectorize"] = 0
        return found

    def in_words(self) -> list[str]:
        """Return the needs as a list for people."""
        words = {
            "all clients in every round": self.all_clients,
            "one local step": self.one_local_step,
            "the same number of local steps for all": self.equal_local_steps,
            "uniform weighting": self.uniform_weighting,
            "no server step size": self.no_server_lr,
            "a network": self.network,
            "classes": self.classes,
            "an unbiased compressor": self.unbiased_compressor,
            "no error feedback": self.no_error_feedback,
            "plain SGD": self.plain_sgd,
            "no gradient clipping": self.no_clipping,
            "clients one after the other (vectorize = 0)": self.network,
        }
        return [word for word, needed in words.items() if needed]


def _nothing_to_check(config: RunConfig) -> None:
    """Accept every config."""


def _any_size(config: RunConfig, size: int) -> None:
    """Accept every model."""


def _nothing_to_note(config: RunConfig, layout: Layout) -> list[str]:
    """Return no notes."""
    return []


def _error_feedback(config: RunConfig) -> bool:
    """Return whether clients send later what compression left out."""
    return bool(config.error_feedback)


def _undamped(config: RunConfig, compressor: Compressor, size: int) -> float:
    """Return 1: compression errors are fed back as they are."""
    return 1.0


def _no_advice(config: RunConfig, compressor: Compressor, size: int) -> list[str]:
    """Return no advice."""
    return []


class _ClientClass:
    """A field that holds a class of clients; given by its name, the class is imported when it is first asked for."""

    def __set__(self, algorithm: "Algorithm", given: "type[Client] | str") -> None:
        vars(algorithm)["client"] = given

    def __get__(self, algorithm: "Algorithm | None", owner: object = None) -> "type[Client]":
        if algorithm is None:  # a dataclass asks for the field's default
            raise AttributeError("client")
        given = vars(algorithm)["client"]
        if isinstance(given, str):
            given = vars(algorithm)["client"] = find_object("client", given)
        return cast("type[Client]", given)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm by its name in the config.

    `client` is a class, or the name of one as "package.module:name": the commands that list algorithms or check a config
    do not need it, and torch, which takes seconds to import, comes with it.
    `compressor` is what clients use unless the config names another. `table` is the table of its options; variants
    such as gradma-w share one, and `unread` are the keys in it that this variant ignores. `check` raises ConfigError if
    options do not fit the config, and `fits` if they do not fit a model of some size. `notes` are told before the first
    round, and so is `advice` about a compressor, for a model of some size. `damping` is what such errors of the compressor are multiplied by that the method feeds back.
    """

    name: str
    summary: str
    strategy: "type[FederatedStrategy[Any]]"
    client: _ClientClass = _ClientClass()  # a descriptor, not a default
    options: type[Table] = NoOptions
    needs: Needs = field(default_factory=Needs)
    stateful: bool = False  # clients remember something between rounds
    compressor: str = "none"
    table: str = ""
    unread: tuple[str, ...] = ()
    check: Callable[[RunConfig], None] = _nothing_to_check
    fits: Callable[[RunConfig, int], None] = _any_size
    notes: Callable[[RunConfig, Layout], list[str]] = _nothing_to_note
    feedback: Callable[[RunConfig], bool] = _error_feedback
    damping: Callable[[RunConfig, Compressor, int], float] = _undamped
    advice: Callable[[RunConfig, Compressor, int], list[str]] = _no_advice

    def __post_init__(self) -> None:
        """Name the table after the algorithm."""
        if not self.table:
            object.__setattr__(self, "table", self.name)

    @property
    def has_options(self) -> bool:
        """Whether it has its own keys."""
        return bool(self.options.model_fields)

    def keeps_state(self, config: RunConfig) -> bool:
        """Return whether clients remember something between rounds, be it for error feedback or their optimizer."""
        return self.stateful or bool(config.error_feedback) or config.keeps_optimizer

    def keys(self) -> dict[str, Value]:
        """Return the config keys that it reads beside those of every run, with their defaults."""
        keys: dict[str, Value] = {}
        if not self.needs.no_server_lr:
            keys["server-lr"] = self.strategy.default_server_lr
        if self.compressor != "none":
            keys["compressor"] = self.compressor
        for key, value in self.options().model_dump(by_alias=True).items():
            if key not in self.unread:
                keys[f"{self.table}.{key}"] = value
        return keys

    def warnings(self, config: RunConfig, compressor: Compressor | None, size: int) -> list[str]:
        """Return what may go wrong with a compressor and a model of `size` parameters."""
        if compressor is None:
            return []
        named, said = compressor.name, self.advice(config, compressor, size)
        q = compressor.typical_variance(size)
        variance = (
            f"The relative variance q of compressor = {named} is {q:.3g} for {size} parameters"
        )
        a = self.damping(config, compressor, size)
        if q > 1 and self.needs.low_variance and a * (1 + q) <= 1.001:
            said.append(
                f"{variance}, so {self.name} takes up only {a:.2g} of what it learns of its clients' gradients in a "
                "round, to stay stable; with q of 1 or less it takes fewer rounds"
            )
        elif q > 1 and self.needs.low_variance:
            said.append(
                f"{variance}, and {self.name} is stable only while it is about 1 or less: choose uniform with 8 bits, or "
                "qsgd with more levels or with buckets (q = sqrt(bucket)/levels)"
            )
        if self.feedback(config) and (q > 1 or (q >= 1 and compressor.unbiased)):
            said.append(
                f"{variance}, and what error feedback remembers may grow without bound unless q is below 1: choose a finer "
                "compressor, or one that never makes a vector longer, such as topk"
            )
        if self.needs.no_second_feedback and self.feedback(config) and not compressor.unbiased:
            said.append(
                f"{self.name} tracks what was sent and so makes up for what {named} leaves out; with a memory of it as "
                "well, that counts twice and may diverge if little is sent"
            )
        return said
