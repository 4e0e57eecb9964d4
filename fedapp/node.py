"""What a node does with a message: from it to the clients that this node hosts, and back."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapp import wire
from fedapp.algorithm import Algorithm
from fedapp.answer import Answer
from fedapp.client import State
from fedapp.client_evaluation import evaluate_client
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.data import Facts, Shard
from fedapp.devices import GpuMemoryError, full_memory_as
from fedapp.doors import times_given
from fedapp.errors import ConfigError, MissingWeightsError, traceback_of
from fedapp.files import writable_directory
from fedapp.frozen import FrozenStore, LacksFrozenError, bring_up_to_date
from fedapp.hosting import hosted_clients
from fedapp.models.keys import VitKeys
from fedapp.models.outside import seeded
from fedapp.node_config import data_dir_of
from fedapp.parsing import parse_run_config
from fedapp.privacy import budget, node_privacy
from fedapp.privacy.node import SEE_LOG
from fedapp.problems import make_problem, rehearse
from fedapp.problems.protocols import FederatedProblem
from fedapp.randomness import torch_seed
from fedapp.received import ModelStore, ReceivedError, receive
from fedapp.refusals import Reason, Refusal
from fedapp.registry import find_algorithm, find_compressor, keeps_state
from fedapp.state import (
    CLIENT_STATE,
    NO_DIGEST,
    ContextStore,
    DirectoryStore,
    StateError,
    StateStore,
)
from fedapp.tables import Table, Value
from fedapp.vectorized import Asking, in_groups
from fedapp.wire import Arrays, EvaluationRequest, Invitation, Report, Update

log = logging.getLogger("flwr")
PATH = re.compile(r"(?<![\w/:.])/(?=[^\s/])(?:[^/\s'\",:;()]+/)*")  # the directories of a full path
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts and, if asked, whether it can train them; or log that it is refused."""
    if (reason := wire.rejection_of(message.content)) is not None:
        log.error("The server lets this node host no clients: %s", reason)
        return Message(RecordDict(), reply_to=message)
    try:
        config = _config(context)
        budget.limits_of(context.node_config).demand(config)
        hosted = hosted_clients(context.node_config, config.num_clients)
        sent = ", ".join((*find_algorithm(config.algorithm).client.sends, "buffers"))
        beside = node_privacy(config).sent_beside
        log.info("%d clients here will send %s, %s; never raw data", len(hosted), sent, beside)
        report = Report(hosted)
        if (check := wire.check_of(message.content)) is not None:
            report = _preflight(check, context, config, hosted)
        answer = wire.pack_report(report)
    except Exception as error:
        _log_failure(error)
        answer = wire.pack_report_error(_for_server(error, context))
    return Message(answer, reply_to=message)


def _preflight(check: dict[str, Any], context: Context, config: RunConfig, hosted: range) -> Report:
    """Load this node's data; report how many samples there are, or what is wrong.

    A node whose data are a part of what the server knows loads them only if the server asks for it.
    """
    asked, privacy = wire.wants_facts(check), node_privacy(config)
    report = Report(hosted, own_data=bool(data_dir_of(context.node_config)))
    if not report.own_data and not check.get("shared-data"):
        return report
    try:
        if asked:
            privacy.demand_openness()
        digest, facts = wire.frozen_digest_of(check), wire.facts_of(check)
        with _data_errors(config):
            problem = _node_problem(config, _shard(context, hosted, facts, asked), digest)
            _check_facts(context, config, problem, facts)
            try:
                bring_up_to_date(problem, digest, {}, FrozenStore(config, context.state))
            except LacksFrozenError:
                report = replace(report, lacks_frozen=True)
            samples = sum(problem.objective(client).num_examples for client in hosted)
            rehearse(config, problem, hosted[0], with_test_data=False)
        facts = problem.facts if asked else None
        return replace(report, samples=samples if privacy.shows_samples else None, facts=facts)
    except Exception as error:
        _log_failure(error)
        return replace(report, problem=_for_server(error, context))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the invited clients one after the other; one that fails costs only itself."""
    invitation = wire.unpack_invitation(message.content)
    content = RecordDict()
    refusals: list[Refusal] = []
    try:
        config = _config(context)
        budget.limits_of(context.node_config).demand(config)
        algorithm = find_algorithm(config.algorithm)
        hosted = hosted_clients(context.node_config, config.num_clients)
        problem = _current_problem(context, config, hosted, invitation)
        store = _store(config, context, invitation)
        invitation = receive(invitation, problem.layout.pieces, ModelStore(store, context))
        round_ = _Round(invitation, config, algorithm, problem, store)
        privacy = node_privacy(config)
        privacy.demand(algorithm, problem)
        spent = privacy.charge(context, problem, [c for c in invitation.accepted if c in hosted])
        train_client = round_.trainings(
            c for c in invitation.accepted if c in hosted and c not in spent
        )
    except Exception as error:
        return _all_refused(message, context, invitation.accepted, error)
    answer = Answer(content, invitation, problem.layout, config)
    for client in invitation.accepted:
        try:
            if client not in hosted:
                raise ConfigError(f"this node does not host client {client}", tell=True)
            if client in spent:
                raise budget.BudgetError(spent[client])
            with full_memory_as(GpuMemoryError):
                update = train_client[client]()
            answer.add(privacy.shown(update))
        except (StateError, budget.BudgetError) as error:
            log.error("Client %d failed in round %d: %s", client, invitation.round, error)
            refusals.append(Refusal(client, Reason.FAILED, str(error)))
        except Exception as error:
            log.exception("Client %d failed in round %d", client, invitation.round)
            refusals.append(privacy.refusal(client, error))
    answer.end()
    _add_refusals(content, context, refusals)
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Have the clients that are asked evaluate a model on their held-out samples, one after the other."""
    request = wire.unpack_evaluation_request(message.content)
    content = RecordDict()
    refusals: list[Refusal] = []
    try:
        config = _config(context)
        budget.limits_of(context.node_config).demand(config)
        privacy = node_privacy(config)
        privacy.demand_openness()
        hosted = hosted_clients(context.node_config, config.num_clients)
        problem = _current_problem(context, config, hosted, request)
    except Exception as error:
        return _all_refused(message, context, request.clients, error)
    for client in request.clients:
        try:
            if client not in hosted:
                raise ConfigError(f"this node does not host client {client}", tell=True)
            with full_memory_as(GpuMemoryError):
                objective = problem.objective(client)
                result = evaluate_client(objective, config, client, request.round, request.shared)
            wire.add_evaluation(content, result)
        except ConfigError as error:
            log.error("%s%s", error, traceback_of(error))
            refusals.append(privacy.refusal(client, error))
        except Exception as error:
            log.exception("Client %d failed to evaluate in round %d", client, request.round)
            refusals.append(privacy.refusal(client, error))
    _add_refusals(content, context, refusals)
    return Message(content, reply_to=message)


def _all_refused(
    message: Message, context: Context, clients: Iterable[int], error: Exception
) -> Message:
    """Return an answer that says why none of the clients did what they were asked."""
    asks = isinstance(error, LacksFrozenError | ReceivedError)
    reason = error.reason if asks else Reason.FAILED  # type: ignore[attr-defined]
    if reason is Reason.FAILED:
        _log_failure(error)
    else:
        log.info("This node asks the server for what it lacks: %s", error)
    content, told = RecordDict(), _for_server(error, context)
    _add_refusals(content, context, [Refusal(client, reason, told) for client in clients])
    return Message(content, reply_to=message)


def _add_refusals(content: RecordDict, context: Context, refusals: list[Refusal]) -> None:
    """Add to an answer why clients failed, without this node's paths."""
    told = [replace(refusal, text=_without_paths(refusal.text, context)) for refusal in refusals]
    wire.add_refusals(content, told)


def _log_failure(error: Exception) -> None:
    """Log on the node all that there is to say of an error."""
    if isinstance(error, ConfigError | ReceivedError):
        log.error("%s%s", error, traceback_of(error))
    else:
        log.exception("This node failed")


def _for_server(error: Exception, context: Context) -> str:
    """Return what the server is told of an error: nothing of the node's data, and no path."""
    known = isinstance(error, ConfigError | LacksFrozenError | ReceivedError)
    told = getattr(error, "told", None) or (str(error) if known else f"it failed: {SEE_LOG}")
    return _without_paths(told, context)


def _without_paths(text: str, context: Context) -> str:
    """Leave out the directories of a text's paths: where a node keeps its data tells of the node."""
    values = context.run_config | context.node_config
    own = [str(values.get(key, "")) for key in ("data-dir", "data-path", "state-dir")]
    places = {str(form) for v in own if v for form in (v, Path(v).expanduser(), Path(v).resolve())}
    for place in sorted(filter(os.path.isabs, places), key=len, reverse=True):
        text = text.replace(f"{place}/", "/").replace(place, Path(place).name)
    return PATH.sub("", text)


def _config(context: Context) -> RunConfig:
    # A node's own word on where it keeps its clients' states, and on what it computes, comes before the run's.
    own = {k: str(v) for k, v in context.node_config.items() if k in ("state-dir", "device")}
    return _parse(tuple(sorted((context.run_config | own).items())), times_given())


@lru_cache(maxsize=8)
def _parse(items: tuple[tuple[str, Value], ...], times: int) -> RunConfig:
    return parse_run_config(dict(items))


def _current_problem(
    context: Context, config: RunConfig, hosted: range, asked: Invitation | EvaluationRequest
) -> FederatedProblem:
    """Return the problem, with the frozen part that the server has."""
    with _data_errors(config):
        problem = _node_problem(config, _shard(context, hosted, asked.facts), asked.frozen)
        _check_facts(context, config, problem, asked.facts)
    store = FrozenStore(config, context.state)
    bring_up_to_date(problem, asked.frozen, asked.frozen_arrays, store)
    return problem


@contextmanager
def _data_errors(config: RunConfig) -> Iterator[None]:
    """Decide what the server is told of an error with the data, which may quote them."""
    try:
        yield
    except ConfigError as error:
        error.told = node_privacy(config).told(error)
        raise
    except Exception as error:
        log.exception("This node's data cannot be loaded")
        raise ConfigError(
            f"This node's data cannot be loaded: {type(error).__name__}.",
            node_privacy(config).told(error),
        ) from error


def _check_facts(
    context: Context, config: RunConfig, problem: FederatedProblem, facts: Facts | None
) -> None:
    """Raise ConfigError if a node without local data would train with other facts than the others."""
    if config.server_data or data_dir_of(context.node_config) or facts in (None, problem.facts):
        return
    advice = "take facts out of the config, or give this node a data-dir."
    raise ConfigError(
        f"The run's facts are {facts}, and those of dataset = {config.dataset!r} are {problem.facts}: {advice}",
        f"The run's facts are not those of dataset = {config.dataset!r} on this node: {advice}",
    )


def _node_problem(config: RunConfig, shard: Shard | None, digest: str) -> FederatedProblem:
    """Return the problem; where something is frozen, missing weights come from the server."""
    try:
        return make_problem(config, shard)
    except MissingWeightsError:
        if not digest:
            raise
        vit = config.table(VitKeys).model_copy(update={"weights": ""})
        return make_problem(config.model_copy(update={"vit": vit}), shard)


def _shard(
    context: Context, hosted: range, facts: Facts | None, to_agree: bool = False
) -> Shard | None:
    """Return this node's own data, if it has some; without facts only if they are still to be agreed on."""
    directory = data_dir_of(context.node_config)
    if not directory:
        return None
    if not facts and not to_agree:
        raise ConfigError(
            "This run has no images, and this node has data of its own: take data-dir out of its config.",
            tell=True,
        )
    return Shard(directory, hosted, facts)


def _store(config: RunConfig, context: Context, invitation: Invitation) -> StateStore:
    if config.state_dir:
        place = writable_directory("state-dir", config.state_dir)
        return DirectoryStore(place / invitation.run, invitation.durable)
    # A simulation's server makes a directory for its nodes. One elsewhere cannot: a node makes none for it.
    offered = Path(invitation.state_dir)
    if offered.name == CLIENT_STATE and offered.is_absolute() and offered.is_dir():
        return DirectoryStore(offered / invitation.run, invitation.durable)
    return ContextStore(context.state)


@dataclass(frozen=True)
class _Round:
    """What this node's clients train with in a round."""

    invitation: Invitation
    config: RunConfig
    algorithm: Algorithm
    problem: FederatedProblem
    store: StateStore

    @cached_property
    def compressor(self) -> Compressor | None:
        """What the clients compress with."""
        return find_compressor(self.config, self.problem.layout.pieces)

    @cached_property
    def options(self) -> Table:
        """The algorithm's own keys."""
        return self.config.table(self.algorithm.options)

    def trainings(self, clients: Iterable[int]) -> dict[int, Callable[[], Update]]:
        """Return for each client the function that trains it, if it was not trained with others before it."""
        trainings = {client: partial(self.train, client) for client in clients}
        if not self.config.vectorize:
            return {**trainings}
        return in_groups(trainings, self.config, self.problem)

    def train(self, client: int) -> Update:
        """Train one client; its state is saved before its update may leave."""
        invitation, stateful = self.invitation, keeps_state(self.config)
        remembered = self._load(client) if stateful else {}
        objective = self.problem.objective(client)
        if self.config.vectorize:
            objective = Asking(objective)
        device = objective.buffers.device
        state = {name: torch.tensor(a, device=device) for name, a in (remembered or {}).items()}
        trainee = self.algorithm.client(
            objective,
            self.config,
            client,
            state,
            self.compressor,
            invitation.round,
            self.options,
        )
        received = invitation.shared | invitation.per_client.get(client, {})
        buffers = received.pop("buffers")
        with self._seeded(client):
            update = trainee.train(received, buffers)
        digest = self._save(client, trainee.state) if stateful else NO_DIGEST
        return replace(update, state_lost=remembered is None, state_digest=digest)

    def _seeded(self, client: int) -> AbstractContextManager[None]:
        """Seed torch's generator for networks that draw random numbers, such as dropout's; those that vectorize do not."""
        if self.config.vectorize:
            return nullcontext()
        return seeded(torch_seed(self.config.seed, "forward", self.invitation.round, client))

    def _load(self, client: int) -> Arrays | None:
        """Return a client's state; None if it is lost, or damaged and all states are to restart together."""
        if not (accepted := self.invitation.accepted[client]):
            return {}
        try:
            return self.store.load(client, accepted, self.invitation.digests.get(client, NO_DIGEST))
        except StateError as error:
            if self.config.on_lost_state != "reset":
                raise
            log.error("Client %d: %s", client, error)
            return None

    def _save(self, client: int, state: State) -> int:
        """Save a client's state, and keep those that the server may ask for; return its digest."""
        invitation = self.invitation
        arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        keep = {invitation.accepted[client], *invitation.kept.get(client, [])}
        return self.store.save(client, invitation.tag, arrays, keep)
