"""Coverage-guided fuzzing of all that reads what nodes and servers send; needs the extra `fuzz`.

`python -m tests.fuzz --minutes 10` divides the time between the targets; `python -m tests.fuzz --minutes 10 codecs`
gives it to one. Bytes become records as they do when they arrive, through Flower's protobuf messages. A target may
raise WireError or PayloadError and nothing else, and what it accepts must be sound. Inputs that break it stay in
`fuzz-findings/`; with `--input FILE` a target is given one of them again.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atheris
import numpy as np
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.task_identity import TaskIdentity

with atheris.instrument_imports(include=["fedapp.wire", "fedapp.compression"]):
    from fedapp import wire
    from fedapp.compression import PayloadError, make_compressor
    from fedapp.compression.payload import OVERHEAD, seal
    from fedapp.data import Facts
    from fedapp.evaluation import figures_of_clients
    from fedapp.refusals import Reason, Refusal
    from fedapp.wire import Evaluation, EvaluationRequest, Invitation, Update, WireError

FINDINGS = Path("fuzz-findings")
SIZE = 40
QSGD = make_compressor("qsgd", levels=8)
CODECS = [
    make_compressor("none"),
    make_compressor("float16"),
    QSGD,
    make_compressor("qsgd", levels=32767, norm="max", bucket=7),
    make_compressor("uniform", bits=1),
    make_compressor("uniform", bits=8, tensors=(10, 30)),
    make_compressor("topk", ratio=0.3),
    make_compressor("topk", ratio=0.5, values=QSGD),
    make_compressor("randk", ratio=0.5, values=make_compressor("uniform", bits=4)),
    make_compressor("contextual", step=0.1),
]
FLOAT32 = np.dtype(np.float32)
NOTHING = np.zeros(0, np.float32)
PLAIN: wire.Spec = {"u": (FLOAT32, (SIZE,)), "buffers": (FLOAT32, (0,))}
SPECS: dict[int, wire.Spec] = {0: PLAIN} | {
    number: {**PLAIN, "u": wire.Compressed(codec, SIZE, FLOAT32)}
    for number, codec in enumerate(CODECS, 1)
}


def vector() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return some numbers."""
    return np.random.default_rng(1).normal(size=SIZE).astype(np.float32)


def arrived(data: bytes) -> RecordDict | None:
    """Return what Flower makes of bytes; None where it refuses them itself."""
    try:
        return recorddict_from_proto(ProtoRecordDict.FromString(data))
    except Exception:  # none of our code is at work here
        return None


def sent(content: RecordDict) -> bytes:
    """Return the bytes that Flower sends."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def answer(content: RecordDict) -> Message:
    """Return a node's answer."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    return Message(content, reply_to=Message(RecordDict(), 7, "train"))


# The targets: each takes bytes. Each has seeds: bytes as honest nodes and servers send them, and of every kind of
# value that Flower can carry, which chance would hardly come upon.

VALUES = [True, 3, -1, 0.5, float("nan"), "../..", b"text"]
ODD: list[Any] = [*VALUES, *([value] for value in VALUES), [2, 2, 99, -1], [True, False]]


def reply(data: bytes) -> None:
    """Read a node's answer to an invitation."""
    if (content := arrived(data)) is None:
        return
    read = wire.unpack_reply(answer(content), SPECS)
    assert len(read.updates) + len(read.refusals) == len(SPECS)
    texts = [refusal.text for refusal in read.refusals]
    assert all(len(text) <= wire.LONGEST_TEXT and text.isprintable() for text in texts)
    for update in read.updates:
        assert update["u"].shape == (SIZE,)
        assert update["u"].dtype == np.float32
        assert np.linalg.norm(update["u"].astype(float)) < 2e18
        assert update.num_examples > 0


def reply_seeds() -> Iterator[bytes]:
    """Yield an answer of each kind of client, of all together, and of failed ones."""
    whole, rng = RecordDict(), np.random.default_rng(0)
    for client, codec in enumerate([None, *CODECS]):
        u = np.frombuffer(codec.encode(vector(), rng), np.uint8) if codec else vector()
        alone = RecordDict()
        for content in (alone, whole):
            wire.add_update(content, Update(client, {"u": u, "buffers": NOTHING}, 3, 2, 0.5))
        yield sent(alone)
    wire.add_refusals(whole, [Refusal(1, Reason.NOT_FINITE, "ill")])
    yield sent(whole)
    for odd in ODD:
        yield sent(RecordDict({"failures": ConfigRecord({"0": odd})}))
        texts, reasons = ConfigRecord({"0": "ill"}), ConfigRecord({"0": odd})
        yield sent(RecordDict({"failures": texts, "reasons": reasons}))
    for numbers in ([1, 2], [0.5], 2**63, -1, float("inf")):
        metrics = MetricRecord(dict.fromkeys(("num-examples", "steps", "train-loss"), numbers))
        plain = wire.record_of({"u": vector(), "buffers": NOTHING})
        yield sent(RecordDict({"client.0": plain, "metrics.0": metrics}))


def array(data: bytes) -> None:
    """Read an array, whatever it is, and one that must be of some kind."""
    for spec in (None, (FLOAT32, (SIZE,)), (np.dtype(np.float64), (2, 3))):
        try:
            read = wire.decode(Array("float32", (SIZE,), "numpy.ndarray", data), spec)
        except WireError:
            continue
        assert read.nbytes <= len(data)
        assert spec is None or (read.dtype, read.shape) == spec


def array_seeds() -> Iterator[bytes]:
    """Yield arrays of several kinds."""
    for some in (vector(), np.zeros((2, 3)), np.zeros(5, np.uint8), np.zeros((3, 4), order="F")):
        yield Array(some).data


def codecs(data: bytes) -> None:
    """Decode a payload as it is, and its body with the checksum made right."""
    codec, body = CODECS[data[0] % len(CODECS)] if data else QSGD, data[1:]
    for payload in (body, seal(codec.codec, SIZE, body, codec.key)):
        try:
            read = codec.decode(payload, SIZE)
        except PayloadError:
            continue
        assert read.shape == (SIZE,)
        assert np.isfinite(read).all()


def codecs_seeds() -> Iterator[bytes]:
    """Yield each codec's payload, and its body alone, of several vectors."""
    sparse = np.where(np.arange(SIZE) == 3, 1, 0).astype(np.float32)
    for number, codec in enumerate(CODECS):
        for some in (vector(), sparse, np.ones(SIZE, np.float32)):
            payload = codec.encode(some, np.random.default_rng(0))
            yield bytes([number]) + payload
            yield bytes([number]) + payload[OVERHEAD:]


def hosting(data: bytes) -> None:
    """Read which clients a node claims."""
    if (content := arrived(data)) is None:
        return
    try:
        report = wire.unpack_report(answer(content), 10)
    except WireError as error:
        assert len(str(error)) <= wire.LONGEST_TEXT
        assert str(error).isprintable()
        return
    assert len(set(report.clients)) == len(report.clients)
    assert all(type(c) is int and 0 <= c < 10 for c in report.clients)
    assert report.samples is None or type(report.samples) is int
    assert len(report.problem) <= wire.LONGEST_TEXT
    assert report.problem.isprintable()
    if report.facts:
        assert wire.facts_from_text(wire.facts_text(report.facts)) == report.facts


def hosting_seeds() -> Iterator[bytes]:
    """Yield claims and errors."""
    for said in ([0, 3, 6], *ODD):
        yield sent(RecordDict({"hosting": ConfigRecord({"clients": said})}))
        yield sent(RecordDict({"hosting": ConfigRecord({"error": said})}))
        for key in ("samples", "own-data", "problem"):
            yield sent(RecordDict({"hosting": ConfigRecord({"clients": [1], key: said})}))
        facts = wire.facts_head(Facts((1, 8, 8), 10, (5.0,), (6.0,)))
        for key in facts:
            yield sent(RecordDict({"hosting": ConfigRecord({"clients": [1], **facts, key: said})}))


def invitation(data: bytes) -> None:
    """Read what a server asks for."""
    if (content := arrived(data)) is None:
        return
    try:
        read = wire.unpack_invitation(content)
    except WireError:
        return
    base = Path("/state")
    assert (base / read.run).resolve().parent == base
    tags = [tag for tags in read.kept.values() for tag in tags]
    whole = [read.round, read.tag, *read.accepted, *read.accepted.values(), *read.kept, *tags]
    assert all(type(number) is int and number >= 0 for number in whole)


def invitation_seeds() -> Iterator[bytes]:
    """Yield an invitation with everything in it, and with each thing in it of another kind."""
    shared = wire.record_of({"x": vector(), "buffers": NOTHING})
    own = {9: {"D": np.ones(3, np.float32)}}
    full = Invitation(3, 12, "run", "/state", {2: 8, 9: 0}, {}, own, {2: [1, 4]})
    for some in (full, Invitation(1, 4, "run", "", {0: 0}, {})):
        yield sent(wire.pack_invitation(some, shared))
    content = wire.pack_invitation(full, shared)
    head = content.config_records["round"]
    for name in head:
        for odd in ODD:
            changed = ConfigRecord({**head, name: odd})
            yield sent(RecordDict({"round": changed, "shared": shared, "own": content["own"]}))


def evaluation(data: bytes) -> None:
    """Read what clients say of a model, and what a server asks them."""
    if (content := arrived(data)) is None:
        return
    read = wire.unpack_evaluations(answer(content), range(4))
    assert len(read.results) + len(read.refusals) == 4
    assert all(refusal.text.isprintable() for refusal in read.refusals)
    figures = figures_of_clients(read.results, ["loss"])
    assert all(name.isidentifier() and np.isfinite(value) for name, value in figures.items())
    try:
        request = wire.unpack_evaluation_request(content)
    except WireError:
        return
    assert all(type(number) is int and number >= 0 for number in (request.round, *request.clients))


def evaluation_seeds() -> Iterator[bytes]:
    """Yield answers and requests, and each with something in it of another kind."""
    whole = RecordDict()
    for client in range(4):
        metrics = {"loss": 0.5, "accuracy": 0.25 * client}
        wire.add_evaluation(whole, Evaluation(client, 7, metrics, metrics))
    yield sent(whole)
    for odd in ([1, 2], [0.5], 2**63 - 1, -1, 1e300, float("inf"), float("nan")):
        for key in ("num-examples", "metric.loss", "finetuned.accuracy", "metric.\x1b"):
            numbers = {"num-examples": 3, "metric.loss": 0.5, key: odd}
            yield sent(RecordDict({"evaluation.0": MetricRecord(numbers)}))
    shared = wire.record_of({"x": vector(), "buffers": NOTHING})
    request = wire.pack_evaluation_request(EvaluationRequest(3, [0, 2], {}), shared)
    yield sent(request)
    head = request.config_records["round"]
    for name in head:
        for odd in ODD:
            changed = ConfigRecord({**head, name: odd})
            yield sent(RecordDict({"round": changed, "shared": shared}))


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], Iterator[bytes]]]] = {
    "reply": (reply, reply_seeds),
    "array": (array, array_seeds),
    "codecs": (codecs, codecs_seeds),
    "hosting": (hosting, hosting_seeds),
    "invitation": (invitation, invitation_seeds),
    "evaluation": (evaluation, evaluation_seeds),
}


def fuzz_here(name: str, options: list[str]) -> None:
    """Fuzz a target in this process, which libFuzzer ends."""
    target, seeds = TARGETS[name]
    warnings.simplefilter("error")  # a warning where a computation goes wrong is a finding, too
    for seed in seeds():
        target(seed)
    atheris.Setup([sys.argv[0], *options], target)
    atheris.Fuzz()


def fuzz(name: str, seconds: float) -> bool:
    """Fuzz a target in a process of its own; say what came of it."""
    FINDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(TARGETS[name][1]()):
            (Path(corpus) / str(number)).write_bytes(seed)
        command = [
            *(sys.executable, "-m", "tests.fuzz", "--here", name, corpus),
            *(f"-max_total_time={seconds:.0f}", "-max_len=8192", "-rss_limit_mb=4096"),
            *("-print_final_stats=1", f"-artifact_prefix={FINDINGS / name}-"),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace")
    done = re.search(r"number_of_executed_units: *(\d+)", ended.stderr)
    count = f"{int(done[1]):,}" if done else "an unknown number of"
    print(f"{name}: {count} executions, {'nothing found' if not ended.returncode else 'FOUND:'}")
    if ended.returncode:
        print(ended.stderr[-6000:])
    return ended.returncode == 0


def main() -> None:
    """Fuzz the targets one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--input", type=Path, help="give the target this file, once")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given, options = parser.parse_known_args()
    if given.here:
        fuzz_here(given.target, options)
    if given.input:
        TARGETS[given.target or parser.error("--input needs a target")][0](given.input.read_bytes())
        return
    names = [given.target] if given.target else list(TARGETS)
    sound = [fuzz(name, 60 * given.minutes / len(names)) for name in names]
    sys.exit(0 if all(sound) else 1)


if __name__ == "__main__":
    main()
