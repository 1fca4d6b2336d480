"""One prepare at a time per store: a lock file that says who holds it and since when."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flatout.errors import StoreLockedError
from flatout.living import is_dead, this_process
from flatout.store.files import make_folder, write_all

OWNER = "prepare.lock"
GUARD = ".prepare.guard"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Own the store for a while.

    The owner file says who; a kernel lock beside it settles races between processes of one machine. An
    owner that died on this machine is replaced; one of another machine never is by itself, since nobody
    here can tell whether it lives.

    Raises:
        StoreLockedError: somebody else owns it; the message names host, process and since when.
    """
    make_folder(folder)
    guard = FileLock(folder / GUARD)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        raise StoreLockedError(_busy(folder, _living_owner(folder))) from None
    try:
        _sign(folder)
        try:
            yield
        finally:
            (folder / OWNER).unlink(missing_ok=True)
    finally:
        guard.release()  # the guard file stays: deleting it would let two processes lock two files


def _sign(folder: Path) -> None:
    """Write the owner file. Where the guard does not reach (another machine), only one can create it."""
    owner = _read_owner(folder)
    if owner is not None and is_dead(owner):
        (folder / OWNER).unlink(missing_ok=True)
    try:
        descriptor = os.open(folder / OWNER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise StoreLockedError(_busy(folder, _read_owner(folder))) from None
    try:
        write_all(descriptor, json.dumps(_myself()).encode())
    except BaseException:
        (folder / OWNER).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _living_owner(folder: Path) -> dict[str, Any] | None:
    """Who holds the guard; it may have taken it a moment ago and not have signed yet."""
    for _ in range(100):
        owner = _read_owner(folder)
        if owner is not None and not is_dead(owner):
            return owner
        time.sleep(0.01)
    return None


def _myself() -> dict[str, Any]:
    return {**this_process(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _read_owner(folder: Path) -> dict[str, Any] | None:
    """Who owns the store; an owner file being written is waited for, a garbled one counts as unknown."""
    for _ in range(20):
        try:
            found = json.loads((folder / OWNER).read_text())
            return found if isinstance(found, dict) else {}
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01)
    return {"host": socket.gethostname(), "pid": -1, "started": 0.0, "since": "unknown"}


def _busy(folder: Path, owner: dict[str, Any] | None) -> str:
    who = owner or {}
    return (
        f"{folder} is being prepared by process {who.get('pid', 'unknown')} on {who.get('host', 'unknown')} "
        f"since {who.get('since', 'unknown')}. Wait for it; if it is gone for good (another machine that "
        f"crashed), delete {folder / OWNER}"
    )
