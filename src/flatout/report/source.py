"""A record from wherever it is: which kind it is shows in its content, not in its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.doctor.record import KIND, DoctorRecord, record_of
from flatout.errors import RecordError
from flatout.plain import parse
from flatout.report.place import find_place
from flatout.report.run import RunRecord, run_record_of

Record = RunRecord | DoctorRecord


def read_source(source: str | Path | Record) -> Record:
    """A run folder, the JSON file of a run or of the doctor, or the http address of either in; its record out.

    Raises:
        RecordError: there is none, it is cut off, of another version, or something else.
    """
    if isinstance(source, RunRecord | DoctorRecord):
        return source
    place = find_place(source)
    return parse_record(place.read(), place.address)


def parse_record(text: bytes, where: str) -> Record:
    """As `read_source`, from the bytes."""
    document: Any = parse(text, where)
    if isinstance(document, dict) and document.get("kind") == KIND:
        return record_of(document, where)
    if isinstance(document, dict) and {"status", "epochs", "config"} <= document.keys():
        return run_record_of(document, where)
    raise RecordError(
        f"{where} is neither the record of a run (run.json in a run folder) nor the doctor's "
        "('flatout doctor --json SCRIPT.py' writes one)"
    )
