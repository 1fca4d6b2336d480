"""Where records are found, which kind they are, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.report.records import doctor_record, run_document, write_doctor, write_run

from flatout.doctor.record import DoctorRecord, read_record
from flatout.errors import RecordError
from flatout.report import RunRecord, read_source
from flatout.report.place import find_place


def test_a_run_folder_or_its_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run-0007")
    record = read_source(folder)
    assert isinstance(record, RunRecord)
    assert record == read_source(folder / "run.json") == read_source(str(folder)) == read_source(record)
    assert (record.name, record.status, len(record.looks)) == ("run-0007", "finished", 40)
    assert record.speed.data_wait_share == 0.4
    assert record.last_metrics == {"train_loss": 0.31, "val_loss": 0.42, "val_dice": 0.81}


def test_what_the_doctor_writes_is_read_back(tmp_path: Path) -> None:
    path = write_doctor(tmp_path / "any-name.json")
    assert read_source(path) == read_record(path) == doctor_record()


def test_a_run_that_failed_has_less(tmp_path: Path) -> None:
    document = run_document(status="failed", error="RuntimeError: no")
    for name in ("metrics", "is_fast", "reports", "rank", "written_at", "machine"):
        del document[name]
    (tmp_path / "run.json").write_text(json.dumps(document))
    record = read_source(tmp_path)
    assert isinstance(record, RunRecord)
    assert record.error == "RuntimeError: no"
    assert record.last_metrics["val_dice"] == pytest.approx(0.8)


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    record = read_source(write_run(tmp_path, metrics={"val_loss": None, "val_dice": 0.5}))
    assert isinstance(record, RunRecord)
    assert record.last_metrics == {"val_dice": 0.5}
    assert math.isnan(record.metrics["val_loss"])


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -200])
@pytest.mark.parametrize("kind", ["run", "doctor"])
def test_a_record_that_was_cut_off(tmp_path: Path, kind: str, cut: int) -> None:
    whole = run_document() if kind == "run" else doctor_record().to_json()
    path = tmp_path / "record.json"
    path.write_text(json.dumps(whole)[:cut])
    with pytest.raises(RecordError, match=r"record\.json is"):
        read_source(path)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([1, 2], "is neither the record of a run"),
        ({"kind": "something else"}, "is neither the record of a run"),
        (run_document(version=2), "is of version 2; version 1 is read here"),
        (run_document(speed=None), "speed: got null, wanted an object"),
        (run_document(looks=[{"step": "<b>"}]), r"looks\[0\]"),
        (run_document(config=[]), "config: got"),
        ({**doctor_record().to_json(), "version": 99}, "is of version 99"),
        ({**doctor_record().to_json(), "steps": [{"start_s": 0.0, "seconds": {"wait": "x"}}]}, "seconds.wait"),
        ({**doctor_record().to_json(), "exit": {"code": 0}}, "wanted a value for was_stopped"),
    ],
)
def test_what_is_no_record(tmp_path: Path, document: Any, told: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=told):
        read_source(path)


def test_places_that_hold_no_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no such file or folder"):
        read_source(tmp_path / "nowhere")
    with pytest.raises(RecordError, match=r"is no run folder: it has no run\.json"):
        read_source(tmp_path)
    for number in range(3):
        write_run(tmp_path / f"run-{number}")
    with pytest.raises(RecordError, match=r"holds 3 runs \(run-0, run-1, run-2\); name one"):
        read_source(tmp_path)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("epochs: 1\n")
    with pytest.raises(RecordError, match="has not begun to train"):
        read_source(tmp_path / "new")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """An ordinary web server over `tmp_path`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_run_at_an_address(tmp_path: Path, web: str) -> None:
    local = read_source(write_run(tmp_path / "run-0007"))
    assert read_source(f"{web}/run-0007") == read_source(f"{web}/run-0007/") == local
    write_doctor(tmp_path / "doctor.json")
    assert isinstance(read_source(f"{web}/doctor.json"), DoctorRecord)
    with pytest.raises(RecordError, match=r"run\.json cannot be read: .*(404|File not found)"):
        read_source(f"{web}/run-0008")


def test_what_is_no_web_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            with other.accept()[0] as found:
                found.recv(1000)
                found.sendall(b"SSH-2.0-other\r\n")

        thread = Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(RecordError, match=r"cannot be read: SSH-2\.0-other"):
            read_source(f"http://127.0.0.1:{port}/run")
        thread.join()


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:port/run", "http://127.0.0.1:1/a run", "http://[::1/run"]
)
def test_misspelt_addresses_are_told(address: str) -> None:
    with pytest.raises(RecordError, match=r"cannot be read|is no address"):
        read_source(address)


@pytest.mark.parametrize("address", ["ftp://host/run", "file:///etc/passwd", "s3://bucket/run", "http://"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(RecordError, match="only http and https addresses"):
        find_place(address)
