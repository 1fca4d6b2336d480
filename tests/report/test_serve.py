"""The dashboard: this machine only, reading only, always the newest record."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from tests.report.records import run_document, write_doctor, write_run

from flatout.cli.main import main
from flatout.errors import RecordError, ReportError
from flatout.report import Dashboard, follow, read_source, write
from flatout.report.follow import Follower
from flatout.report.place import find_place
from flatout.report.serve import is_local


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "run-0007", status="running")


@pytest.fixture
def dashboard(run: Path) -> Iterator[Dashboard]:
    with Dashboard(run) as served:
        yield served


def ask(
    dashboard: Dashboard, path: str = "/", method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    port = int(dashboard.address.rstrip("/").rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_the_record(dashboard: Dashboard, run: Path) -> None:
    answer, body = ask(dashboard)
    assert answer.status == 200
    assert b"run-0007" in body
    assert b"waited for data" in body
    answer, body = ask(dashboard, "/run.json")
    assert answer.getheader("Content-Type") == "application/json"
    assert json.loads(body) == json.loads((run / "run.json").read_text())
    assert read_source(dashboard.address) == read_source(run)


def test_headers(dashboard: Dashboard) -> None:
    answer, body = ask(dashboard)
    policy = answer.getheader("Content-Security-Policy", "")
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert "Python" not in (answer.getheader("Server") or "")
    head, nothing = ask(dashboard, method="HEAD")
    assert (head.status, nothing) == (200, b"")
    assert head.getheader("Content-Length") == str(len(body))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_but_reading(dashboard: Dashboard, method: str) -> None:
    answer, _ = ask(dashboard, method=method)
    assert answer.status == 405
    assert answer.getheader("Allow") == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/../run-0007/config.yaml", "/%2e%2e/secret", "/..%2fsecret", "//etc/passwd", "/secret", "*",
        "/run.json/../secret", "/run.json%00", "/./", "/index.html", "http://evil.example/", "\\..\\secret",
    ],
)  # fmt: skip
def test_no_other_file_is_reached(dashboard: Dashboard, run: Path, path: str) -> None:
    for folder in (run, run.parent):
        (folder / "secret").write_text("the secret")
    answer, body = ask(dashboard, path)
    assert answer.status in (403, 404)
    assert b"the secret" not in body


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:80", 200), ("127.0.0.1:1", 200), ("[::1]:99", 200), ("LOCALHOST", 200),
        ("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1.evil.org", 403), ("localhost.evil", 403),
        ("localhost:evil", 403), ("evil@localhost", 403), ("localhost/evil", 403), ("", 403), ("[::1", 403),
    ],
)  # fmt: skip
def test_only_this_machine_by_its_own_name(dashboard: Dashboard, host: str, status: int) -> None:
    assert ask(dashboard, Host=host)[0].status == status
    assert ask(dashboard, "/run.json", Host=host)[0].status == status
    assert is_local(host) == (status == 200)


def test_no_host_at_all(dashboard: Dashboard) -> None:
    port = int(dashboard.address.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 403 " in plain.recv(100)


def test_it_listens_on_loopback_only(dashboard: Dashboard) -> None:
    assert dashboard._server.server_address[0] == "127.0.0.1"


def test_a_page_elsewhere_through_another_dashboard(dashboard: Dashboard) -> None:
    with Dashboard(dashboard.address) as second:
        answer, body = ask(second)
    assert answer.status == 200
    assert b"run-0007" in body


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def change(run: Path, **changes: object) -> None:
    """As a run writes: a new file in place of the old."""
    (run / "run.part").write_text(json.dumps(run_document(**changes)))
    (run / "run.part").replace(run / "run.json")


def test_it_follows_the_record(run: Path) -> None:
    clock = Clock()
    follower = Follower(find_place(run), clock)
    first = follower.newest()
    assert b"running" in first.page
    assert follower.newest() is first
    change(run, status="finished", num_looks=3)
    assert follower.newest() is first, "not looked at twice within a second"
    clock.now += 2
    second = follower.newest()
    assert b"finished" in second.page
    clock.now += 2
    assert follower.newest() is second, "nothing new, nothing made"


def test_a_silent_run_is_said_to_be_silent_for_longer_and_longer(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = datetime.fromisoformat(run_document()["written_at"])
    moment, clock = [written], Clock()

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return moment[0]

    monkeypatch.setattr(follow, "datetime", Frozen)
    monkeypatch.setattr(write, "datetime", Frozen)
    follower = Follower(find_place(run), clock)
    for hours in (0, 1, 2):
        moment[0] = written + timedelta(hours=hours)
        clock.now += 2
        page = follower.newest().page
        assert (f"written for {hours} h".encode() in page) == (hours > 0)
        clock.now += 2
        assert follower.newest().page is page


def test_a_record_that_is_away_for_a_while(run: Path) -> None:
    clock = Clock()
    follower = Follower(find_place(run), clock)
    whole = follower.newest()
    (run / "run.json").write_text('{"version": 1, "sta')
    clock.now += 2
    broken = follower.newest()
    assert b"is cut off, or no JSON at all" in broken.page
    assert b"640 samples/s" in broken.page, "what it said before stays"
    assert broken.record == whole.record
    (run / "run.json").unlink()
    clock.now += 2
    assert b"640 samples/s" in follower.newest().page
    change(run, status="finished")
    clock.now += 2
    mended = follower.newest()
    assert b"finished" in mended.page
    assert b"cut off" not in mended.page


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("epochs: 1\n")
    clock = Clock()
    follower = Follower(find_place(tmp_path), clock)
    waiting = follower.newest()
    assert b"There is no record to show yet" in waiting.page
    assert waiting.record is None
    assert "has no run.json yet" in follower.trouble()
    write_run(tmp_path)
    clock.now += 2
    assert b"640 samples/s" in follower.newest().page
    assert follower.trouble() == ""


def test_a_folder_that_is_no_run_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is empty, or has a config, may be where a run is about to begin; others are not."""
    monkeypatch.setattr(Dashboard, "wait", lambda self: None)
    assert main(["dashboard", str(tmp_path)]) == 0
    assert f"nothing to show yet: {tmp_path} is no run folder" in capsys.readouterr().err
    (tmp_path / "photo.jpg").touch()
    assert main(["dashboard", str(tmp_path)]) == 2
    assert f"{tmp_path} is no run folder: it has no run.json, but photo.jpg" in capsys.readouterr().err
    write_run(tmp_path / "run-0001")
    assert main(["dashboard", str(tmp_path)]) == 2
    assert "holds 1 run (run-0001)" in capsys.readouterr().err
    (tmp_path / "config.yaml").touch()
    assert main(["dashboard", str(tmp_path)]) == 0
    assert "has no run.json yet" in capsys.readouterr().err
    write_run(tmp_path)
    assert main(["dashboard", str(tmp_path)]) == 0
    assert "nothing to show" not in capsys.readouterr().err


def test_the_record_of_the_doctor_is_served_too(tmp_path: Path) -> None:
    with Dashboard(write_doctor(tmp_path / "doctor.json")) as served:
        assert b"Rotate.__call__ is slow" in ask(served)[1]


def test_what_cannot_be_served(
    tmp_path: Path, dashboard: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RecordError, match="no such file or folder"):
        Dashboard(tmp_path / "nothing")
    port = int(dashboard.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(ReportError, match=f"port {port} cannot be had.*--port 0"):
        Dashboard(tmp_path, port)
    assert main(["dashboard", str(tmp_path / "nothing")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_the_command_ends_with_ctrl_c(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Dashboard) -> None:
        assert ask(self)[0].status == 200
        raise KeyboardInterrupt

    monkeypatch.setattr(Dashboard, "wait", interrupted)
    assert main(["dashboard", str(run)]) == 0
    shown = capsys.readouterr().err
    assert "http://127.0.0.1:" in shown
    assert "the run goes on" in shown
