"""Named arrays in Flower's messages: the only package that knows how they are laid out.

The server sends a node one message a round:
  round      config record: round, tag, run, state-dir, the invited clients, and for each the tag of its last accepted
             update and the digest of the state that this update left (0: unknown); with checkpoints, kept-clients and
             kept-tags: which other states to keep; durable: whether a state must survive a power loss as soon as it is
             saved; what nodes with local data must know about inputs and targets (see `facts.py`)
  shared     array record: what every client receives
  own        array record: what only some clients receive, each array once (absent if there is none); the config record
             says who receives which: own-clients, own-names, own-arrays
A node answers with:
  client.<c>  array record: what client c sends
  metrics.<c> metric record: num-examples, steps, train-loss, state-lost, state-digest
  failures    config record: client -> why it sent nothing, in words
  reasons     config record: client -> the name of that Reason, if it is another than FAILED (absent if there is none)
A simulated node that is asked for `sums` (in the record `round`: which) adds its clients' vectors up. Then there is no
client.<c>; metrics.<c> also says what c would have sent (uplink-bytes, uplink-overhead) and how long its vectors are
(length.<name>); and there are
  sums        array record: see `fedapp.aggregation.sums`
  sum-heads   config record: for each sum, its grid and how many updates are in it

A compressed vector travels as an array of bytes. The server checks what a node sends against what it expects before
it decodes it. The question which clients a node hosts is laid out in `report.py`, evaluation in `evaluation.py`, how
nodes get what is not trained in `frozen.py`, and vectors on a grid in `downlink.py`.
"""

from fedapp.wire.arrays import (
    Arrays,
    Shape,
    WireError,
    arrays_of,
    decode,
    encode,
    is_finite,
    is_moderate,
    nbytes,
    record_of,
)
from fedapp.wire.checks import LONGEST_TEXT, error_text, printable
from fedapp.wire.downlink import coded_name, name_of_coded
from fedapp.wire.evaluation import (
    Evaluation,
    EvaluationRequest,
    Evaluations,
    add_evaluation,
    pack_evaluation_request,
    unpack_evaluation_request,
    unpack_evaluations,
)
from fedapp.wire.expected import Compressed, Spec, checked_arrays, decompress
from fedapp.wire.facts import facts_from_text, facts_head, facts_of, facts_text
from fedapp.wire.frozen import FROZEN, frozen_digest_of, frozen_head
from fedapp.wire.invitation import (
    Invitation,
    pack_invitation,
    part_of,
    per_client_nbytes,
    per_client_overhead,
    take_shared,
    unpack_invitation,
)
from fedapp.wire.reply import (
    SUMS,
    PackedSums,
    Reply,
    Update,
    add_refusals,
    add_summed,
    add_sums,
    add_update,
    merge,
    take_sums,
    unpack_reply,
)
from fedapp.wire.report import (
    Report,
    ask_for_facts,
    check_of,
    pack_query,
    pack_rejection,
    pack_report,
    pack_report_error,
    rejection_of,
    unpack_report,
    wants_facts,
)

__all__ = [
    "FROZEN",
    "LONGEST_TEXT",
    "SUMS",
    "Arrays",
    "Compressed",
    "Evaluation",
    "EvaluationRequest",
    "Evaluations",
    "Invitation",
    "PackedSums",
    "Reply",
    "Report",
    "Shape",
    "Spec",
    "Update",
    "WireError",
    "add_evaluation",
    "add_refusals",
    "add_summed",
    "add_sums",
    "add_update",
    "arrays_of",
    "ask_for_facts",
    "check_of",
    "checked_arrays",
    "coded_name",
    "decode",
    "decompress",
    "encode",
    "error_text",
    "facts_from_text",
    "facts_head",
    "facts_of",
    "facts_text",
    "frozen_digest_of",
    "frozen_head",
    "is_finite",
    "is_moderate",
    "merge",
    "name_of_coded",
    "nbytes",
    "pack_evaluation_request",
    "pack_invitation",
    "pack_query",
    "pack_rejection",
    "pack_report",
    "pack_report_error",
    "part_of",
    "per_client_nbytes",
    "per_client_overhead",
    "printable",
    "record_of",
    "rejection_of",
    "take_shared",
    "take_sums",
    "unpack_evaluation_request",
    "unpack_evaluations",
    "unpack_invitation",
    "unpack_reply",
    "unpack_report",
    "wants_facts",
]
