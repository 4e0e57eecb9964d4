"""A SuperLink with Flower's simulation, on loopback, for one program and for as long as it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.processes import ROOT, Federation

# Keys of `flwr run --federation-config`: one actor, as by default on two cores, and no workers that nobody needs.
ONE_ACTOR = "init-args-num-cpus=1 client-resources-num-cpus=1"
FlwrRun = Callable[..., tuple[str, dict[str, Any]]]


@contextmanager
def own_superlink(home: Path, app: Path = ROOT) -> Iterator[FlwrRun]:
    """Yield a function that runs the app and gives its output and Flower's word on how it ended.

    Its `options` are more keys of `flwr run --federation-config`.
    """
    with Federation(home, simulation=True, app=app) as federation:

        def run(config: str, nodes: int = 2, options: str = "") -> tuple[str, dict[str, Any]]:
            simulated = ["--federation-config", f"num-supernodes={nodes} {options}".rstrip()]
            return federation.run(config, *simulated)

        yield run
