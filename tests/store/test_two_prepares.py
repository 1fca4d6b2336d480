"""Two prepares of one store: one runs, the other says who does; a dead owner's lock is freed, no other's is."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.store.crashing import Nursery, Source, check_finished, contents, shard_hashes, wait_until

from flatout.errors import StoreLockedError
from flatout.store import compact
from flatout.store.lock import OWNER
from flatout.store.preprocessor import DataPreprocessor

WAITING = """
import time
from pathlib import Path
import numpy as np

def make(row):
    Path(f"begun-{row['id']}").touch()
    while not Path("go").exists():
        time.sleep(0.005)
    return {"x": np.full(4, float(row["id"]))}
"""


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("logs")) as nursery:
        yield nursery


@pytest.fixture
def source(tmp_path: Path) -> Source:
    source = Source(tmp_path / "source")
    source.add(range(20))
    return source


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Settings of a prepare that goes on only when the file `go` is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flatout_test_waiting.py").write_text(WAITING)
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(5)))
    return {
        "manifest": str(tmp_path / "rows.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "transform": "flatout_test_waiting:make",
        "num_workers": 0,
    }


def owner_file(store: Path, **changes: object) -> Path:
    """Somebody's lock: this very process's, with changes."""
    store.mkdir(parents=True, exist_ok=True)
    started = psutil.Process().create_time()
    owner = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": started,
        "since": "2026-01-01T00:00:00",
    }
    (store / OWNER).write_text(json.dumps({**owner, **changes}))
    return store / OWNER


def test_the_second_says_who_prepares(nursery: Nursery, waiting: dict[str, object], tmp_path: Path) -> None:
    """And at once: the first one will not end before the second one has."""
    first = nursery.start(waiting)
    assert wait_until(lambda: (tmp_path / "begun-0").exists())

    with pytest.raises(StoreLockedError) as caught:
        DataPreprocessor(waiting).run()
    with pytest.raises(StoreLockedError):
        compact(tmp_path / "store")

    who = rf"store is being prepared by process {first.pid} on {re.escape(socket.gethostname())} "
    assert re.search(who + r"since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d", str(caught.value))
    (tmp_path / "go").touch()
    assert first.wait() == 0
    assert DataPreprocessor(waiting).run().unchanged == 5


def test_two_threads_of_one_program(nursery: Nursery, waiting: dict[str, object], tmp_path: Path) -> None:
    errors: list[BaseException] = []
    thread = threading.Thread(target=lambda: DataPreprocessor(waiting).run())
    thread.start()
    assert wait_until(lambda: (tmp_path / "begun-0").exists())
    try:
        DataPreprocessor(waiting).run()
    except StoreLockedError as error:
        errors.append(error)
    finally:
        (tmp_path / "go").touch()
        thread.join()

    assert len(errors) == 1
    assert f"process {os.getpid()} " in str(errors[0])


def test_twenty_at_once(nursery: Nursery, waiting: dict[str, object], tmp_path: Path) -> None:
    runs = [nursery.start(waiting, stopped=True) for _ in range(20)]
    processes = {run.pid: psutil.Process(run.pid) for run in runs}
    assert wait_until(lambda: all(p.status() == psutil.STATUS_STOPPED for p in processes.values()))
    for run in runs:
        os.kill(run.pid, signal.SIGCONT)

    def alive() -> list[int]:
        return [pid for pid, process in processes.items() if process.status() != psutil.STATUS_ZOMBIE]

    assert wait_until(lambda: len(alive()) == 1)
    (winner,) = alive()
    (tmp_path / "go").touch()
    codes = {run.pid: run.wait() for run in runs}

    assert codes.pop(winner) == 0
    assert set(codes.values()) == {1}
    messages = [run.text() for run in runs if run.pid != winner]
    assert all(
        f"StoreLockedError: {tmp_path}/store is being prepared by process {winner} on" in m for m in messages
    )
    assert len(DataPreprocessor(waiting).run().bad) == 0


def test_a_dead_owners_lock_is_freed(nursery: Nursery, waiting: dict[str, object], tmp_path: Path) -> None:
    first = nursery.start(waiting)
    assert wait_until(lambda: (tmp_path / "begun-0").exists())
    first.kill(everything=True)
    (tmp_path / "go").touch()
    assert (tmp_path / "store" / OWNER).exists()

    assert DataPreprocessor(waiting).run().num_samples == 5

    assert not (tmp_path / "store" / OWNER).exists()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"started": 1.0}, id="the number belongs to another process now"),
        pytest.param({"pid": 2**22 + 5}, id="no such process"),
    ],
)
def test_an_owner_that_is_gone(source: Source, tmp_path: Path, changes: dict[str, object]) -> None:
    owner_file(tmp_path / "store", **changes)

    DataPreprocessor(source.settings(tmp_path / "store")).run()

    check_finished(tmp_path / "store", source.model)


def test_a_garbled_lock_is_freed(source: Source, tmp_path: Path) -> None:
    owner_file(tmp_path / "store").write_text("")

    DataPreprocessor(source.settings(tmp_path / "store")).run()

    check_finished(tmp_path / "store", source.model)


def test_another_machines_lock_is_never_freed(source: Source, tmp_path: Path) -> None:
    lock = owner_file(tmp_path / "store", host="elsewhere", pid=2**22 + 5)
    settings = source.settings(tmp_path / "store")
    text = lock.read_text()

    with pytest.raises(StoreLockedError, match=r"on elsewhere since 2026-01-01.*delete .*prepare\.lock"):
        DataPreprocessor(settings).run()

    assert lock.read_text() == text
    lock.unlink()
    DataPreprocessor(settings).run()
    check_finished(tmp_path / "store", source.model)


def test_an_error_frees_the_lock(waiting: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with pytest.raises(Exception, match="nowhere"):
        DataPreprocessor({**waiting, "manifest": str(tmp_path / "nowhere.csv")}).run()

    assert not (tmp_path / "store" / OWNER).exists()
    assert DataPreprocessor(waiting).run().num_samples == 5


def test_readers_see_one_version_while_others_are_made(nursery: Nursery, tmp_path: Path) -> None:
    source = Source(tmp_path / "source")
    source.add(range(60))
    settings = source.settings(tmp_path / "store")
    nursery.finish(settings)
    versions = [dict(source.model)]
    num_seen = 0
    for step in range(4):
        source.add(range(step * 10, step * 10 + 15), seed=step + 1)
        source.remove([59 - step])
        versions.append(dict(source.model))
        run = nursery.start(settings)
        while psutil.Process(run.pid).status() != psutil.STATUS_ZOMBIE:
            assert contents(tmp_path / "store") in versions[-2:]
            num_seen += 1
        assert run.wait() == 0
        assert contents(tmp_path / "store") == versions[-1]
    assert num_seen >= 4
    assert shard_hashes(tmp_path / "store")
