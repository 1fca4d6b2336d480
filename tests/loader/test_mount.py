"""Mapped stores: what kills a process at least says where."""

from __future__ import annotations

import faulthandler
import io

import pytest

from flatout.loader.mount import open_as
from flatout.store import StoreReader


@pytest.mark.parametrize(
    ("how", "is_on", "wanted"), [("mmap", False, 1), ("mmap", True, 0), ("pread", False, 0)]
)
def test_a_mapped_store_turns_the_fault_handler_on(
    store: StoreReader, monkeypatch: pytest.MonkeyPatch, how: str, is_on: bool, wanted: int
) -> None:
    enabled: list[bool] = []
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: is_on)
    monkeypatch.setattr(faulthandler, "enable", lambda: enabled.append(True))
    open_as(store, how)
    assert len(enabled) == wanted


@pytest.mark.parametrize("stderr", [None, io.StringIO()])
def test_without_a_stderr_it_stays_off(
    store: StoreReader, monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None
) -> None:
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)
    monkeypatch.setattr("sys.stderr", stderr)
    assert open_as(store, "mmap").files is None
