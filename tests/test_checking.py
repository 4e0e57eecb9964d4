"""`fedapp check`: one sentence for each problem, before anything is started."""

import shlex
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fedapp.checking import node_problems
from fedapp.cli import main
from fedapp.parsing import parse_run_config

APP = '[tool.flwr.app.config]\nalgorithm = "fedprox"\nlr = 0.1\nnum-clients = 4\nclients-per-round = 2\n'


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> "Check":
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return Check(capsys)


class Check:
    """Runs the command, and returns its exit code with what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, list[str], list[str]]:
        self._capsys.readouterr()
        code = main(["check", *words])
        shown = self._capsys.readouterr()
        return code, shown.err.splitlines(), shown.out.splitlines()


def test_a_good_config_says_what_was_checked_and_leaves_nothing(
    check: Check, tmp_path: Path
) -> None:
    code, problems, said = check("-c", "num-rounds=3", "-c", "run-name=mine")
    assert (code, problems) == (0, [])
    assert said[0].startswith("No problem found: 1 run; digits with mlp-200 (15,010 parameters, ")
    assert not (tmp_path / "fedapp-results").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-c", "datset=mnist", "-c", "lr=-1"], ["lr = -1 is not", "There is no config key 'datset' (did"]),
        (["-c", "algorithm=scafold"], ["algorithm = 'scafold' is not known (did you mean 'scaffold'?)"]),
        (["-c", "a b", "-c", "num-rounds=0"], ["-c 'a b' is not understood", "num-rounds = 0 is not"]),
        (["missing.toml"], ["The preset missing.toml cannot be read"]),
        (["-c", "dataset=nowhere"], ["dataset = 'nowhere' is not known"]),
        (["-c", "data-dir=nowhere", "-c", "dataset=mnist"], ["data-dir = "]),
        (["-c", "model=lenet6"], ["model = 'lenet6' is not known (did you mean 'lenet5'?)"]),
        (["-c", "model=vgg11"], ["vgg11"]),
        (["-c", "algorithm=fedcet"], ["FedCET needs all clients in every round"]),
        (["-c", "algorithm=gradma-s dataset=quadratic quadratic.dim=3"], ["GradMA's memory of m = 20"]),
        (["-c", "model=mlp-900000-900000"], ["of memory"]),
        (["-c", "results-dir=file/x"], ["/file/x' cannot be written: choose another"]),
        (["-c", f"results-dir={'x' * 300}", "-c", "run-name=a"], ["xxx' cannot be written: choose another"]),
        (["-c", f"resume=/{'x' * 300}"], ["xxx"]),
        (["-c", "resume=/nowhere"], ["resume = '/nowhere' holds no run"]),
        (["-c", "tracker=wandbb"], ["tracker = 'wandbb' is not allowed"]),
        (["--superlink", "nowhere"], ["The SuperLink nowhere does not list its nodes"]),
    ],
    ids=lambda value: (value[1] if len(value) > 1 else value[0])[:40],
)  # fmt: skip
def test_every_problem_is_one_sentence(check: Check, words: list[str], expected: list[str]) -> None:
    code, problems, said = check(*words)
    assert code == 2
    assert len(problems) == len(expected), problems
    for start, problem in zip(sorted(expected), sorted(problems), strict=True):
        assert start in problem
        assert problem.endswith(".")
    assert not any("No problem" in line for line in said)


def test_columns_of_a_table_are_checked(check: Check, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = ["age,height,price"] + [f"{k},{k * 2},{k * 3}" for k in range(50)]
    (tmp_path / "data" / "houses.csv").write_text("\n".join(rows) + "\n")
    keys = ["-c", "problem=tabular-regression", "-c", "dataset=houses", "-c", "data-dir=data"]
    keys += ["-c", "partition=iid", "-c", "num-clients=5", "-c", "model=mlp-4"]
    assert check(*keys, "-c", "target=price")[0] == 0
    code, problems, _ = check(*keys, "-c", "target=prize")
    assert code == 2
    assert "prize" in problems[0]
    assert "price" in problems[0]


def test_every_run_of_a_sweep_is_checked(check: Check, tmp_path: Path) -> None:
    (tmp_path / "try.toml").write_text(
        'dataset = "quadratic"\n[sweep]\nalgorithm = ["fedavg", "fedcet"]\nseed = [0, 1]\n'
    )
    code, problems, _ = check("try.toml")
    assert code == 2
    assert [problem.partition(":")[0] for problem in problems] == [
        "try-fedcet-seed-0", "try-fedcet-seed-1",
    ]  # fmt: skip
    assert check("try.toml", "-c", "clients-per-round=20")[0] == 0
    # `fedapp run`, which runs it, does not read what an app declares for `flwr run`.
    (tmp_path / "pyproject.toml").write_text(APP)
    assert check("try.toml", "-c", "clients-per-round=20")[:2] == (0, [])


def test_the_keys_that_an_app_declares_count_and_its_command_is_printed(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(APP)
    code, problems, said = check("-c", "lr=0.5", "-c", "algorithm=fedavg")
    assert (code, problems) == (0, [])
    command = shlex.split(said[-1].partition("Submit it with: ")[2])
    assert command[:-1] == ["flwr", "run", ".", "--stream", "--run-config"]
    assert parse_config_args([command[-1]]) == {"lr": 0.5, "algorithm": "fedavg"}
    (tmp_path / "pyproject.toml").write_text(APP + 'results-dir = ""\n')
    command = shlex.split(check("-c", "results-dir=here")[2][-1])
    assert parse_config_args([command[-1]]) == {"results-dir": str(tmp_path / "here")}
    (tmp_path / "pyproject.toml").write_text(APP)
    code, problems, _ = check("-c", "num-rounds=3")
    assert code == 2
    assert problems == [
        "`flwr run` refuses num-rounds, because pyproject.toml does not declare it: add it to [tool.flwr.app.config]."
    ]
    (tmp_path / "pyproject.toml").write_text(APP.replace("4", "1"))
    assert "clients-per-round = 2 is more than there are clients" in check()[1][0]


def test_a_key_that_makes_no_difference_is_not_a_problem(check: Check) -> None:
    code, problems, said = check("-c", "feddyn.alpha=0.5")
    assert (code, problems) == (0, [])
    assert said[0] == "Not used by this run: feddyn.alpha (algorithm is fedavg)."


def test_nodes_that_are_missing_are_named() -> None:
    config = parse_run_config(
        {"num-clients": 2, "clients-per-round": 2, "node-partitions": "7=0 8=1"}
    )
    assert list(node_problems([7, 8], [config], "deploy")) == []
    (missing,) = node_problems([7], [config], "deploy")
    assert "node-partitions names node 8, which is not online" in missing
    (many,) = node_problems([7, 8, 9], [config], "deploy")
    assert "3 nodes are online, and num-clients = 2 leaves some without a client" in many
    assert list(node_problems([], [config], "deploy")) == [
        "No SuperNode of deploy is online: start the nodes."
    ]
