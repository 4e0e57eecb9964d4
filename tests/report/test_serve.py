"""`fedapp report --serve`: what it gives, to whom, and what it gives to nobody."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedapp.errors import ConfigError
from fedapp.manifest import LOCK
from fedapp.report import serve
from fedapp.report.runs import Run, read_run
from fedapp.report.serve import RunCache, make_server
from tests.support.commands import Fedapp
from tests.support.reports import HOSTILE, write_run, write_three


class Client:
    """Asks a server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, path: str = "/", method: str = "GET", **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in named)
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body


@contextmanager
def serving(directory: Path) -> Iterator[Client]:
    with make_server([directory], HOSTILE, 0.9, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Client(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "FRESH", 0.0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    write_three(tmp_path / "runs")
    (tmp_path / "runs" / "secret.txt").write_text("secret")
    with serving(tmp_path / "runs") as asked:
        yield asked


def test_the_page_and_its_data_are_served(client: Client) -> None:
    answer, body = client.ask("/")
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    page = body.decode()
    assert "connect-src 'self'" in page
    assert "<img" not in page, "what a title holds stays text"
    answer, body = client.ask("/data")
    assert [run["name"] for run in json.loads(body)["runs"]] == ["fedavg", "fedpaq", "scaffold"]
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert client.ask("/data", "HEAD")[1] == b""


def test_data_are_sent_again_only_when_they_are_new(client: Client, tmp_path: Path) -> None:
    tag = client.ask("/data")[0].getheader("ETag") or ""
    answer, body = client.ask("/data", If_None_Match=tag)
    assert (answer.status, body) == (304, b"")
    with (tmp_path / "runs" / "fedavg" / "rounds.jsonl").open("a") as lines:
        lines.write(json.dumps({"round": 21, "test_accuracy": 0.97}) + "\n")
    answer, body = client.ask("/data", If_None_Match=tag)
    assert answer.status == 200
    assert json.loads(body)["runs"][0]["columns"]["test_accuracy"][-1] == 0.97


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_a_page_of_another_name_reads_nothing(client: Client, host: str) -> None:
    for path in ("/", "/data"):
        answer, body = client.ask(path, Host=host.format(port=client.port))
        assert answer.status == 403
        assert b"fedavg" not in body
    assert client.ask("/", Host=f"localhost:{client.port}")[0].status == 200


def test_other_sites_are_not_given_the_data(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        assert client.ask("/data", Sec_Fetch_Site=site)[0].status == 403
    assert client.ask("/data", Sec_Fetch_Site="same-origin")[0].status == 200
    answer, _ = client.ask("/")
    assert answer.getheader("X-Frame-Options") == "DENY"
    assert answer.getheader("Access-Control-Allow-Origin") is None


@example(["", "data"])
@given(
    st.lists(
        st.sampled_from(["..", ".", "secret.txt", "data", "fedavg", "%2e%2e", "", "etc"]),
        min_size=1,
    )
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_leads_to_a_file(client: Client, parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    answer, body = client.ask(path)
    as_read = "/" + path.lstrip("/")  # http.server takes several slashes at the front as one
    assert answer.status == (200 if as_read in ("/", "/data") else 404)
    assert b"secret" not in body


def test_nothing_can_be_written(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert client.ask("/data", method)[0].status == 501


def test_only_this_machine_can_ask(tmp_path: Path) -> None:
    with make_server([tmp_path], "", 0.9, 0) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match="choose another with --port"):
            make_server([tmp_path], "", 0.9, server.server_address[1])


def test_runs_may_come_later(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        assert json.loads(client.ask("/data")[1])["runs"] == []
        write_run(tmp_path, "new", {"test_accuracy": [0.5]})
        assert len(json.loads(client.ask("/data")[1])["runs"]) == 1


def test_a_directory_without_a_run_does_not_hide_another(tmp_path: Path) -> None:
    write_run(tmp_path / "old", "a", {"test_accuracy": [0.5]})
    (tmp_path / "new").mkdir()
    cache = RunCache([tmp_path / "new", tmp_path / "old"])
    assert [run.name for run in cache.load()] == ["a"]
    write_run(tmp_path / "new", "b", {"test_accuracy": [0.5]})
    assert [run.name for run in cache.load()] == ["b", "a"]


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_three(tmp_path)
    read: list[str] = []

    def reading(place: Path) -> Run:
        read.append(place.name)
        return read_run(place)

    monkeypatch.setattr(serve, "read_run", reading)
    cache = RunCache([tmp_path])
    assert len(cache.load()) == 3
    with (tmp_path / "fedpaq" / "rounds.jsonl").open("a") as lines:
        lines.write(json.dumps({"round": 21}) + "\n")
    assert len(cache.load()[1].rounds) == 21
    assert read == ["fedavg", "fedpaq", "scaffold", "fedpaq"]


def test_a_damaged_run_is_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_three(tmp_path)
    (tmp_path / "fedpaq" / "rounds.jsonl").write_text("nonsense\n")
    cache = RunCache([tmp_path])
    for _ in range(3):
        assert [run.name for run in cache.load()] == ["fedavg", "scaffold"]
    assert caplog.text.count("Left out") == 1


def test_a_run_that_ends_without_a_word_is_no_longer_running(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {"test_accuracy": [0.5]}, num_rounds=2)
    cache = RunCache([tmp_path])
    with FileLock(tmp_path / "a" / LOCK):
        assert cache.load()[0].status.state == "running"
    assert cache.load()[0].status.state == "interrupted"


def test_a_directory_that_is_not_there_is_one_sentence(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", tmp_path / "none", "--serve") == 2
    assert "is not a directory" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command("report", tmp_path, "--serve", "--port", port) == 2
    assert f"Port {port} cannot be used" in capsys.readouterr().err
