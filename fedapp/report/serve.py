"""The report as a page that refreshes while runs work, served to this machine alone."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from fedapp.errors import ConfigError
from fedapp.report.page import report_data, report_page
from fedapp.report.runs import Run, load_runs, read_run, with_equal_keys
from fedapp.report.status import status_of

LOOPBACK = "127.0.0.1"
FRESH = 1.0  # seconds for which what was read is not read again
FILES = ("config.json", "rounds.jsonl")


class RunCache:
    """Runs on disk; only those whose files have changed are read again."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self.directories = directories
        self._read: dict[Path, tuple[object, Run | None]] = {}  # None: damaged

    def load(self) -> list[Run]:
        """Return the runs as they are now; none while there are none yet."""
        found: list[Run] = []
        for directory in self.directories:
            with suppress(ConfigError):
                found += load_runs([directory], self._one)
        return with_equal_keys(found)

    def _one(self, directory: Path) -> Run:
        facts = [(directory / name).stat() for name in FILES]
        mark = [(fact.st_mtime_ns, fact.st_size, fact.st_ino) for fact in facts]
        before, run = self._read.get(directory, (None, None))
        if before != mark:
            self._read[directory] = mark, None
            run = read_run(directory)
            self._read[directory] = mark, run
        if run is None:  # `load_runs` has warned of it once, and leaves out what is not there
            raise FileNotFoundError(directory)
        # A run ends without a change of its files.
        return replace(run, status=status_of(directory, run.config, run.rounds))


class Report:
    """What is served: the page and its data, made again when they are asked for and no longer fresh."""

    def __init__(self, load: Callable[[], list[Run]], title: str, target: float) -> None:
        self._load = load
        self._title = title
        self._target = target
        self._lock = threading.Lock()
        self._made = -FRESH
        self._runs: list[Run] | None = None
        self._data = ""

    def data(self) -> str:
        """Return the data as JSON; the same text as long as the runs are the same."""
        with self._lock:
            if time.monotonic() - self._made >= FRESH:
                runs = self._load()
                if runs != self._runs:
                    written = time.strftime("%Y-%m-%d %H:%M:%S")
                    self._runs, self._data = runs, report_data(runs, self._target, written)
                self._made = time.monotonic()
            return self._data

    def page(self) -> str:
        """Return the page with its data."""
        return report_page(self.data(), self._title, live=True)


class Handler(BaseHTTPRequestHandler):
    """Answers two requests, `/` and `/data`; it opens no file that a request names."""

    report: ClassVar[Report]
    server_version = "fedapp"
    sys_version = ""
    timeout = 30  # seconds for a request

    def do_GET(self) -> None:
        """Answer a request, if it comes from a page of this server."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer a request without the body."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page asks every few seconds."""

    def _answer(self, with_body: bool) -> None:
        if not self._is_for_us():
            self.send_error(HTTPStatus.FORBIDDEN, "Open the address that fedapp report printed")
            return
        match self.path:
            case "/":
                self._send(self.report.page(), "text/html; charset=utf-8", with_body)
            case "/data":
                self._send(self.report.data(), "application/json", with_body)
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)

    def _is_for_us(self) -> bool:
        """Tell whether the browser means this server: a page of another name that leads here must read nothing."""
        port = self.connection.getsockname()[1]
        named = self.headers.get_all("Host", [])
        origin = self.headers.get("Sec-Fetch-Site", "none")
        return (
            len(named) == 1
            and named[0].lower() in (f"{LOOPBACK}:{port}", f"localhost:{port}")
            and (origin in ("none", "same-origin") or self.path == "/")
        )

    def _send(self, text: str, kind: str, with_body: bool) -> None:
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        unchanged = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if unchanged else HTTPStatus.OK)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if unchanged:
            self.end_headers()
            return
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def make_server(
    directories: Sequence[Path], title: str, target: float, port: int
) -> ThreadingHTTPServer:
    """Return a server of the report on the loopback interface; port 0: any that is free."""
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"{directory} is not a directory: give directories of runs.")
    report = Report(RunCache(directories).load, title, target)
    handler = type("ReportHandler", (Handler,), {"report": report})
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), handler)
    except OSError as error:
        raise ConfigError(
            f"Port {port} cannot be used ({error.strerror}): choose another with --port, or 0 for any."
        ) from None
    server.daemon_threads = True
    return server


def serve_report(
    directories: Sequence[Path], title: str, target: float, port: int, say: Callable[[str], None]
) -> None:
    """Serve the report until Ctrl-C."""
    with make_server(directories, title, target, port) as server:
        say(f"http://{LOOPBACK}:{server.server_address[1]}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
