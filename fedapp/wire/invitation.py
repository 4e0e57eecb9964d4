"""The invitation: what the server sends a node in a round."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedapp.data import Facts
from fedapp.names import is_file_name
from fedapp.wire.arrays import Arrays, WireError, arrays_of, record_of
from fedapp.wire.checks import are_whole_numbers
from fedapp.wire.downlink import ANY_DIGEST, BASE, MODEL, digest_of, model_head, name_of_coded
from fedapp.wire.facts import facts_head, facts_of
from fedapp.wire.frozen import FROZEN, frozen_arrays_of, frozen_digest_of, frozen_head
from fedapp.wire.overhead import config_bytes, content_overhead

# Keys of the config record: columns of the table that says which client alone receives which array.
PER_CLIENT = ("own-clients", "own-names", "own-arrays")
# Keys of the config record that hold lists of whole numbers.
LISTS = ("clients", "accepted", "digests", "kept-clients", "kept-tags", "own-clients", "own-arrays")


@dataclass(frozen=True)
class Invitation:
    """What a node is asked to do in a round."""

    round: int
    tag: int
    run: str
    state_dir: str
    accepted: dict[int, int]  # invited client -> tag of its last accepted update, or 0
    shared: Arrays
    per_client: dict[int, Arrays] = field(default_factory=dict)  # what one client alone receives
    kept: dict[int, list[int]] = field(default_factory=dict)  # tags that a checkpoint would ask for
    facts: Facts | None = None  # about the images, for nodes with local data
    digests: dict[int, int] = field(default_factory=dict)  # client -> digest of its accepted state
    durable: bool = False  # states must survive a power loss as soon as they are saved
    frozen: str = ""  # digest of what is not trained; see `frozen.py`
    frozen_arrays: Arrays = field(default_factory=dict)  # for a node that lacks it
    model: str = ""  # digest of the vectors in `shared` that are on a grid; see `downlink.py`
    base: str = ""  # digest of what they are differences to; empty: of nothing
    sums: tuple[str, ...] = ()  # that the node is to answer with instead of single updates
    dtype: str = "float32"  # the type of the vectors in them


def pack_invitation(invitation: Invitation, shared: ArrayRecord) -> RecordDict:
    """Write a node's message; `shared` is encoded once for all nodes of a round."""
    head: dict[str, Any] = {
        "round": invitation.round,
        "tag": invitation.tag,
        "run": invitation.run,
        "state-dir": invitation.state_dir,
        "clients": list(invitation.accepted),
        "accepted": list(invitation.accepted.values()),
        "digests": [invitation.digests.get(client, 0) for client in invitation.accepted],
        "durable": invitation.durable,
    }
    if pairs := [(client, tag) for client, tags in invitation.kept.items() for tag in tags]:
        head["kept-clients"], head["kept-tags"] = (
            list(column) for column in zip(*pairs, strict=True)
        )
    head |= facts_head(invitation.facts) | frozen_head(invitation.frozen)
    head |= model_head(invitation.model, invitation.base)
    if invitation.sums:
        head["sums"], head["sums-dtype"] = list(invitation.sums), invitation.dtype
    rows = [(c, name, a) for c, own in invitation.per_client.items() for name, a in own.items()]
    if not rows:
        return RecordDict({"round": ConfigRecord(head), "shared": shared})
    distinct = {id(array): array for _, _, array in rows}
    place = {key: index for index, key in enumerate(distinct)}
    table = [(client, name, place[id(array)]) for client, name, array in rows]
    head |= dict(zip(PER_CLIENT, map(list, zip(*table, strict=True)), strict=True))
    own = record_of({str(place[key]): array for key, array in distinct.items()})
    return RecordDict({"round": ConfigRecord(head), "shared": shared, "own": own})


def per_client_nbytes(content: RecordDict) -> int:
    """Return the bytes of what clients receive alone, counted for each client that receives it."""
    places: Any = content.config_records["round"].get("own-arrays", [])
    return sum(len(content.array_records["own"][str(place)].data) for place in places)


def per_client_overhead(content: RecordDict, shared: Sequence[ArrayRecord]) -> int:
    """Return what is sent of invitations beside the arrays' data, if each client had its own.

    `shared` is what each client would receive then in the place of the record `shared`.
    """
    head: dict[str, Any] = dict(content.config_records["round"])
    own: dict[int, list[tuple[str, int]]] = {}
    for client, name, place in _per_client_rows(head):
        own.setdefault(client, []).append((name, place))
    records = {id(record): record for record in shared}
    rows = [tuple(own.get(client, ())) for client in head["clients"]]
    alike = Counter(zip(rows, map(id, shared), strict=True))
    return sum(
        count * _overhead_alone(content, records[key], mine) for (mine, key), count in alike.items()
    )


def _overhead_alone(
    content: RecordDict, shared: ArrayRecord, own: tuple[tuple[str, int], ...]
) -> int:
    """Return it for one client, which alone receives the arrays `own`: their names, and where they are."""
    head: dict[str, Any] = {
        key: value[:1] if key in ("clients", "accepted", "digests") else value  # type: ignore[index]
        for key, value in content.config_records["round"].items()
        if key not in ("kept-clients", "kept-tags", "sums", "sums-dtype", MODEL, BASE, *PER_CLIENT)
    }
    if any(map(name_of_coded, shared)):
        head |= model_head(ANY_DIGEST, ANY_DIGEST)
    records: dict[str, ArrayRecord | int] = {"shared": shared}
    if own:
        names, places = zip(*own, strict=True)
        head |= dict(zip(PER_CLIENT, (len(own) * [0], list(names), list(places)), strict=True))
        arrays = [content.array_records["own"][str(place)] for place in dict.fromkeys(places)]
        records["own"] = ArrayRecord({str(index): array for index, array in enumerate(arrays)})
    return content_overhead(records | {"round": config_bytes(head)})


def unpack_invitation(content: RecordDict) -> Invitation:
    """Read a node's message; the parts that become paths on the node's disk are checked."""
    record, shared = content.get("round"), content.get("shared")
    if not isinstance(record, ConfigRecord) or not isinstance(shared, ArrayRecord):
        raise WireError("it is not an invitation")
    head: dict[str, Any] = dict(record)
    if (
        not isinstance(head.get("run"), str)
        or not is_file_name(head["run"])
        or not isinstance(head.get("state-dir"), str)
    ):
        raise WireError("its run is not a name, or its state-dir is not a text")
    whole = ([head.get("round"), head.get("tag")], *(head.get(name, []) for name in LISTS))
    if not all(are_whole_numbers(numbers) for numbers in whole):
        raise WireError("a round, tag or client in it is not a whole number")
    records = content.array_records
    arrays = arrays_of(records["own"]) if "own" in records else {}
    per_client: dict[int, Arrays] = {}
    kept: dict[int, list[int]] = {}
    try:
        for client, name, place in _per_client_rows(head):
            per_client.setdefault(client, {})[str(name)] = arrays[str(place)]
        for client, tag in zip(
            head.get("kept-clients", []), head.get("kept-tags", []), strict=True
        ):
            kept.setdefault(client, []).append(tag)
        accepted = dict(zip(head["clients"], head["accepted"], strict=True))
        digests = dict(zip(head["clients"], head["digests"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"its lists do not fit together: {error}") from None
    return Invitation(
        round=head["round"],
        tag=head["tag"],
        run=head["run"],
        state_dir=head["state-dir"],
        accepted=accepted,
        shared=arrays_of(shared),
        per_client=per_client,
        kept=kept,
        facts=facts_of(head),
        digests=digests,
        durable=head.get("durable") is True,
        frozen=frozen_digest_of(head),
        frozen_arrays=frozen_arrays_of(content),
        model=digest_of(head, MODEL),
        base=digest_of(head, BASE),
        sums=tuple(map(str, head.get("sums", ()))),
        dtype=str(head.get("sums-dtype", "float32")),
    )


def _per_client_rows(head: dict[str, Any]) -> Iterable[tuple[int, str, int]]:
    """Return the rows (client, name, place of the array) of what clients receive alone."""
    return zip(*(head.get(column, []) for column in PER_CLIENT), strict=True)


def take_shared(content: RecordDict) -> tuple[RecordDict, list[int]]:
    """Remove the arrays from an invitation, or a request to evaluate; return them, and its clients."""
    head = content.get("round")
    if not isinstance(head, ConfigRecord):  # not an invitation
        return RecordDict(), []
    clients: list[int] = list(head["clients"])  # type: ignore[arg-type]
    return RecordDict(
        {n: content.pop(n) for n in ("shared", "own", FROZEN) if n in content}
    ), clients


def part_of(content: RecordDict, clients: list[int]) -> RecordDict:
    """Return an invitation, without its arrays, for some of its clients."""
    head: dict[str, Any] = dict(content.config_records["round"])
    for column in {"accepted", "digests"} & head.keys():  # a request to evaluate has none
        values = dict(zip(head["clients"], head[column], strict=True))
        head[column] = [values[c] for c in clients]
    head["clients"] = clients
    chosen = set(clients)
    rows = [row for row in _per_client_rows(head) if row[0] in chosen]
    for place, column in enumerate(PER_CLIENT):
        if column in head:
            head[column] = [row[place] for row in rows]
    return RecordDict({"round": ConfigRecord(head)})
