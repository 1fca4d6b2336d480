"""Serve: a record's page on this machine alone, for reading only, while the record grows."""

from __future__ import annotations

import logging
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flatout.errors import ReportError
from flatout.report.follow import Follower
from flatout.report.html import policy
from flatout.report.place import Place, find_place
from flatout.train.record import RECORD

LOOPBACK = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "::1")
"""What a browser on this machine, or at the end of a tunnel, calls it. A page elsewhere whose name was made to
point here (DNS rebinding) sends its own name and is refused."""
PATIENCE_S = 20.0
"""A connection that says nothing for so long is closed."""
POLL_S = 0.1
"""How soon it notices that it was closed."""

_log = logging.getLogger(__name__)


class Dashboard:
    """Serves the page at `address` from threads of its own, until it is closed.

    Args:
        source: a run folder, the JSON file of a run or of the doctor, or the address of another dashboard.
        port: 0 takes a free one.

    Raises:
        RecordMissingError: there is nothing of that name.
        ReportError: the port cannot be had.

    Example:
        >>> with Dashboard("runs/run-0001") as dashboard:                           # doctest: +SKIP
        ...     print(dashboard.address)
    """

    def __init__(self, source: str | Path, port: int = 0) -> None:
        place: Place = find_place(source)
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ReportError(f"port {port} cannot be had: {reason}; --port 0 takes a free one") from error
        self._server.follower = Follower(place)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="dashboard", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/"

    def trouble(self) -> str:
        """Why the page shows no record yet; empty: it shows one."""
        return self._server.follower.trouble()

    def wait(self) -> None:
        """Serve until it is closed, or the process interrupted."""
        while self._thread.is_alive():
            self._thread.join(timeout=1.0)  # without an end Ctrl-C would not be seen on every system

    def close(self) -> None:
        """Stop serving and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    follower: Follower

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            _log.error("a request to the dashboard failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD; any other method of HTTP finds `_refuse_method` below."""

    server: _Server
    server_version, sys_version = "flatout", ""
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name)

    def _refuse_method(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", Allow="GET, HEAD")

    def _answer(self) -> None:
        if not is_local(self.headers.get("Host")):
            self._send(HTTPStatus.FORBIDDEN, b"this dashboard is called 127.0.0.1 or localhost\n")
            return
        path = urlsplit(self.path).path if self.path.startswith("/") else ""
        if path == "/":
            self._send(HTTPStatus.OK, self.server.follower.newest().page, "text/html; charset=utf-8")
        elif path == f"/{RECORD}":
            self._send_record()
        else:  # no name from outside ever becomes the name of a file
            self._send(HTTPStatus.NOT_FOUND, b"there is / and /run.json\n")

    def _send_record(self) -> None:
        record = self.server.follower.newest().record
        if record is None:
            self._send(HTTPStatus.NOT_FOUND, b"there is no record yet\n")
        else:
            self._send(HTTPStatus.OK, record, "application/json")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", f"{policy(is_live=True)}; frame-ancestors 'none'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """One line a request would bury what a training prints."""


_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_local(host: str | None) -> bool:
    """Whether a Host header names this machine; the port may be that of a tunnel."""
    try:
        parts = urlsplit(f"//{host}")
        return (
            bool(host) and parts.hostname in NAMES and not parts.username and not parts.path and parts.port != 0
        )
    except ValueError:
        return False
