"""`deploy/federation.py` and `deploy/credentials.py`, as the documents name them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy import federation as federation_script
from deploy.credentials import make_certificates
from deploy.processes import BIN, ROOT, Federation
from fedapp.rounds_file import read_rounds
from tests.conftest import PATIENCE, wait_for
from tests.support.federations import linux, needs_nginx, processes


def command(*arguments: str, temporary: Path, before: str = "") -> "subprocess.Popen[str]":
    """Start the script that the documents name; `before` is what a shell does first."""
    return subprocess.Popen(
        [
            "sh",
            "-c",
            f'{before} exec "$@"',
            "sh",
            BIN / "python",
            "deploy/federation.py",
            *arguments,
        ],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@needs_nginx
def test_one_command_starts_runs_and_stops_a_federation(tmp_path: Path) -> None:
    preset = tmp_path / "preset.toml"
    preset.write_text('dataset = "quadratic"\nnum-rounds = 3\n')
    results = f'run-name="run" results-dir="{tmp_path}"'
    script = command(
        str(preset),
        "-c",
        "num-rounds=1",
        "-c",
        results,
        "--secure",
        "--nodes",
        "1",
        temporary=tmp_path,
    )
    shown, _ = script.communicate(timeout=PATIENCE)
    assert script.returncode == 0, shown
    assert "round 1/1" in shown
    assert len(read_rounds(tmp_path / "run")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["preset.toml", "run"]
    wrong = command("-c", "lr", temporary=tmp_path)
    told, _ = wrong.communicate(timeout=PATIENCE)
    assert wrong.returncode == 2
    assert told.startswith("-c 'lr' is not understood")


@pytest.mark.slow
@linux
@needs_nginx
@pytest.mark.parametrize(
    ("number", "program", "count"),
    [(signal.SIGINT, "flwr-clientapp", 1), (signal.SIGTERM, "flower-superlink", 1)],
)
def test_nothing_is_left_when_the_command_is_ended(
    tmp_path: Path, number: signal.Signals, program: str, count: int
) -> None:
    """Neither processes nor keys, the moment it says so, whenever it comes and however impatient the user is."""
    script = command(
        "-c",
        f'dataset="quadratic" run-name="run" results-dir="{tmp_path}/results"',
        "--secure",
        "--nodes",
        "1",
        temporary=tmp_path,
        before="trap '' INT TERM;",  # as in the background of a script
    )
    home = str(tmp_path / "fedapp-federation-")
    wait_for(lambda: len(processes(program, home)) >= count, program)
    assert list(tmp_path.glob("fedapp-federation-*/credentials/superlink.key"))
    os.kill(script.pid, number)
    time.sleep(0.2)
    os.kill(script.pid, signal.SIGTERM)  # once more changes nothing
    assert script.stdout is not None
    shown = "".join(iter(script.stdout.readline, ""))
    assert not processes("", home)
    assert not list(tmp_path.glob("fedapp-federation-*"))
    assert script.wait(PATIENCE) == 130, shown
    assert shown.endswith("Interrupted; everything is stopped.\n")


def test_without_nginx_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("deploy.proxy.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["federation.py", "--secure"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert federation_script.main() == 2
    assert capsys.readouterr().err == (
        "A secure federation needs nginx in front of the SuperLink: install it "
        "(on Debian and Ubuntu `sudo apt-get install nginx`).\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_secure_federation_that_does_not_start_leaves_its_log_but_no_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Federation, "_superlink_options", lambda _: ["--no-such-option"])
    with (
        pytest.raises(RuntimeError, match="The superlink did not start"),
        Federation(tmp_path, secure=True),
    ):
        pass
    assert "--no-such-option" in (tmp_path / "superlink.log").read_text()
    assert not (tmp_path / "credentials").exists()


@pytest.mark.slow
def test_credentials_are_secret_and_never_replaced(tmp_path: Path) -> None:
    words = ["deploy/credentials.py", str(tmp_path / "c"), "--host", "localhost", "--nodes", "2"]
    once = subprocess.run([BIN / "python", *words], cwd=ROOT, capture_output=True, text=True)
    assert once.returncode == 0, once.stderr
    files = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert set(files) == {
        "ca.crt", "superlink.crt", "superlink.key", "node-0", "node-0.pub", "node-1", "node-1.pub",
    }  # fmt: skip
    for name in ("superlink.key", "node-0", "node-1"):
        assert (tmp_path / "c" / name).stat().st_mode & 0o777 == 0o600
    again = subprocess.run([BIN / "python", *words], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr == f"{tmp_path / 'c'} is not empty: choose another DIR.\n"
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    with pytest.raises(FileExistsError):
        make_certificates(tmp_path / "c", ["localhost"])
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
