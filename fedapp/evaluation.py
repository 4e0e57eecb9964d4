"""Evaluation on clients: which of them evaluate a round's model, and the figures that their metrics become.

Each client evaluates on its own held-out samples, and sends metrics and their number. For a metric such as the accuracy,
`rounds.jsonl` gets the mean weighted by samples (`client_accuracy_mean`), the mean over clients
(`client_accuracy_mean_by_client`), the mean over the worst tenth of the clients (`client_accuracy_worst10`) and the
standard deviation over clients (`client_accuracy_std`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import Message, MetricRecord

from fedapp import wire
from fedapp.config import RunConfig
from fedapp.data import Facts
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.exchange import Exchange
from fedapp.failures import FailureLog
from fedapp.figures import client_figure, find_figure
from fedapp.frozen import FrozenSender
from fedapp.hosting import Hosting
from fedapp.problems import kind_of
from fedapp.randomness import chosen, generator
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Arrays, Evaluation, EvaluationRequest

LARGEST_LOSS = 1e12  # a client's largest loss, up or down, that is believed
WORST = 10  # the worst clients are one in ten, at least one
Numbers = dict[str, float]


def demand_held_out(config: RunConfig, own_data: bool) -> None:
    """Raise ConfigError if clients are to evaluate and none of them can have samples for it.

    `own_data`: some nodes have their own, and may have test samples among them.
    """
    if config.eval_clients and not (config.test_share or own_data or is_outside(config.problem)):
        raise ConfigError(
            "eval-clients needs samples that clients do not train on: set test-share, for example to 0.2."
        )


class ClientEvaluation:
    """The evaluations of a run, one at a time."""

    def __init__(
        self, config: RunConfig, hosting: Hosting, failures: FailureLog, frozen: FrozenSender
    ) -> None:
        self.config, self._hosting, self._failures = config, hosting, failures
        self._frozen = frozen
        self._exchange = Exchange()

    def configure(self, round_: int, model: Arrays, facts: Facts | None) -> list[Message]:
        """Return one message for each node that hosts clients that evaluate; none if no evaluation is due."""
        self._exchange = Exchange()
        if not self.config.eval_clients or not self.config.evaluates_in(round_):
            return []
        hosts: dict[int, list[int]] = {}
        for client in self._cohort(round_):
            hosts.setdefault(self._hosting.node_of[client], []).append(client)
        shared, timeout = wire.record_of(model), self.config.round_timeout
        messages = []
        for node, clients in hosts.items():
            request = EvaluationRequest(round_, clients, {}, facts, self._frozen.digest)
            lacking = self._frozen.record_for(node, self._hosting.lacks_frozen(node))
            messages.append(self._exchange.ask_to_evaluate(node, request, shared, timeout, lacking))
        return messages

    def _cohort(self, round_: int) -> list[int]:
        """Draw the clients that evaluate, in the order of their ids."""
        rng = generator(self.config.seed, "eval cohort", round_)
        return chosen(rng, self._hosting.clients, self.config.eval_cohort)

    def aggregate(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the figures of an evaluation; None if nobody was asked."""
        if not self._exchange.sent:
            return None
        answer = self._exchange.read_evaluations(replies)
        credible, refused = self._admit(answer.results)
        refusals = answer.refusals + refused
        self._failures.log(refusals, self._hosting.node_of)
        self._frozen.note(refusals, self._hosting.node_of)
        return MetricRecord(
            {
                **figures_of_clients(credible, self._expected_names()),
                "eval_clients": len(credible),
                "eval_failures": len(refusals),
                "eval_uplink_bytes": answer.uplink_bytes,
                "eval_downlink_bytes": self._exchange.downlink_bytes,
            }
        )

    def _admit(self, results: Sequence[Evaluation]) -> tuple[list[Evaluation], list[Refusal]]:
        """Return the evaluations that count, in the order of client ids, and why others do not."""
        admitted, refusals = [], []
        for result in sorted(results, key=lambda result: result.client):
            if not self.config.eval_finetune:  # nobody asked for it
                result = replace(result, finetuned={})
            if text := self._why_not(result):
                refusals.append(Refusal(result.client, Reason.NOT_CREDIBLE, text))
            else:
                admitted.append(result)
        return admitted, refusals

    def _why_not(self, result: Evaluation) -> str:
        """Return why an evaluation cannot be believed; an empty string if it can."""
        most = self.config.max_examples
        if most and result.num_examples > most:
            return f"it claims more examples than max-examples = {most}"
        for name, value in (*result.metrics.items(), *result.finetuned.items()):
            if find_figure(client_figure(name, "mean")).unit == "fraction" and not 0 <= value <= 1:
                return f"its {name} is not between 0 and 1"
            if name == "loss" and abs(value) > LARGEST_LOSS:
                return f"its loss is not between -{LARGEST_LOSS:g} and {LARGEST_LOSS:g}"
        return ""

    def _expected_names(self) -> set[str]:
        """Return the metrics that the problem is known to have."""
        return {name.removeprefix("test_") for name in kind_of(self.config).metrics(self.config)}


def figures_of_clients(results: Sequence[Evaluation], expected: Iterable[str] = ()) -> Numbers:
    """Return the figures of clients' metrics.

    A metric counts if it is expected, or if more than half of the clients sent it: one client alone cannot add
    figures to a run. Its figures are those of the clients that sent it, since not every metric is defined on every
    client's samples.
    """
    figures: Numbers = {}
    for how in ("metrics", "finetuned"):
        sent: list[tuple[int, Mapping[str, float]]] = [
            (result.num_examples, getattr(result, how)) for result in results
        ]
        counts = Counter(name for _, metrics in sent for name in metrics)
        for name in sorted(counts):
            if name in expected or 2 * counts[name] > len(results):
                pairs = [(count, metrics[name]) for count, metrics in sent if name in metrics]
                figures |= _summary(name, pairs, finetuned=how == "finetuned")
    return figures


def _summary(name: str, sent: Sequence[tuple[int, float]], finetuned: bool) -> Numbers:
    """Return the figures of one metric, from each client's number of samples and value."""
    weights, values = (np.array(column, np.float64) for column in zip(*sent, strict=True))
    lower = find_figure(client_figure(name, "mean")).better == "lower"
    order = np.sort(values)[::-1] if lower else np.sort(values)
    worst = order[: -(-len(values) // WORST)]
    numbers = {
        "mean": (weights * values).sum() / weights.sum(),
        "mean_by_client": values.mean(),
        "worst10": worst.mean(),
        "std": values.std(),
    }
    return {client_figure(name, k, finetuned): float(number) for k, number in numbers.items()}
