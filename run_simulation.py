"""Run experiments without a SuperLink: `python run_simulation.py [PRESET.toml ...] [-c key=value]`.

Each preset is one run; without any, the defaults of pyproject.toml are. Exit code 0: all went well;
1: a run could not finish; 2: something in the config must be mended.
"""

import argparse
import logging
import sys
from pathlib import Path

from fedapp.config import absolute_paths, parse_run_config, read_overrides
from fedapp.errors import ConfigError, RunError


def main() -> int:
    """Parse the command line and run what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("presets", nargs="*", type=Path, metavar="PRESET.toml")
    parser.add_argument(
        "-c",
        dest="config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a run-config key with a TOML value, as `flwr run -c` takes it; may be repeated",
    )
    parser.add_argument("--engine", choices=["inline"], default="inline", help="where clients run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results directory")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        for presets in [[preset] for preset in arguments.presets] or [[]]:
            values = read_overrides(presets, arguments.config)
            if arguments.out:
                values["results-dir"] = str(arguments.out)
            _run(values)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except RunError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the rounds so far are saved.", file=sys.stderr)
        return 130
    return 0


def _run(values: dict[str, bool | int | float | str]) -> None:
    config = parse_run_config(absolute_paths(values))
    # Flower and torch take seconds to import: a mistake in the config is told before.
    from fedapp import client_app, server_app
    from fedapp.engine import InlineGrid

    server_app.run(InlineGrid(client_app.app, config.flat()), config)


if __name__ == "__main__":
    sys.exit(main())
