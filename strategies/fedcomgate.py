"""FedCOM, FedGATE and FedCOMGATE: compressed updates, and local gradient tracking.

Haddadpour et al., Federated Learning with Compression: Unified Analysis and Sharp Guarantees,
AISTATS 2021: algorithm 1 (FedCOM), 3 (FedGATE), 2 and, with sampling, 4 (FedCOMGATE); equations 8
and 9 for sparsification with memory.

FedCOM. Down: x. Up: D_i = Q(u_i / lr). No state.

FedGATE. Down: x, and u of the client's last round. Up: u_i. Client state: delta_i.

FedCOMGATE. Down: x, and D of the client's last round. Up: D_i = Q(u_i / lr).
Client state: delta_i, and with memory nu_i (and u_i, as the paper has it).

A client needs the mean of its last round only when it next takes part: it comes with that
invitation, and the server keeps the means that some client still waits for.

The papers have one tau. Where clients took different tau_i, T = mean_S(D_j / tau_j) goes down instead of D:
with D / tau_i, sum_i tau_i delta_i would stay 0 instead of sum_i delta_i, and x would minimise sum_i tau_i f_i.

With option 1 (option I of the paper) x does not go down: the clients take the server's step themselves. A client
that did not take part in the last round that counted, or must be asked again, receives x.

Damping a (ours): delta_i changes by a times as much, so that the errors of a coarse compressor do not build up in it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedapp.aggregation import PER_STEP
from fedapp.algorithm import Algorithm, Needs
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.problems.protocols import Vector
from fedapp.strategy import FederatedStrategy
from fedapp.tables import NoOptions, Table
from fedapp.wire import Arrays, Update


class GateOptions(Table):
    """FedGATE."""

    option: Literal[1, 2] = Field(
        2,
        description="1: clients derive x from the mean themselves, and x is not sent (all clients in every round); 2: x is sent",
    )
    damping: float = Field(
        0.0,
        ge=0,
        le=1,
        description="a: how much of the difference to the mean tracking takes up; 0: 1 if the compressor's q <= 1, else 1/(1 + q)",
    )


class Options(GateOptions):
    """FedCOMGATE."""

    track: Literal["sent", "own"] = Field(
        "sent",
        description='what delta_i follows: what was "sent" (printed), or the client\'s "own" update before compression, which needs a memory',
    )
    memory: Literal["none", "local", "paper", "paper-sampled"] = Field(
        "none",
        description='memory of what compression left out: "local" (error feedback), "paper" (equation 9 as printed), "paper-sampled" (m = |S| in it), "none"',
    )


def damping(chosen: float, compressor: Compressor | None, size: int) -> float:
    """Return a; if it is 0, 1 where the compressor's relative variance q is at most 1, else 1/(1 + q)."""
    q = compressor.typical_variance(size) if compressor else 0.0
    return chosen or (1.0 if q <= 1 else 1 / (1 + q))


class FedCOM(FederatedStrategy[NoOptions]):
    """x <- x - lr * server-lr * mean(D_i)."""

    only_sums = True
    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean of the compressed updates."""
        self.x = self.x - self.lr * self.server_lr * self.mean(updates, "D")


class Gate(FederatedStrategy[GateOptions]):
    """What FedGATE and FedCOMGATE share: what goes down."""

    delivers = 1
    checks_steps = True
    vector = "u"  # that the clients send, and whose mean they receive

    def setup(self) -> None:
        """No client holds x yet."""
        self.holders: set[int] = set()

    def broadcast(self) -> Arrays:
        """Send x, unless clients derive it."""
        return super().broadcast() if self.options.option == 2 else {}

    def on_cohort(self, clients: Sequence[int], round_: int, attempt: int) -> None:
        """Find out who can derive x: who took part in the last round that counted. When a round is repeated, nobody."""
        accepted = self.ledger.accepted
        last = max(accepted.distinct, default=0)
        if self.options.option == 1:
            self.holders = {c for c in clients if accepted.get(c) == last and not attempt}

    def per_client(self, client: int) -> Arrays:
        """Return the mean of a client's last round, and x, if it cannot derive it."""
        received = super().per_client(client)
        derives = client in self.holders and self.vector in received
        return received if self.options.option == 2 or derives else received | {"x": self.x}

    def tracked(self, updates: Sequence[Update], mean: Vector, lr: float = 1.0) -> Arrays:
        """Return what clients track: the mean, or T = mean(D_j / (lr tau_j)) if they took different tau_j."""
        if len({update.steps for update in updates}) == 1:
            return {self.vector: mean}
        return {"T": self.mean(updates, self.vector + PER_STEP) / lr}

    def sums_needed(self) -> tuple[str, ...]:
        """Return what is needed the sums of: also that of u_j / tau_j if tau_j may differ."""
        needed = super().sums_needed()
        return (*needed, self.vector + PER_STEP) if self.config.local_epochs else needed


class FedGATE(Gate):
    """x <- x - server-lr * u, u = mean(u_i)."""

    only_sums = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along u, which the clients need to track it."""
        u = self.mean(updates, "u")
        self.x = self.x - self.server_lr * u
        tracked = self.tracked(updates, u, self.lr)
        self.deliver(self.lr if "u" in tracked else 1.0, **tracked)


class FedCOMGATE(Gate):
    """x <- x - lr * server-lr * D, D = mean(D_i)."""

    only_sums = True
    vector = "D"
    options: Options

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along D, which the clients need to track it."""
        D = self.mean(updates, "D")
        self.x = self.x - self.lr * self.server_lr * D
        means = self.tracked(updates, D)
        if self.options.memory.startswith("paper"):
            means |= {"D": D, "s": np.array([len(updates)], D.dtype)}
        self.deliver(**means)


def check_option(config: RunConfig, options: GateOptions) -> None:
    """Refuse option 1 where some clients of a round were not in the round before."""
    if options.option == 1 and config.downlink != "none":
        raise ConfigError(
            f"With {config.algorithm}.option = 1 clients derive x from the mean, which a grid would round: set downlink = "
            f'"none", or {config.algorithm}.option = 2.'
        )
    if options.option == 1 and config.clients_per_round < config.num_clients:
        raise ConfigError(
            f"With {config.algorithm}.option = 1 clients derive x from the round before, in which all must have taken "
            f"part: set clients-per-round = {config.num_clients}, or {config.algorithm}.option = 2."
        )


def check_fedgate(config: RunConfig) -> None:
    """Check FedGATE's options."""
    check_option(config, config.table(GateOptions))


def check_fedcomgate(config: RunConfig) -> None:
    """Refuse two memories of what compression left out."""
    check_option(config, config.table(Options))
    if config.table(Options).memory != "none" and config.error_feedback:
        raise ConfigError(
            "fedcomgate.memory and error-feedback both keep what compression left out: "
            'set fedcomgate.memory = "none" or error-feedback = false.'
        )


def has_feedback(config: RunConfig) -> bool:
    """Return whether clients send later what compression left out."""
    return bool(config.error_feedback) or config.table(Options).memory == "local"


def fedgate_damping(config: RunConfig, compressor: Compressor, size: int) -> float:
    """Return FedGATE's a."""
    return damping(config.table(GateOptions).damping, compressor, size)


def fedcomgate_damping(config: RunConfig, compressor: Compressor, size: int) -> float:
    """Return FedCOMGATE's a."""
    return damping(config.table(Options).damping, compressor, size)


def tracking_advice(config: RunConfig, compressor: Compressor, size: int) -> list[str]:
    """Warn of what is tracked beside the wrong memory."""
    memory, sent = has_feedback(config), config.table(Options).track == "sent"
    if sent and memory and not compressor.unbiased:
        return [
            f"fedcomgate tracks what was sent and so makes up for what {compressor.name} leaves out; with a memory of it "
            'as well, that counts twice and may diverge if little is sent: set fedcomgate.track = "own", or take the '
            "memory away"
        ]
    if not sent and not memory and compressor.typical_variance(size):
        return [
            f'With fedcomgate.track = "own" and no memory nothing makes up for what {compressor.name} leaves out, and the '
            'run stalls: set fedcomgate.memory = "local", or fedcomgate.track = "sent"'
        ]
    return []


PLAIN = (
    "Tracking takes u_i / (tau lr) for the client's mean gradient, which it is for plain steps only"
)
FEDCOM = Algorithm(
    "fedcom",
    "FedAvg with compressed updates",
    FedCOM,
    "clients.fedcomgate:FedCOMClient",
    compressor="uniform",
)
FEDGATE = Algorithm(
    "fedgate",
    "local gradient tracking",
    FedGATE,
    "clients.fedcomgate:FedGATEClient",
    options=GateOptions,
    needs=Needs(low_variance=True, no_second_feedback=True, plain_sgd=PLAIN),
    stateful=True,
    check=check_fedgate,
    damping=fedgate_damping,
)
FEDCOMGATE = Algorithm(
    "fedcomgate",
    "local gradient tracking of compressed updates",
    FedCOMGATE,
    "clients.fedcomgate:FedCOMGATEClient",
    options=Options,
    needs=Needs(low_variance=True, plain_sgd=PLAIN),
    stateful=True,
    compressor="uniform",
    check=check_fedcomgate,
    feedback=has_feedback,
    damping=fedcomgate_damping,
    advice=tracking_advice,
)
