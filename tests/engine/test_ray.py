"""RayGrid: the same bits as inline, on any number of workers, and what happens when they die."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from deploy.processes import BIN, ROOT, free_port
from fedapp.building import make_strategy
from fedapp.cli import main
from fedapp.config import RunConfig
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.engine.transfer import Inbox, Outbox
from fedapp.errors import ConfigError, RunError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from tests.conftest import PATIENCE, RunInline, default_sigint, kebab, wait_for
from tests.support.runs import assert_same
from tests.support.workers import run_on

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def test_a_cluster_that_is_not_there_is_told_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first test here: after it, this process has a Ray of its own."""
    assert not ray.is_initialized()
    assert main(["run", "--address", "127.0.0.1:1", "--out", str(tmp_path)]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("No Ray cluster answers at --address 127.0.0.1:1 (")
    assert len(errors.splitlines()) == 1


CASES: list[dict[str, Value]] = [
    {"algorithm": "fedavg", "num_rounds": 6, "device": "auto"},
    {"algorithm": "mifam", "num_rounds": 12},
    {"algorithm": "scaffold", "num_clients": 40, "clients_per_round": 36, "num_rounds": 3},
    {"algorithm": "scaffold", "model": "lenet5", "precision": "bf16", "num_rounds": 2},
    {"algorithm": "fedcomgate", "num_rounds": 12},
    {"algorithm": "fedcomgate", "fedcomgate__option": 1, "clients_per_round": 20, "num_rounds": 4},
    {"algorithm": "scaffold", "compressor": "topk", "error_feedback": True, "num_rounds": 6},
    {"algorithm": "fedadam", "dataset": "quadratic", "num_rounds": 6},
    {"model": "resnet20", "num_rounds": 2, "local_steps": 1},
    {"local_epochs": 1, "partition": "dirichlet", "partition_alpha": 0.1, "num_rounds": 4},
    {
        "algorithm": "scaffold",
        "num_rounds": 4,
        "eval_clients": "0.4",
        "test_share": 0.2,
        "eval_finetune": 2,
    },
    {
        "num_rounds": 3,
        "eval_clients": "all",
        "test_share": 0.2,
        "server_data": False,
        "eval_every": 2,
    },
    {
        "client_optimizer": "adam",
        "lr": 0.01,
        "clip_gradient": 0.5,
        "warmup_rounds": 2,
        "num_rounds": 4,
    },
    {"model": "lenet5", "augmentation": "crop-flip", "num_rounds": 2},
    {"algorithm": "scaffold", "dataset": "diabetes", "model": "mlp-8", "lr": 0.05, "num_rounds": 4},
    {"algorithm": "fedcomgate", "dataset": "speeches", "model": "bag-8", "num_rounds": 4},
    {
        "algorithm": "feddyn",
        "dataset": "shakespeare",
        "model": "gru-8",
        "num_rounds": 2,
        "local_steps": 2,
    },
    {"dataset": "shakespeare", "model": "transformer-8", "num_rounds": 2, "local_steps": 2},
]


@pytest.mark.parametrize("keys", CASES)
def test_two_workers_give_the_same_bits_as_inline(
    keys: dict[str, Value], workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    """Run after run on one set of workers."""
    assert_same(run_on(workers, tmp_path / "ray", **keys), run_inline(**keys))


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_optimizers_that_are_kept_survive_a_resume(
    optimizer: str, workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    keys: dict[str, Value] = {
        "client_optimizer": optimizer, "optimizer__state": "keep", "lr": 0.01, "num_clients": 6,
        "run_name": "run", "checkpoint_every": 2,
    }  # fmt: skip
    run_on(workers, tmp_path / "ray", **keys, num_rounds=3)
    resumed = run_on(workers, tmp_path / "ray", **keys, num_rounds=6, resume=True)
    assert_same(resumed, run_inline(**keys, num_rounds=6))


def rounds_on(workers: RayWorkers, config: RunConfig) -> tuple[Any, Iterator[dict[str, Any]]]:
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = RayGrid(workers, config.flat())
    return grid, run_rounds(grid, strategy, problem, config)


def kill(workers: RayWorkers, index: int) -> None:
    _, pid = ray.get(workers.actors[index].whereabouts.remote())
    os.kill(pid, signal.SIGKILL)


def test_a_worker_killed_between_rounds_costs_its_clients_one_round(
    workers: RayWorkers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """tests/engine/test_ray_faults.py kills one in the middle of a round, and without a state-dir."""
    keys: dict[str, Value] = {"algorithm": "mifam", "num_rounds": 6, "clients_per_round": 20}
    keys["state_dir"] = str(tmp_path / "state")
    config = parse_run_config(kebab(keys | {"round_retries": 0}))
    with caplog.at_level("WARNING", logger="flwr"):
        _, rounds = rounds_on(workers, config)
        records = [next(rounds), next(rounds)]
        kill(workers, 1)
        records += rounds
    failures = [record["failures"] for record in records]
    assert sum(failures) == max(failures), "the worker's clients fail once"
    assert 0 < sum(failures) < 20
    assert [r["clients"] + r["failures"] for r in records] == [20] * 6
    assert sum("has died and is started again" in m for m in caplog.messages) == 1
    assert not any("CLIENT STATE IS LOST" in m for m in caplog.messages)


def test_clients_that_are_not_done_in_time_have_failed(
    workers: RayWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Value] = {"algorithm": "scaffold", "num_rounds": 1, "local_steps": 300}
    config = parse_run_config(kebab(keys | {"round_timeout": 0.01, "round_retries": 0}))
    grid, rounds = rounds_on(workers, config)
    with caplog.at_level("WARNING", logger="flwr"), pytest.raises(RunError):
        list(rounds)
    assert any("no answer in time" in m for m in caplog.messages)
    while grid._flying:
        grid._collect(None)
    assert not grid._home, "a state that comes too late is not where its client belongs"


def test_a_reply_that_finds_no_room_in_shared_memory_is_sent_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    outbox, inbox = Outbox(tmp_path), Inbox()
    where = outbox.write([b"a", b"bc"])
    assert isinstance(where, tuple)
    assert inbox.read(*where)[:3].tobytes() == b"abc"
    monkeypatch.setattr(os, "posix_fallocate", full)
    long = outbox.write([b"a", bytes(100)])
    assert not isinstance(long, tuple)
    assert long.tobytes() == b"a" + bytes(100)
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    assert outbox.write([b"xyz"]) == where, "what fits is still written there"


def test_push_and_pull(workers: RayWorkers) -> None:
    """The rest of Flower's Grid interface."""
    from flwr.app import RecordDict

    grid = RayGrid(workers, parse_run_config({}).flat())
    message = grid.create_message(RecordDict(), "query", 1, "")
    identities = list(grid.push_messages([message]))
    replies = wait_for(lambda: list(grid.pull_messages(identities)), "a reply")
    assert replies[0].content["hosting"]["range"] == [0, 20, 1]
    assert not list(grid.pull_messages(identities))


def marked_processes(mark: str) -> list[int]:
    """Return the processes that inherited a mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment = (process / "environ").read_bytes() if process.name.isdigit() else b""
            if mark.encode() in environment and (process / "cmdline").read_bytes():  # no zombie
                found.append(int(process.name))
        except OSError:
            continue
    return found


RAY, INLINE = ["--workers", "1"], ["--engine", "inline"]


@pytest.mark.parametrize(
    ("engine", "number"),
    [(RAY, signal.SIGINT), (RAY, signal.SIGTERM), (INLINE, signal.SIGTERM)],
    ids=["Ray, Ctrl-C", "Ray, SIGTERM", "inline, SIGTERM"],
)
def test_ctrl_c_ends_everything_and_leaves_whole_lines(
    engine: list[str], number: int, tmp_path: Path
) -> None:
    mark = f"FEDAPP_TEST_MARK={tmp_path}"
    with default_sigint():
        started = subprocess.Popen(
            [
                sys.executable, ROOT / "run_simulation.py", *engine, "--out", tmp_path,
                "-c", "num-rounds=1000000 run-name=long algorithm=scaffold",
            ],
            cwd=tmp_path, env=os.environ | {"FEDAPP_TEST_MARK": str(tmp_path)}, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    path = tmp_path / "long" / "rounds.jsonl"

    def is_running() -> bool:
        assert started.poll() is None, started.communicate()
        return path.exists() and path.read_text().count("\n") >= 5

    wait_for(is_running, "five rounds")
    assert marked_processes(mark)
    if number == signal.SIGINT:
        os.killpg(started.pid, number)  # as a terminal does
    else:
        started.send_signal(number)
    _, errors = started.communicate(timeout=PATIENCE)
    assert started.returncode == 130
    said = re.search(
        r"^Interrupted after round (\d+) of 1000000, with a checkpoint; continue with: ",
        errors,
        re.M,
    )
    assert said, errors
    assert "Traceback" not in errors
    text = path.read_text()
    assert text.endswith("\n")
    assert [json.loads(line)["round"] for line in text.splitlines()][:3] == [1, 2, 3]
    assert (tmp_path / "long" / "model.safetensors").exists()
    checkpoint = tmp_path / "long" / "checkpoint" / f"round-{int(said[1]):07d}.safetensors"
    assert checkpoint.is_file()
    assert text.count("\n") == int(said[1])
    wait_for(lambda: not marked_processes(mark), "the end of all that was started")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A Ray cluster of two node processes, with one CPU each, on loopback."""
    address = f"127.0.0.1:{free_port()}"
    place = ["--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--block"]
    head = ["--head", "--port", address.split(":")[1], "--include-dashboard", "false"]
    # A separate directory, because Ray notes the latest cluster there, and a short one, because of its sockets.
    temporary = tempfile.mkdtemp(prefix="ray-")
    nodes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        command = [str(BIN / "ray"), "start", *arguments, *place]
        path = tmp_path / f"ray-{len(nodes)}.log"
        with path.open("w") as log:
            environment = os.environ | {"RAY_TMPDIR": temporary, "PYTHONUNBUFFERED": "1"}
            nodes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            )

        def has_started() -> bool:
            assert nodes[-1].poll() is None, path.read_text()
            return "Ray runtime started" in path.read_text()

        wait_for(has_started, "a Ray node")

    try:
        start(*head)
        start("--address", address)
        yield address
    finally:
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            node.wait(PATIENCE)
        shutil.rmtree(temporary, ignore_errors=True)


def test_a_cluster_of_two_nodes(cluster: str, run_inline: RunInline, tmp_path: Path) -> None:
    ray.init(cluster, log_to_driver=False)
    wait_for(lambda: ray.cluster_resources().get("CPU") == 2, "two nodes")
    ray.shutdown()
    with RayWorkers(2, address=cluster) as workers:
        places = ray.get([actor.whereabouts.remote() for actor in workers.actors])
        run = run_on(workers, tmp_path / "cluster", algorithm="mifam", num_rounds=6)
    assert len({node for node, _ in places}) == 2
    assert_same(run, run_inline(algorithm="mifam", num_rounds=6))


def test_too_many_workers_are_told(workers: RayWorkers) -> None:
    with pytest.raises(ConfigError, match="more than the"):
        RayWorkers(1000)
    assert ray.is_initialized()
