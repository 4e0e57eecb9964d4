"""Try the app on a real federation, on this machine: `python deploy/federation.py [PRESET.toml ...] [-c key=value] [--secure]`.

Starts a SuperLink and SuperNodes that listen on loopback alone, runs the app on them, and stops everything.
With --secure they speak TLS, the SuperLink lets in only nodes whose keys were registered, and nginx stands before it, which
passes only what nodes need. Certificates and keys are made for this one run, and deleted after it. docs/deploy.md
tells how to do the same over several machines.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

# So that this file can be started from anywhere.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploy.processes import LOOPBACK, Federation, assignments
from deploy.proxy import find_nginx
from fedapp.commandline import absolute_paths, read_overrides
from fedapp.errors import ConfigError
from fedapp.tables import Value

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End what is going on; from now on nothing but SIGKILL keeps this process from stopping the others."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Start a federation, run the app on it, and stop it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("presets", nargs="*", type=Path, metavar="PRESET.toml")
    parser.add_argument(
        "-c",
        dest="config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a run-config key with a TOML value, as `flwr run -c` takes it; may be repeated",
    )
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="SuperNodes; default: 2")
    parser.add_argument(
        "--data-dirs",
        nargs="*",
        type=Path,
        default=[],
        metavar="DIR",
        help="the local data of each node, one directory each; without, they share a data set",
    )
    parser.add_argument("--secure", action="store_true", help="TLS, registered nodes only, nginx")
    arguments = parser.parse_args()
    if arguments.data_dirs and len(arguments.data_dirs) != arguments.nodes:
        parser.error(f"--data-dirs takes one directory for each of the {arguments.nodes} nodes")
    try:
        given = read_overrides(arguments.presets, arguments.config)
        if arguments.secure:
            find_nginx()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    home = Path(tempfile.mkdtemp(prefix="fedapp-federation-"))
    federation = Federation(home, arguments.secure)
    # Also where a shell has them ignored, as in the background; but nohup means it.
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    ended = False
    try:
        with federation:
            print(
                f"SuperLink on {LOOPBACK}:{federation.port}, {arguments.nodes} SuperNodes",
                flush=True,
            )
            for place in range(arguments.nodes):
                config: dict[str, Value] = {
                    "partition-id": place,
                    "num-partitions": arguments.nodes,
                    "state-dir": str(home / f"state-{place}"),
                }
                if arguments.data_dirs:
                    config["data-dir"] = str(arguments.data_dirs[place].absolute())
                federation.start_node(place, config)
            run = federation.start_run(assignments(absolute_paths(given)))
            if run.wait() == 0:
                ended = federation.ended_run().get("status") == "finished:completed"
    except KeyboardInterrupt:
        federation.stop()  # whatever the interrupt has left of it
        shutil.rmtree(home, ignore_errors=True)
        print("Interrupted; everything is stopped.", file=sys.stderr)
        return 130
    if not ended:
        print(f"The run did not end well: the logs are in {home}.", file=sys.stderr)
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
