"""What a node lets its clients release under client-side differential privacy, whatever a run's config says.

A node's config (never a run's) sets limits; a run that offers less, or asks for more, gets a failed client with one sentence:

  dp-require       runs without client-side noise are refused; implied by each of the others
  dp-min-noise     least dp.noise-multiplier
  dp-max-releases  most updates of a client, over all runs
  dp-max-epsilon   most that a client's updates may cost, over all runs, at dp-delta (1e-5)

What counts is the noise over the clip, so dp.clip itself has no limit: all that is sent has been clipped to it.

A ledger counts releases before they leave. That of a node is in its own `state-dir` and knows no runs: a server could
call every question a new one. That of a run, for dp.max-epsilon of its config, is in the run's Context.

Clients are what a run divides a node's data into, and another run may divide them otherwise. So a client is charged its own
releases under the same division, and all clients' under every other. Where clients share samples (samples-per-client), it
is charged all clients' under the same division, too.
"""

import hashlib
import json
import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout
from flwr.app import ConfigRecord, Context, RecordDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedapp.compression import COMPRESSORS
from fedapp.config import RunConfig
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.files import DamagedFileError, seal, unseal, writable_directory, write_text
from fedapp.node_config import data_dir_of
from fedapp.privacy.accounting import gaussian_epsilon
from fedapp.tables import Value

log = logging.getLogger("flwr")
LEDGER = "privacy-ledger.json"
LEDGER_ID = "privacy-ledger-id.json"  # beside it: whose ledger belongs here
WAIT = 60.0  # seconds for another process that writes the ledger
# dp.clip beyond these: float64 no longer holds the noise as precisely as the clipped update.
CLIPS = (1e-100, 1e100)
# The keys and tables that do not decide which samples are a client's. Every other one may, so a new key does, too.
UNRELATED = frozenset({
    "algorithm", "num-rounds", "clients-per-round", "local-steps", "local-epochs", "batch-size", "lr", "lr-schedule",
    "lr-decay", "warmup-rounds", "client-optimizer", "clip-gradient", "weight-decay", "server-lr", "weighting",
    "aggregation", "mixing", "hostile", "trim", "clip-radius", "max-examples", "max-update-norm", "on-long-update",
    "max-update-ratio", "compressor", "error-feedback", "downlink", "uplink-budget", "augmentation", "norm", "trainable",
    "dtype", "precision", "device", "compile", "vectorize", "eval-every", "test-share", "metrics", "eval-clients",
    "eval-finetune", "eval-train", "target-accuracy", "results-dir", "run-name", "tracker", "tensorboard", "state-dir",
    "on-lost-state", "checkpoint-every", "resume", "min-clients", "round-retries", "round-timeout", "node-timeout",
    "require-all-clients", "node-partitions",
})  # fmt: skip
# The tables of algorithms and compressors do not, either.
UNRELATED_TABLES = frozenset({"optimizer", "grid", "time", "dp", "lora"})
ALL = "all"  # in place of a client's number, where clients share samples
Releases = dict[str, dict[str, Counter[float]]]  # division -> client -> noise multiplier -> count


class BudgetError(RuntimeError):
    """A client has released all that it may; the message says by which limit."""


class Limits(BaseModel):
    """The keys of a node's config that begin with dp-."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: "dp-" + name.replace("_", "-"),
    )

    require: bool = False
    min_noise: float | None = Field(None, gt=0)
    max_releases: int | None = Field(None, ge=0)
    max_epsilon: float | None = Field(None, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)

    @property
    def any(self) -> bool:
        """Whether the node limits anything."""
        set_ = (self.min_noise, self.max_releases, self.max_epsilon)
        return self.require or any(limit is not None for limit in set_)

    def demand(self, config: RunConfig) -> None:
        """Refuse a run that offers less than the node demands."""
        dp = config.dp
        if not self.any:
            return
        if not dp.local or not dp.noise_multiplier:
            raise ConfigError(
                "This node's config demands noise on every update (dp-require): set dp.clip, "
                'dp.noise-multiplier and dp.where = "client".'
            )
        if dp.noise_from != "system":
            raise ConfigError(
                f'dp.noise-from = "{dp.noise_from}" is noise that the server can take off, and this node\'s '
                'config demands noise (dp-require): set dp.noise-from = "system".'
            )
        if not CLIPS[0] <= dp.clip <= CLIPS[1]:
            raise ConfigError(
                f"dp.clip = {dp.clip:g} is too extreme for exact noise, which this node's config demands "
                f"(dp-require): choose one from {CLIPS[0]:g} to {CLIPS[1]:g}."
            )
        if self.min_noise is not None and dp.noise_multiplier < self.min_noise:
            raise ConfigError(
                f"dp.noise-multiplier = {dp.noise_multiplier:g} is less than this node's dp-min-noise = "
                f"{self.min_noise:g}: raise it."
            )

    def exceeded(self, releases: Counter[float]) -> str:
        """Return the limit that a client's releases, by their noise multiplier, exceed; or an empty string."""
        if self.max_releases is not None and releases.total() > self.max_releases:
            return f"dp-max-releases = {self.max_releases}"
        if self.max_epsilon is not None:
            pairs = ((z / 2, count) for z, count in releases.items())
            if gaussian_epsilon(pairs, self.delta) > self.max_epsilon:
                return f"dp-max-epsilon = {self.max_epsilon:g}"
        return ""


def limits_of(node_config: Mapping[str, Value]) -> Limits:
    """Return the limits in a node's config; a key that is not known is refused, as a limit that would not hold."""
    own = {key: value for key, value in node_config.items() if key.startswith("dp-")}
    try:
        limits = Limits.model_validate(own)
    except ValidationError as invalid:
        problem = invalid.errors(include_url=False)[0]
        key, message = problem["loc"][0], problem["msg"].removeprefix("Input ")
        if problem["type"] == "extra_forbidden":
            message = (
                "is not one of dp-require, dp-min-noise, dp-max-releases, dp-max-epsilon, dp-delta"
            )
        raise ConfigError(
            f"This node's config has {key} = {problem['input']!r}, which is not allowed: it {message}."
        ) from None
    if limits.any and not node_config.get("state-dir"):
        raise ConfigError(
            "This node's config limits what its clients release, and has nowhere to count it: set state-dir in the "
            "node's config too."
        )
    return limits


class Ledger:
    """Releases that are counted before they are made."""

    def charge(
        self,
        division: str,
        clients: Iterable[int],
        multiplier: float,
        limits: Limits,
        shared: bool = False,
    ) -> dict[int, str]:
        """Count one release of each client, but for those whose budget it would exceed; return why not, for each of these.

        With `shared`, clients share samples, and have one budget.
        """
        refused: dict[int, str] = {}
        with self._held() as releases:
            own = releases.get(division, {})
            elsewhere = sum(
                (
                    counts
                    for other, held in releases.items()
                    if other != division
                    for counts in held.values()
                ),
                Counter[float](),
            )
            for client in clients:
                name = ALL if shared else str(client)
                counts = own.get(name, Counter()) + Counter([multiplier])
                if limit := limits.exceeded(elsewhere + counts):
                    refused[client] = limit
                else:
                    own[name] = counts
                    releases[division] = own
        return refused

    @abstractmethod
    def _held(self) -> Any:
        """Yield the releases so far; write what they are when the block ends."""


class NodeLedger(Ledger):
    """A file in the node's state-dir, shared by all its processes and runs.

    It has an identity, which a file beside it names too: another node's ledger in its place would be a new budget.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER
        self.beside = directory / LEDGER_ID

    @contextmanager
    def _held(self) -> Iterator[Releases]:
        try:
            with FileLock(self.path.with_suffix(".lock"), timeout=WAIT, poll_interval=0.01):
                identity, releases = self._read()
                before = _text(releases, identity)
                yield releases
                if (text := _text(releases, identity)) != before:  # or all are refused
                    write_text(self.path, text)
                    if not self.beside.exists():
                        write_text(self.beside, seal({"ledger": identity}))
        except Timeout:
            raise ConfigError(
                f"{self.path} is held by another process: end it, or try again."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be read or written ({error.strerror or error}), and nothing may be released that is not "
                "counted: fix that."
            ) from None

    def _read(self) -> tuple[str, Releases]:
        """Return the ledger's identity and its releases; refuse one that is damaged, missing or another's."""
        expected = self._expected()
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            if expected:
                raise self._refusal("is missing") from None
            log.warning("Starting a new ledger of what clients release: %s", self.path)
            return uuid4().hex, {}
        except UnicodeDecodeError:
            text = ""
        try:
            identity, releases = _releases(text)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._refusal("is damaged") from None
        if expected and identity != expected:
            raise self._refusal(f"is not the ledger that {LEDGER_ID} names")
        if identity and not expected:
            log.warning("Taking over a ledger of what clients release: %s", self.path)
        return identity or uuid4().hex, releases  # those of older versions have none

    def _expected(self) -> str:
        """Return the identity of the ledger that belongs here; "" if there was none yet."""
        if not self.beside.exists():
            return ""
        try:
            return str((unseal(self.beside) or {})["ledger"])
        except (DamagedFileError, KeyError):
            raise ConfigError(
                f"{self.beside} is damaged and no longer says which ledger is this node's: restore it from a backup, or "
                f"delete it if {LEDGER} is this node's own."
            ) from None

    def _refusal(self, wrong: str) -> ConfigError:
        return ConfigError(
            f"{self.path} {wrong}, and does not say what this node's clients have released: restore it from a backup, or "
            f"delete it and {LEDGER_ID} if their budget may start again."
        )


class RunLedger(Ledger):
    """A record in the node's Context of one run."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    @contextmanager
    def _held(self) -> Iterator[Releases]:
        record = self.state.get("privacy-ledger")
        releases = _releases(str(record["text"]))[1] if isinstance(record, ConfigRecord) else {}
        yield releases
        self.state["privacy-ledger"] = ConfigRecord({"text": _text(releases)})


def _text(releases: Releases, identity: str = "") -> str:
    plain = {
        division: {client: sorted(counts.items()) for client, counts in clients.items()}
        for division, clients in releases.items()
    }
    about = {"format": 2, "id": identity} if identity else {"format": 1}
    return json.dumps({**about, "digest": _digest(plain, identity), "releases": plain}) + "\n"


def _releases(text: str) -> tuple[str, Releases]:
    """Return the identity of a ledger and its releases; those of a run, and of older versions, have no identity."""
    content = json.loads(text)
    plain, identity = content["releases"], content.get("id", "")
    if content["format"] != (2 if identity else 1) or content["digest"] != _digest(plain, identity):
        raise ValueError("the digest does not fit")
    releases = {
        division: {
            client: Counter({float(z): int(count) for z, count in pairs})
            for client, pairs in clients.items()
        }
        for division, clients in plain.items()
    }
    flat = (p for clients in releases.values() for c in clients.values() for p in c.items())
    if not all(z > 0 and math.isfinite(z) and count > 0 for z, count in flat):
        raise ValueError("it does not count releases")
    return identity, releases


def _digest(plain: Any, identity: str) -> str:
    text = json.dumps(plain, sort_keys=True) + identity
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def division_of(config: RunConfig, node_config: Mapping[str, Value], problem: object = None) -> str:
    """Return a name for how a run divides this node's data into clients.

    It changes with whatever may change the division: the node's place, the data's files, and all of the config but what
    is known not to matter. A problem or a data set of the user's may read any key.
    """
    flat = config.flat()
    if not is_outside(config.problem) and not is_outside(config.dataset):
        flat = {key: value for key, value in flat.items() if not _is_unrelated(key)}
    data = getattr(getattr(problem, "problem", problem), "data", None)
    place = [node_config.get(key, "") for key in ("partition-id", "num-partitions")]
    name = [sorted(flat.items()), getattr(data, "key", ""), data_dir_of(node_config), place]
    return hashlib.sha256(json.dumps(name).encode()).hexdigest()[:16]


def _is_unrelated(key: str) -> bool:
    """Tell whether a config key does not decide which samples are a client's."""
    from fedapp.registry import ALGORITHMS  # imports the strategies, and those this package

    table, dot, _ = key.partition(".")
    if not dot:
        return key in UNRELATED
    of_algorithms = {algorithm.table for algorithm in ALGORITHMS.values()}
    return table in UNRELATED_TABLES | COMPRESSORS.keys() | of_algorithms


def charge(
    context: Context, config: RunConfig, clients: Sequence[int], problem: object = None
) -> dict[int, str]:
    """Count a release of each client; return those that must not answer, with the reason.

    Nothing is counted for runs without client-side noise: they have no limits, or were refused.
    """
    dp, node = config.dp, context.node_config
    if not dp.local or not dp.noise_multiplier:
        return {}
    limits = limits_of(node)
    division = division_of(config, node, problem)
    refused: dict[int, str] = {}
    if dp.max_epsilon:
        own = Limits.model_validate({"dp-max-epsilon": dp.max_epsilon, "dp-delta": dp.delta})
        ledger = RunLedger(context.state)
        exceeded = ledger.charge(division, clients, dp.noise_multiplier, own)
        refused = {
            client: f"the run's {limit.replace('-', '.', 1)}" for client, limit in exceeded.items()
        }
    if directory := node.get("state-dir"):
        left = [client for client in clients if client not in refused]
        node_ledger = NodeLedger(writable_directory("state-dir", str(directory)))
        shared = config.samples_per_client > 0
        exceeded = node_ledger.charge(division, left, dp.noise_multiplier, limits, shared)
        refused |= {client: f"this node's {limit}" for client, limit in exceeded.items()}
    return {
        client: f"its privacy budget is spent: another update would exceed {limit}"
        for client, limit in refused.items()
    }
