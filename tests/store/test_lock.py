"""One prepare at a time: who is told what, and whose lock is taken over."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout.errors import StoreLockedError
from flatout.store.lock import GUARD, OWNER, locked

SINCE = "2026-01-02T03:04:05Z"


def owner_of(**changes: Any) -> dict[str, Any]:
    me = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "since": SINCE,
    }
    return {**me, **changes}


def sign(folder: Path, **changes: Any) -> None:
    (folder / OWNER).write_text(json.dumps(owner_of(**changes)))


def is_ours(folder: Path) -> bool:
    """Whether the owner file says that this process has the store now."""
    owner = json.loads((folder / OWNER).read_text())
    return bool(owner["pid"] == os.getpid() and owner["started"] == psutil.Process().create_time())


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_owns_and_gives_back(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    for _ in range(2):
        with locked(folder):
            found = json.loads((folder / OWNER).read_text())
            assert (found["host"], found["pid"]) == (socket.gethostname(), os.getpid())
        assert [path.name for path in folder.iterdir()] == [GUARD]


def test_gives_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    with locked(tmp_path):
        pass


def test_a_second_one_is_told_host_pid_and_since(tmp_path: Path) -> None:
    with locked(tmp_path):
        since = json.loads((tmp_path / OWNER).read_text())["since"]
        with pytest.raises(StoreLockedError) as caught, locked(tmp_path):
            pass
        assert (tmp_path / OWNER).exists()
    message = str(caught.value)
    for part in (str(os.getpid()), socket.gethostname(), since, str(tmp_path / OWNER)):
        assert part in message


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from flatout.store.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('in')\n    sys.stdout.flush()\n    sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "in\n"
        with pytest.raises(StoreLockedError, match=f"process {holder.pid} on"), locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with locked(tmp_path):  # it died without a word; its lock is free
        assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()


def test_a_dead_owner_is_replaced(tmp_path: Path) -> None:
    sign(tmp_path, pid=dead_pid())
    with locked(tmp_path):
        assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()


def test_a_number_that_another_process_has_now_is_a_dead_owners(tmp_path: Path) -> None:
    sign(tmp_path, started=psutil.Process().create_time() - 1000)
    with locked(tmp_path):
        assert is_ours(tmp_path)
    assert not (tmp_path / OWNER).exists()


def test_a_living_owner_whose_guard_is_not_seen_is_kept(tmp_path: Path) -> None:
    sign(tmp_path)
    with pytest.raises(StoreLockedError, match=f"since {SINCE}"), locked(tmp_path):
        pass
    assert (tmp_path / OWNER).exists()


@pytest.mark.parametrize("pid", [1, 2**22 + 1])
def test_another_hosts_lock_is_never_taken(tmp_path: Path, pid: int) -> None:
    sign(tmp_path, host="elsewhere", pid=pid)
    with pytest.raises(StoreLockedError, match=f"process {pid} on elsewhere since {SINCE}"), locked(tmp_path):
        pass
    assert json.loads((tmp_path / OWNER).read_text())["host"] == "elsewhere"
    (tmp_path / OWNER).unlink()  # what the message advises
    with locked(tmp_path):
        assert is_ours(tmp_path)


@pytest.mark.parametrize("text", ["", '{"host": "', "\udcff"])
def test_a_garbled_owner_file_counts_as_a_dead_owners(tmp_path: Path, text: str) -> None:
    (tmp_path / OWNER).write_bytes(text.encode(errors="surrogateescape"))
    with locked(tmp_path):
        assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("pid", [None, "x", -1, 0.5])
def test_an_owner_of_this_host_without_a_number_is_dead(tmp_path: Path, pid: Any) -> None:
    sign(tmp_path, pid=pid, started=0.0)
    with locked(tmp_path):
        assert is_ours(tmp_path)
    assert not (tmp_path / OWNER).exists()
