"""fedapp: communication-efficient federated learning as a Flower app."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedapp")
except PackageNotFoundError:  # run from a bundle that Flower unpacked
    __version__ = "unpacked"
