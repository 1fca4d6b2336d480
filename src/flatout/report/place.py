"""Place: where a record is, a file of this machine or an http address, and its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
)

from flatout.errors import RecordError, RecordMissingError
from flatout.train.record import CONFIG, RECORD

TIMEOUT_S = 10.0
MOST_BYTES = 256 << 20
"""A hundred thousand steps of the doctor are 30 MB; an address that sends more has something else."""


@dataclass(frozen=True)
class Place:
    """One record."""

    address: str
    """A path, or http(s)://..."""

    @property
    def is_remote(self) -> bool:
        return self.address.startswith(("http://", "https://"))

    def read(self) -> bytes:
        """The record's bytes as they are now.

        Raises:
            RecordMissingError: there is none. RecordError: they cannot be had; says what to do.
        """
        if self.is_remote:
            return _fetch(self.address)
        try:
            return Path(self.address).read_bytes()
        except FileNotFoundError as error:
            raise RecordMissingError(_why_missing(Path(self.address))) from error
        except OSError as error:
            raise RecordError(f"{self.address} cannot be read: {error.strerror or error}") from error

    def stamp(self) -> object:
        """Changes when the record does; None where only reading tells."""
        if self.is_remote:
            return None
        try:
            found = Path(self.address).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def find_place(source: str | Path) -> Place:
    """A run folder, the JSON file of a run or of the doctor, or the address of either.

    Raises:
        RecordMissingError: there is nothing of that name.
    """
    text = str(source)
    if "://" in text:
        return Place(_address(text))
    path = Path(source).expanduser()
    if not path.exists():
        raise RecordMissingError(
            f"{path}: there is no such file or folder; a run folder or a JSON record was wanted"
        )
    return Place(str(path / RECORD if path.is_dir() else path))


def why_no_run(source: str | Path) -> str:
    """Why a folder is not that of a run, nor of one that may begin there; empty: it may be, or is no folder.

    An empty folder, or one with a config and no record yet, is where a run is about to begin.
    """
    folder = Path(source).expanduser()
    if "://" in str(source) or not folder.is_dir() or (folder / RECORD).exists() or (folder / CONFIG).exists():
        return ""
    return _why_missing(folder / RECORD) if any(folder.iterdir()) else ""


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise RecordError(f"{text} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RecordError(
            f"{text}: only http and https addresses are read; mount other disks, or copy the folder"
        )
    if parts.path.endswith(".json"):
        return text
    path = f"{parts.path.rstrip('/')}/{RECORD}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _why_missing(path: Path) -> str:
    folder = path.parent
    if path.name != RECORD or not folder.is_dir():
        return f"{path}: there is no such file"
    if (folder / CONFIG).exists():
        return f"{folder} has no {RECORD} yet: the run has not begun to train, or was killed before"
    runs = sorted(found.parent.name for found in folder.glob(f"*/{RECORD}"))
    if runs:
        names = ", ".join(runs[:5]) + (", ..." if len(runs) > 5 else "")
        return f"{folder} holds {len(runs)} run{'s' if len(runs) > 1 else ''} ({names}); name one of them"
    held = sorted(found.name for found in folder.iterdir())
    names = ", ".join(held[:3]) + (", ..." if len(held) > 3 else "")
    return f"{folder} is no run folder: it has no {RECORD}, {f'but {names}' if held else 'it is empty'}"


def _fetch(address: str) -> bytes:
    opener = OpenerDirector()  # no file:, ftp: or data:, not even by redirection
    for handler in (
        HTTPHandler,
        HTTPSHandler,
        HTTPRedirectHandler,
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    request = Request(address, headers={"Accept": "application/json"})
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            found: bytes = answer.read(MOST_BYTES + 1)
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise RecordError(f"{address} cannot be read: {reason}") from error
    if len(found) > MOST_BYTES:
        raise RecordError(f"{address} sends more than {MOST_BYTES >> 20} MiB; that is no record")
    return found
