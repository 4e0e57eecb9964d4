"""SCAFFOLD: control variates correct the clients' drift.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Down: x and c. Up: u_i and c_i+ - c_i, two vectors. Server state: c, the mean of all the clients'
c_i. Client state: c_i.

Damping a (ours): both sides add a times what was sent to c_i and c, so that the errors of a coarse compressor do not build
up in them.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Arrays, Update
from strategies.fedcomgate import damping

UNIFORM = "The control variate c is the plain mean over all N clients"
PLAIN = "The control variate c_i is the client's mean gradient, u_i / (tau lr) + c_i - c, for plain steps only"


class Options(Table):
    """SCAFFOLD."""

    option: Literal[1, 2] = Field(
        2,
        description="new control variate of a client: 1: its full gradient at x; 2: from its local steps",
    )
    damping: float = Field(
        0.0,
        ge=0,
        le=1,
        description="a: how much of its change a control variate takes up; 0: 1 if the compressor's q <= 1, else 1/(1 + q)",
    )


class Scaffold(FederatedStrategy[Table]):
    """x <- x - server-lr * mean(u_i); c <- c + (s/N) mean(c_i+ - c_i)."""

    only_sums = True
    keeps: tuple[str, ...] = ("c",)

    def setup(self) -> None:
        """Start with c = 0."""
        self.c = self.zeros()

    def broadcast(self) -> Arrays:
        """Send x and c."""
        return {"x": self.x, "c": self.c}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean update, and renew c."""
        self.x = self.x - self.server_lr * self.mean(updates, "u")
        chosen = self.config.table(Options).damping
        self.renew_c(updates, damping(chosen, self.compressor, self.x.size))

    def renew_c(self, updates: Sequence[Update], a: float = 1.0) -> None:
        """Keep c the mean of all the clients' c_i."""
        self.c = self.c + a * (self.total(updates, "dc") / self.config.num_clients)


def check(config: RunConfig) -> None:
    """Refuse clipped gradients beside control variates that are not clipped."""
    if config.clip_gradient and config.table(Options).option == 1:
        raise ConfigError(
            "With scaffold.option = 1 control variates are full gradients, which are not clipped: set scaffold.option = "
            "2, or clip-gradient = 0."
        )


def scaffold_damping(config: RunConfig, compressor: Compressor, size: int) -> float:
    """Return a."""
    return damping(config.table(Options).damping, compressor, size)


ALGORITHM = Algorithm(
    "scaffold",
    "control variates against drift",
    Scaffold,
    "clients.scaffold:ScaffoldClient",
    options=Options,
    needs=Needs(uniform_weighting=UNIFORM, low_variance=True, plain_sgd=PLAIN),
    stateful=True,
    check=check,
    damping=scaffold_damping,
)
