"""A round with real answers: of the real ClientApp, as bytes, as they arrive; and nodes that claim what a test says."""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedapp import client_app, wire
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value
from tests.conftest import kebab

NODES, CLIENTS = 3, 6
KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "num_clients": CLIENTS,
    "clients_per_round": CLIENTS,
    "num_rounds": 5,
    "lr": 0.1,
    "max_examples": 10**6,
}
NASTY = "\x1b[2J\x1b]0;owned\x07line\r\nnext\u202e\x00" + "x" * 10**6


@dataclass
class Round:
    """The second round of a run, before its answers are used."""

    strategy: FederatedStrategy[Any]
    sent: list[Message]
    answers: list[bytes]

    def replies(self) -> list[Message]:
        """Return the honest answers, fresh."""
        contents = [recorddict_from_proto(ProtoRecordDict.FromString(a)) for a in self.answers]
        return [Message(c, reply_to=s) for c, s in zip(contents, self.sent, strict=True)]

    def use(self, replies: list[Message]) -> "Outcome":
        """Aggregate answers, with a strategy that has seen none yet."""
        strategy = copy.deepcopy(self.strategy)
        updates: list[wire.Update] = []
        aggregate = strategy.aggregate

        def watched(given: Any) -> None:
            updates.extend(given)
            aggregate(given)

        vars(strategy)["aggregate"] = watched
        arrays, metrics = strategy.aggregate_train(2, replies)
        assert arrays is not None
        return Outcome({u.client: u for u in updates}, strategy.saved(), dict(metrics))


@dataclass
class Outcome:
    """What came of a round."""

    updates: dict[int, wire.Update]
    state: dict[str, Any]
    metrics: dict[str, Any]


def play(keys: dict[str, Value], nodes: int = NODES) -> Round:
    """Play a round, and ask for the next."""
    config = parse_run_config(kebab(KEYS | keys))
    grid = InlineGrid(client_app.app, config.flat(), nodes)
    strategy = make_strategy(config, make_problem(config))
    for round_ in (1, 2):
        how = ConfigRecord()
        sent = list(strategy.configure_train(round_, strategy.arrays(), how, grid))
        replies = {
            r.metadata.reply_to_message_id: r for r in grid.send_and_receive(sent, timeout=None)
        }
        ordered = [replies[m.metadata.message_id] for m in sent]
        if round_ == 1:
            strategy.aggregate_train(1, ordered)
    answers = [recorddict_to_proto(r.content).SerializeToString() for r in ordered]
    return Round(strategy, sent, answers)


CASES: dict[str, dict[str, Value]] = {
    "fedavg": {"algorithm": "fedavg"},
    "examples": {"algorithm": "fedavg", "weighting": "examples", "dataset": "digits", "model": "logreg"},
    "median": {"algorithm": "fedavgm", "aggregation": "median"},
    "fedadam float64": {"algorithm": "fedadam", "dtype": "float64"},
    "scaffold": {"algorithm": "scaffold"},
    "mifam": {"algorithm": "mifam"},
    "gradma": {"algorithm": "gradma"},
    "fedbcgd": {"algorithm": "fedbcgd", "dataset": "digits", "model": "mlp-8"},
    "fedpaq qsgd": {"algorithm": "fedpaq"},
    "fedcomgate uniform": {"algorithm": "fedcomgate"},
    "diana": {"algorithm": "diana", "local_steps": 1},
    "topk": {"algorithm": "fedavg", "compressor": "topk", "error_feedback": True},
    "randk": {"algorithm": "feddyn", "compressor": "randk", "randk__values": "uniform"},
    "float16": {"algorithm": "feddc", "compressor": "float16"},
}  # fmt: skip


@cache
def played(case: str) -> Round:
    return play(CASES[case])


class Claims(InlineGrid):
    """Nodes that claim the clients that the test says."""

    def __init__(self, **claims: Any) -> None:
        super().__init__(client_app.app, {}, nodes=len(claims))
        self.claims = dict(enumerate(claims.values(), 1))

    def serve(self, message: Message) -> Message:
        claim = self.claims[message.metadata.dst_node_id]
        return Message(RecordDict({"hosting": ConfigRecord(claim)}), reply_to=message)


@cache
def without(case: str, absent: frozenset[int]) -> Outcome:
    """Return what comes of the round if some clients are not in it."""
    replies = played(case).replies()
    for reply in replies:
        for client in absent:
            reply.content.pop(f"client.{client}", None)
    return played(case).use(replies)


def clients_of(message: Message) -> list[int]:
    return [c for c in range(CLIENTS) if f"client.{c}" in message.content]
