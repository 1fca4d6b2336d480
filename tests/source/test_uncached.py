"""A user's modules are imported without leaving compiled copies; installed ones leave theirs."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.source import keeping_no_bytecode


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules of a user's, one of which needs a package that is installed beside them."""
    installed = tmp_path / "lib" / "site-packages"
    (installed / "uncached_library").mkdir(parents=True)
    (installed / "uncached_library" / "__init__.py").write_text("VALUE = 3\n")
    mine = tmp_path / "mine"
    (mine / "uncached_package").mkdir(parents=True)
    (mine / "uncached_package" / "__init__.py").write_text("")
    (mine / "uncached_package" / "part.py").write_text("import uncached_library\n\nFOUR = 4\n")
    (mine / "uncached_module.py").write_text("from uncached_package.part import FOUR\n")
    monkeypatch.setattr(sys, "path", [str(mine), str(installed), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("uncached_")]:
        del sys.modules[name]


def copies(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.rglob("*.pyc")}


def test_only_what_is_installed_leaves_a_copy(folder: Path) -> None:
    before = list(sys.meta_path)
    with keeping_no_bytecode():
        assert importlib.import_module("uncached_module").FOUR == 4
        assert not sys.dont_write_bytecode
    assert copies(folder / "mine") == set()
    assert copies(folder / "lib") == {"__init__"}
    assert sys.meta_path == before


def test_afterwards_all_is_as_before(folder: Path) -> None:
    with keeping_no_bytecode():
        pass
    importlib.import_module("uncached_module")
    assert copies(folder / "mine") == {"__init__", "part", "uncached_module"}


def test_several_threads_at_once(folder: Path) -> None:
    """One that ends in the middle of another's takes nothing away, and leaves nothing behind."""
    before, is_inside, may_leave = list(sys.meta_path), threading.Event(), threading.Event()

    def other() -> None:
        with keeping_no_bytecode():
            is_inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=other)
    with keeping_no_bytecode():
        thread.start()
        assert is_inside.wait(10)
    may_leave.set()
    thread.join(10)
    assert sys.meta_path == before
    assert not sys.dont_write_bytecode


def test_what_fails_is_told_as_ever(folder: Path) -> None:
    (folder / "mine" / "uncached_broken.py").write_text("1 / 0\n")
    with keeping_no_bytecode(), pytest.raises(ZeroDivisionError):
        importlib.import_module("uncached_broken")
    with keeping_no_bytecode(), pytest.raises(ModuleNotFoundError):
        importlib.import_module("uncached_absent")
