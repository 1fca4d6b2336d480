"""A bank's own folder goes with it, and with its process, however that ends; others' folders stay."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.bank import place
from flatout.bank.place import OWNER, PRIVATE, PrivateFolder, generation_folder, generations, sweep


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(place, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(place.tempfile, "tempdir", str(tmp_path))
    return tmp_path / "memory"


def test_it_lies_in_memory_where_it_fits(memory: Path) -> None:
    assert PrivateFolder(1).path.parent == memory


def test_else_among_temporary_files(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "free_bytes", lambda parent: 10 if parent == memory else 100)
    assert PrivateFolder(50).path.parent == memory.parent
    assert PrivateFolder(1000).path.parent == memory.parent  # the disk will tell


def test_it_goes_with_its_object() -> None:
    folder = PrivateFolder(1)
    path = folder.path
    (path / "epoch-000000").mkdir()
    sweep(path.parent)
    assert path.exists()
    del folder
    gc.collect()
    assert not path.exists()


def test_what_a_killed_process_left_is_swept(memory: Path) -> None:
    code = (
        f"import os, flatout.bank.place as place; place.MEMORY = place.Path({str(memory)!r})\n"
        "folder = place.PrivateFolder(1); print(folder.path); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.parent == memory
    assert left.exists()
    (memory / f"{PRIVATE}foreign").mkdir()
    sweep(memory)
    assert not left.exists()
    assert (memory / f"{PRIVATE}foreign").exists()  # nobody has signed it


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_it_alone() -> None:
    folder = PrivateFolder(1)
    child = os.fork()
    if not child:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert (folder.path / OWNER).exists()


def test_generations_by_epoch(tmp_path: Path) -> None:
    for epoch in (0, 5, 1_234_567):
        generation_folder(tmp_path, epoch).mkdir()
    (tmp_path / "epoch-x").mkdir()
    assert sorted(generations(tmp_path)) == [0, 5, 1_234_567]
