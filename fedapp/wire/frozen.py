"""The frozen part of a model, which is not trained: a digest with every message, and its arrays once where they lack.

The server names the digest of its frozen part in every query and every invitation:
  check, round  config records: frozen, the digest (absent if nothing is frozen)
A node builds the network itself. If the digest of its own frozen part is that of the server, nothing is sent. If it is
another (another version of torch, no file with weights), it looks for a copy that it has kept. If it has none, it says so:
  hosting       config record: lacks-frozen (absent if it does not)
or, if it finds out only when it is invited, with the reason LACKS_FROZEN for each of its clients. The server sends the
arrays with its next invitation to that node:
  frozen        array record: the frozen tensors by name
The node verifies their digest, uses them, and keeps them in its state-dir or in Flower's context.state, so that they
are sent once although every message may be served by a new process.
"""

import re
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from fedapp.wire.arrays import Arrays, WireError, arrays_of

FROZEN = "frozen"  # the name of the digest in config records, and of the array record


def frozen_head(digest: str) -> dict[str, Any]:
    """Return a digest as an entry of a config record."""
    return {FROZEN: digest} if digest else {}


def frozen_digest_of(head: Mapping[str, Any]) -> str:
    """Return the digest that the server names; empty if nothing is frozen."""
    digest = head.get(FROZEN, "")
    if not isinstance(digest, str) or not re.fullmatch(r"([0-9a-f]{32})?", digest):
        raise WireError("the digest of its frozen part is not one")
    return digest


def frozen_arrays_of(content: RecordDict) -> Arrays:
    """Return the frozen tensors in an invitation, if there are any."""
    record = content.get(FROZEN)
    return arrays_of(record) if isinstance(record, ArrayRecord) else {}
