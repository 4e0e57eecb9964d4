"""`fedapp run` under its old name: `python run_simulation.py [PRESET.toml ...] [-c key=value]`."""

import sys

from fedapp.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
