"""The clients' optimizers against torch.optim, clipping and warm-up by hand, and who refuses what."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.building import check
from fedapp.client import Client
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.models.networks import make_network
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import generator
from fedapp.registry import ALGORITHMS, keeps_state
from fedapp.tables import Value
from tests.conftest import RunInline, kebab
from tests.support.deaths import before_checkpoint, in_round, killed
from tests.support.runs import assert_same, run
from tests.support.steps import CLIENT, DIM, QUADRATIC, ROUNDS, client_of, config_of

OTHERS = ("momentum", "adam")
ALLOWING = [a.name for a in ALGORITHMS.values() if not a.needs.plain_sgd]
NETWORKS = [name for name in ALLOWING if ALGORITHMS[name].needs.network]
REFUSING = [name for name in ALGORITHMS if name not in ALLOWING]


def torch_optimizer(config: RunConfig, y: nn.Parameter) -> torch.optim.Optimizer:
    """The same optimizer, as torch has it."""
    keys, common = config.optimizer, dict[str, Any](lr=config.lr, weight_decay=config.weight_decay)
    if config.client_optimizer == "momentum":
        return torch.optim.SGD([y], momentum=keys.momentum, **common)
    return torch.optim.Adam([y], betas=(keys.beta1, keys.beta2), eps=keys.eps, **common)


class Oracle:
    """One client's local models with torch.optim, on the loss that the algorithm's paper writes down."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.problem = config, make_problem(config)
        self.y = nn.Parameter(torch.zeros(DIM, dtype=torch.float64))
        self.optimizer = torch_optimizer(config, self.y)
        self.h = torch.zeros(DIM, dtype=torch.float64)  # FedDyn's

    def loss(self, x: Tensor, noise: Tensor) -> Tensor:
        problem: Any = self.problem
        away, name = self.y - problem.b[CLIENT], self.config.algorithm
        loss: Tensor = away @ problem.A[CLIENT] @ away / 2 + noise @ self.y
        strength = {"fedprox": 0.4, "fedproxm": 0.4, "feddyn": 0.3}.get(name, 0.0)
        return loss + strength / 2 * ((self.y - x) ** 2).sum() - self.h @ self.y

    def train(self, x: Tensor, round_: int) -> Tensor:
        """Return u_i = x - y_i."""
        self.y.data.copy_(x)
        if self.config.optimizer.state == "reset":
            self.optimizer = torch_optimizer(self.config, self.y)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * (round_ / 3)  # two rounds of warm-up
        draws = generator(self.config.seed, "batches", round_, CLIENT).standard_normal((4, DIM))
        for draw in draws:
            self.optimizer.zero_grad()
            self.loss(x, torch.tensor(0.5 * draw)).backward()
            self.optimizer.step()
        u = x - self.y.detach()
        if self.config.algorithm == "feddyn":
            self.h += 0.3 * u
        return u.clone()


def received_in(name: str, x: Tensor) -> dict[str, Any]:
    block = {"block": np.zeros(1)} if name == "fedbcgd" else {}
    return {"x": x.numpy(), **block}


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("optimizer", OTHERS)
@pytest.mark.parametrize("name", [n for n in ALLOWING if n not in NETWORKS])
def test_local_steps_are_those_of_torch(name: str, optimizer: str, state: str) -> None:
    keys: dict[str, Value] = {"client_optimizer": optimizer, "optimizer__state": state}
    config = parse_run_config(kebab(QUADRATIC | keys | {"algorithm": name}))
    oracle, remembered, last = Oracle(config), dict[str, Tensor](), torch.zeros(DIM)
    for round_ in range(1, ROUNDS + 1):
        x = torch.linspace(-1, 2, DIM, dtype=torch.float64) * round_
        client = client_of(config, round_, remembered)
        sent = client.train(received_in(name, x), np.zeros(0))
        u = oracle.train(x, round_)
        expected = {"u": u, "p": -u, "D": u / client.lr, "d": u - last}
        (named,) = client.sends
        np.testing.assert_allclose(sent[named], expected[named].numpy(), rtol=1e-10, atol=1e-12)
        last = u
    kept = {name for name in remembered if name.startswith("optimizer.")}
    vectors = {"momentum": {"m"}, "adam": {"m", "v", "t"}}[optimizer]
    assert kept == ({f"optimizer.{v}" for v in vectors} if state == "keep" else set())


@pytest.mark.parametrize("optimizer", OTHERS)
def test_kept_state_matters(optimizer: str) -> None:
    """Otherwise the test above could not fail."""
    updates = []
    for state in ("reset", "keep"):
        keys: dict[str, Value] = {"client_optimizer": optimizer, "optimizer__state": state}
        config, remembered = parse_run_config(kebab(QUADRATIC | keys)), dict[str, Tensor]()
        for round_ in (1, 2):
            client = client_of(config, round_, remembered)
            update = client.train({"x": np.ones(DIM)}, np.zeros(0))["u"]
        updates.append(update)
    assert np.abs(updates[0] - updates[1]).max() > 1e-3


NETWORK: dict[str, Value] = {
    "model": "mlp-4-8", "dtype": "float64", "num_clients": 5, "clients_per_round": 2, "local_steps": 3,
    "batch_size": 12, "lr": 0.05, "weight_decay": 0.01, "moon__mu": 0.7, "moon__temperature": 0.4,
    "fedmlb__lambda1": 0.6, "fedmlb__lambda2": 1.3, "fedmlb__temperature": 1.5,
}  # fmt: skip


def network_loss(name: str, local: Any, received: Any, images: Tensor, labels: Tensor) -> Tensor:
    """MOON's and FedMLB's loss in a client's first round; FedAvg's for any other name."""
    if name == "moon":
        z, z_x = local.representation(images), received.representation(images).detach()
        towards = F.cosine_similarity(z, z_x) / 0.4
        # The last model is x, too.
        con = -torch.log(towards.exp() / (towards.exp() + towards.exp()))
        return F.cross_entropy(local.head(z), labels) + 0.7 * con.mean()
    total = F.cross_entropy(local(images), labels)
    if name == "fedmlb":
        main, count = torch.log_softmax(local(images) / 1.5, 1), len(local.levels) - 1
        for depth in range(1, count + 1):
            path = images
            for block in [*local.levels[:depth], *received.levels[depth:]]:
                path = block(path)
            p = torch.log_softmax(path / 1.5, 1)
            total = total + 0.6 / count * F.cross_entropy(path, labels)
            total = total + 1.3 / count * (p.exp() * (p - main)).sum(1).mean()
    return total


@pytest.mark.parametrize("optimizer", OTHERS)
@pytest.mark.parametrize("name", ["fedavg", "moon", "fedmlb"])
def test_a_network_s_steps_are_those_of_torch(name: str, optimizer: str) -> None:
    keys = NETWORK | {"client_optimizer": optimizer, "algorithm": name}
    config = parse_run_config(kebab(keys))
    problem: Any = make_problem(config)
    x = problem.initial()[0]
    update = client_of(config, 1, {}).train({"x": x}, np.zeros(0))["u"]
    local, received = (make_network("mlp-4-8", (1, 8, 8), 10, "batch", 0).double() for _ in "12")
    for network in (local, received):
        nn.utils.vector_to_parameters(torch.tensor(x), network.parameters())
    received.requires_grad_(False)
    flat: Any = list(local.parameters())
    optimizing = torch_optimizer(config, flat[0])
    optimizing.param_groups[0]["params"] = flat
    rng = generator(config.seed, "batches", 1, CLIENT)
    for batch in problem.objective(CLIENT).batches(config.local_work, rng):
        pixels = torch.tensor(problem.data.train_images[batch], dtype=torch.float64)
        images = (pixels - float(problem.data.mean[0])) / float(problem.data.std[0])
        labels = torch.tensor(problem.data.train_labels[batch])
        optimizing.zero_grad()
        network_loss(name, local, received, images, labels).backward()
        optimizing.step()
    y = nn.utils.parameters_to_vector(local.parameters()).detach().numpy()
    np.testing.assert_allclose(update, x - y, rtol=1e-5, atol=1e-7)
    assert np.abs(update).max() > 1e-2


def test_every_algorithm_that_looks_into_a_network_was_compared() -> None:
    """FedAvgM's server is the only difference between the others and these."""
    assert set(NETWORKS) == {"moon", "moonm", "fedmlb", "fedmlbm"}
    assert ALGORITHMS["moonm"].client is ALGORITHMS["moon"].client
    assert ALGORITHMS["fedmlbm"].client is ALGORITHMS["fedmlb"].client


# Who refuses what.


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("optimizer", OTHERS)
def test_an_algorithm_takes_other_optimizers_or_says_why_not(name: str, optimizer: str) -> None:
    check(config_of(name), make_problem(config_of(name)))
    config = config_of(name, client_optimizer=optimizer)
    if name not in REFUSING:
        return check(config, make_problem(config))
    with pytest.raises(ConfigError, match=r'^[^.]*\S: set client-optimizer = "sgd"\.$') as refused:
        check(config, make_problem(config))
    assert ALGORITHMS[name].needs.plain_sgd in str(refused.value)


def test_which_algorithms_refuse() -> None:
    """Each derives something from plain steps: see docs/training.md."""
    assert set(REFUSING) == {
        "scaffold", "fedgate", "fedcomgate", "feddc", "fedcet", "mimelite", "gradma", "gradma-w",
        "diana", "vrdiana", "fedbcgd-plus", "qsgd",
    }  # fmt: skip
    refusing = [name for name, a in ALGORITHMS.items() if a.needs.no_clipping]
    assert set(refusing) == {"mimelite", "vrdiana"}


def test_the_table_in_the_docs_is_what_algorithms_declare() -> None:
    text = (Path(__file__).parents[1] / "docs" / "training.md").read_text()
    rows = re.findall(
        r"^\| (`[a-z0-9`, -]+`) \| (yes|no)[^|]*\| (yes|no)[^|]*\|", text, re.MULTILINE
    )
    documented = {
        name: (optimizers == "yes", clipping == "yes")
        for names, optimizers, clipping in rows
        for name in re.findall(r"`([a-z0-9-]+)`", names)
    }
    declared = {
        a.name: (not a.needs.plain_sgd, not a.needs.no_clipping) for a in ALGORITHMS.values()
    }
    assert documented == declared


class PlainClient(Client):
    """Takes steps without asking for a direction."""

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend from x."""
        y = x.clone()
        for batch in self.batches():
            y.sub_(self.gradient(y, batch), alpha=self.lr)
        return {"u": x - y}


def test_a_client_that_ignores_the_optimizer_fails() -> None:
    for optimizer in ("sgd", "adam"):
        config = parse_run_config(kebab(QUADRATIC | {"client_optimizer": optimizer}))
        client = PlainClient(make_problem(config).objective(0), config, 0, {})
        if optimizer == "sgd":
            client.train({"x": np.ones(DIM)}, np.zeros(0))
        else:
            with pytest.raises(ConfigError, match=r'self\.direction.*set client-optimizer = "sgd"'):
                client.train({"x": np.ones(DIM)}, np.zeros(0))


# State.


def test_only_a_kept_state_makes_an_algorithm_stateful() -> None:
    keep: dict[str, Value] = {"optimizer__state": "keep"}
    cases: list[tuple[dict[str, Value], bool]] = [
        ({}, False),
        (keep, False),
        ({"client_optimizer": "adam"}, False),
        (keep | {"client_optimizer": "adam"}, True),
        (keep | {"client_optimizer": "momentum"}, True),
    ]
    for keys, kept in cases:
        assert keeps_state(parse_run_config(kebab(keys))) is kept


KEPT: dict[str, Value] = {
    "model": "mlp-10", "num-clients": 6, "clients-per-round": 3, "local-steps": 2, "lr": 0.01,
    "num-rounds": 6, "checkpoint-every": 2, "run-name": "run", "optimizer.state": "keep",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OTHERS)
def test_kept_state_survives_a_killed_server(optimizer: str, tmp_path: Path) -> None:
    keys = KEPT | {"client-optimizer": optimizer}
    whole = run(tmp_path / "whole", keys)
    for death in (in_round(3), before_checkpoint(4), in_round(6)):
        with pytest.MonkeyPatch.context() as patch:
            death(patch)
            killed(lambda: run(tmp_path / "killed", keys, resume=True))
    resumed = run(tmp_path / "killed", keys, resume=True)
    assert_same(whole, resumed)
    states = list(resumed.glob("client-state/*/*/*.safetensors"))
    expected = {"momentum": {"optimizer.m"}, "adam": {"optimizer.m", "optimizer.v", "optimizer.t"}}
    assert states
    assert all(set(load_file(path)) == expected[optimizer] for path in states)
    reset = run(tmp_path / "reset", keys | {"optimizer.state": "reset"})
    assert not (reset / "client-state").exists()
    assert (
        load_file(reset / "model.safetensors").keys()
        == load_file(whole / "model.safetensors").keys()
    )
    with pytest.raises(AssertionError):
        assert_same(whole, reset)


def test_kept_state_stays_on_the_node_when_updates_get_noise(run_inline: RunInline) -> None:
    """With noise at the clients their states are kept as without; nothing of them is sent."""
    keys: dict[str, Value] = {
        "client_optimizer": "adam", "optimizer__state": "keep", "dp__clip": 1.0, "dp__where": "client",
        "dp__noise_multiplier": 0.0, "dp__noise_from": "seed", "model": "mlp-10", "num_rounds": 3,
        "lr": 1e-4, "clients_per_round": 20,
    }  # fmt: skip
    private = load_file(run_inline(**keys) / "model.safetensors")
    plain = load_file(run_inline(**keys | {"dp__clip": 0.0}) / "model.safetensors")
    for name, tensor in private.items():  # no update is as long as 1, and there is no noise
        np.testing.assert_allclose(tensor, plain[name], rtol=1e-5, atol=1e-7)
