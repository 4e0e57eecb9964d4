"""The ClientApp: from a message to the clients that this node hosts, and back."""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapp import budget, wire
from fedapp.compression import NotFiniteError
from fedapp.config import RunConfig, Value, parse_run_config
from fedapp.data import ImageFacts, Shard
from fedapp.errors import ConfigError
from fedapp.files import writable_directory
from fedapp.hosting import hosted_clients
from fedapp.problems import make_problem
from fedapp.problems.problem import Problem
from fedapp.refusals import Reason, Refusal
from fedapp.registry import Algorithm, find_algorithm, find_compressor, keeps_state
from fedapp.state import (
    CLIENT_STATE,
    NO_DIGEST,
    ContextStore,
    DirectoryStore,
    StateError,
    StateStore,
)
from fedapp.strategy import SENT_BESIDE, WHY
from fedapp.wire import Arrays, Invitation, Update

log = logging.getLogger("flwr")
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts and, if asked, whether it can train them; or log that it is refused."""
    refused = message.content.get("refused")
    if isinstance(refused, ConfigRecord):
        reason = wire.printable(str(refused.get("reason", "")))
        log.error("The server lets this node host no clients: %s", reason)
        return Message(RecordDict(), reply_to=message)
    try:
        config = _config(context)
        budget.limits_of(context.node_config)
        hosted = hosted_clients(context.node_config, config.num_clients)
        sent = ", ".join((*find_algorithm(config).client.sends, "buffers"))
        beside = WHY if config.dp.local else SENT_BESIDE
        log.info("%d clients here will send %s, %s; never raw data", len(hosted), sent, beside)
        hosting: dict[str, Any] = {"clients": list(hosted)}
        check = message.content.get("check")
        if isinstance(check, ConfigRecord):
            hosting |= _preflight(check, context, config, hosted)
    except ConfigError as error:
        log.error(str(error))
        hosting = {"error": str(error)}
    return Message(RecordDict({"hosting": ConfigRecord(hosting)}), reply_to=message)


def _preflight(
    check: ConfigRecord, context: Context, config: RunConfig, hosted: range
) -> dict[str, Any]:
    """Load this node's data; return how many samples there are, or what is wrong.

    A node whose data are a part of what the server knows loads them only if the server asks for it.
    """
    own_data = bool(context.node_config.get("data-dir"))
    if not own_data and not check.get("shared-data"):
        return {}
    found: dict[str, Any] = {"own-data": own_data}
    try:
        problem = make_problem(config, _shard(context, hosted, wire.facts_of(check)))
        samples = sum(problem.objective(client).num_examples for client in hosted)
        if not config.dp.clip:  # how much data clients have is theirs, too
            found["samples"] = samples
    except ConfigError as error:
        log.error(str(error))
        found["problem"] = str(error)
    except Exception as error:
        log.exception("This node's data cannot be loaded")
        found["problem"] = f"{type(error).__name__}: {error}"
    return found


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the invited clients one after the other; one that fails costs only itself."""
    invitation = wire.unpack_invitation(message.content)
    content = RecordDict()
    refusals: list[Refusal] = []
    try:
        config = _config(context)
        budget.limits_of(context.node_config).demand(config)
        algorithm = find_algorithm(config)
        hosted = hosted_clients(context.node_config, config.num_clients)
        problem = make_problem(config, _shard(context, hosted, invitation.facts))
        store = _store(config, context, invitation)
        if config.dp.local:
            _demand_one_private_vector(algorithm, problem)
        spent = budget.charge(context, config, [c for c in invitation.accepted if c in hosted])
    except ConfigError as error:
        log.error(str(error))
        failed = [Refusal(c, Reason.FAILED, str(error)) for c in invitation.accepted]
        wire.add_refusals(content, failed)
        return Message(content, reply_to=message)
    for client in invitation.accepted:
        try:
            if client not in hosted:
                raise ValueError(f"this node does not host client {client}")
            if client in spent:
                raise budget.BudgetError(spent[client])
            update = _train_client(client, invitation, config, algorithm, problem, store)
            wire.add_update(content, update)
        except (StateError, budget.BudgetError) as error:
            log.error("Client %d failed in round %d: %s", client, invitation.round, error)
            refusals.append(Refusal(client, Reason.FAILED, str(error)))
        except Exception as error:
            log.exception("Client %d failed in round %d", client, invitation.round)
            # What an exception says may be of the data, and has no noise.
            refusals.append(
                Refusal(client, Reason.FAILED, "it failed: see its node's log")
                if config.dp.local
                else Refusal(client, _reason_of(error), f"{type(error).__name__}: {error}")
            )
    wire.add_refusals(content, refusals)
    return Message(content, reply_to=message)


def _reason_of(error: Exception) -> Reason:
    return Reason.NOT_FINITE if isinstance(error, NotFiniteError) else Reason.FAILED


def _config(context: Context) -> RunConfig:
    # A node's own word on where it keeps its clients' states comes before the run's.
    own = {k: str(v) for k, v in context.node_config.items() if k == "state-dir"}
    return _parse(tuple(sorted((context.run_config | own).items())))


@lru_cache(maxsize=8)
def _parse(items: tuple[tuple[str, Value], ...]) -> RunConfig:
    return parse_run_config(dict(items))


def _shard(context: Context, hosted: range, facts: ImageFacts | None) -> Shard | None:
    directory = context.node_config.get("data-dir")
    if not directory:
        return None
    if not facts:
        raise ConfigError(
            "This run has no images, and this node has data of its own: take data-dir out of its config."
        )
    return Shard(str(directory), hosted, facts)


def _store(config: RunConfig, context: Context, invitation: Invitation) -> StateStore:
    if config.state_dir:
        place = writable_directory("state-dir", config.state_dir)
        return DirectoryStore(place / invitation.run, invitation.durable)
    # A simulation's server makes a directory for its nodes. One elsewhere cannot: a node makes none for it.
    offered = Path(invitation.state_dir)
    if offered.name == CLIENT_STATE and offered.is_absolute() and offered.is_dir():
        return DirectoryStore(offered / invitation.run, invitation.durable)
    return ContextStore(context.state)


def _demand_one_private_vector(algorithm: Algorithm, problem: Problem) -> None:
    """Refuse what would leave without noise, or more often than is counted; a server that is not honest does not."""
    if not algorithm.strategy.rule_is_a_mean or len(algorithm.client.sends) != 1:
        raise ConfigError(
            f"{algorithm.name}'s clients send more than one update with noise: choose an algorithm whose rule is a "
            "mean, or set dp.clip = 0."
        )
    if problem.initial()[1].size:
        raise ConfigError(
            'BatchNorm\'s statistics would be sent without noise: set norm = "group", or dp.clip = 0.'
        )


def _load(
    store: StateStore, client: int, tag: int, digest: int, config: RunConfig
) -> Arrays | None:
    """Return a client's state; if all states are to restart together, a damaged one is a lost one."""
    try:
        return store.load(client, tag, digest)
    except StateError as error:
        if config.on_lost_state != "reset":
            raise
        log.error("Client %d: %s", client, error)
        return None


def _train_client(
    client: int,
    invitation: Invitation,
    config: RunConfig,
    algorithm: Algorithm,
    problem: Problem,
    store: StateStore,
) -> Update:
    accepted = invitation.accepted[client]
    stateful = keeps_state(config)
    digest = invitation.digests.get(client, NO_DIGEST)
    remembered = _load(store, client, accepted, digest, config) if stateful and accepted else {}
    objective = problem.objective(client)
    device = objective.buffers.device
    state = {name: torch.tensor(a, device=device) for name, a in (remembered or {}).items()}
    compressor = find_compressor(config, problem.layout.tensors)
    trainee = algorithm.client(objective, config, client, state, compressor)
    received = invitation.shared | invitation.per_client.get(client, {})
    buffers = received.pop("buffers")
    arrays, examples, metrics = trainee.fit(
        [*received.values(), buffers], {"round": invitation.round, "names": " ".join(received)}
    )
    digest = NO_DIGEST
    if stateful:
        kept = {name: tensor.cpu().numpy() for name, tensor in trainee.state.items()}
        keep = {accepted, *invitation.kept.get(client, [])}
        digest = store.save(client, invitation.tag, kept, keep)
    return Update(
        client,
        dict(zip((*trainee.sends, "buffers"), arrays, strict=True)),
        examples,
        metrics["steps"],
        metrics["train-loss"],
        state_lost=remembered is None,
        # A digest tells of what was trained, which local noise is there to hide.
        state_digest=NO_DIGEST if config.dp.local else digest,
    )
