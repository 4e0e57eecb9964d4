"""Vectors on a grid, on their way to a node (`downlink = "grid"`).

A vector that is coded (`compression/grid.py`) travels as an array of bytes, named `<name>.grid`: in the record `shared`
what every client receives, in the record `own` what was delivered to some. The config record `round` says:
  model      digest of the vectors in `shared`, by their names, once they are decoded (absent if none is coded)
  base       digest of the vectors that those are differences to (absent if they are differences to nothing)
The node decodes them with the vectors that it kept under the digest `base`, verifies the digest `model`, and keeps them in
the place of the others. If it has no such vectors, it says so with the reason LACKS_MODEL for each of its clients. To a
node that did not confirm, by the update of one of its clients, that it has the last model, the server sends the next
one whole.
"""

import re
from collections.abc import Mapping
from typing import Any

from fedapp.wire.arrays import WireError

MODEL, BASE = "model", "base"
ANY_DIGEST = 32 * "0"
CODED = ".grid"  # behind the name of a vector, which is the name of a Python argument


def coded_name(name: str) -> str:
    """Return the name under which a coded vector travels."""
    return f"{name}{CODED}"


def name_of_coded(name: str) -> str:
    """Return the name of a coded vector; empty if an array of this name is not coded."""
    return name.removesuffix(CODED) if name.endswith(CODED) else ""


def model_head(model: str, base: str) -> dict[str, Any]:
    """Return digests as entries of a config record."""
    return {name: digest for name, digest in ((MODEL, model), (BASE, base)) if digest}


def digest_of(head: Mapping[str, Any], name: str) -> str:
    """Return a digest that the server names; empty if it names none."""
    digest = head.get(name, "")
    if not isinstance(digest, str) or not re.fullmatch(r"([0-9a-f]{32})?", digest):
        raise WireError(f"the digest of its {name} is not one")
    return digest
