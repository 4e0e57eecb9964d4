"""Compilation by numba, cached on disk.

numba notices when the file of a function has changed, but not when one that it calls has. A stale kernel would decode
something else than was sent, so the cache's directory is named after the sources of all kernels.
"""

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])
HERE = Path(__file__).parent
CONFIG: Any = numba.config


def compiled(function: Function, **options: Any) -> Function:
    """Compile a function when it is first called, with numba's options; cache that on disk if there is a directory."""
    directory, given = cache_directory(), CONFIG.CACHE_DIR
    if directory is None:
        return cast(Function, numba.njit(**options)(function))
    CONFIG.CACHE_DIR = str(directory)  # read when a function is decorated
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    finally:
        CONFIG.CACHE_DIR = given


@lru_cache
def cache_directory() -> Path | None:
    """Return where these kernels are cached: as NUMBA_CACHE_DIR says, beside them, or in the home directory."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(HERE.glob("*.py")):
        digest.update(source.read_bytes())
    given = CONFIG.CACHE_DIR
    beside = [HERE / "__pycache__", Path("~") / ".cache" / "fedapp"]
    for place in [Path(given)] if given else beside:
        try:
            directory = place.expanduser() / f"kernels-{digest.hexdigest()[:16]}"
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # not writable, or there is no home directory
            continue
        if os.access(directory, os.W_OK):
            return directory
    return None
