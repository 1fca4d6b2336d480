"""The order of a prepare's steps: what can be done at the same time is."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from flatout.errors import ManifestError
from flatout.store import DataPreprocessor
from flatout.store.pool import LocalPool


def test_workers_start_before_the_manifest_is_read_and_end_if_it_cannot_be(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    enter = LocalPool.__enter__

    def entered(pool: LocalPool) -> LocalPool:
        found = enter(pool)
        started.extend(worker.pid for worker in pool._workers)
        return found

    monkeypatch.setattr(LocalPool, "__enter__", entered)
    source.manifest.unlink()
    with pytest.raises(ManifestError):
        DataPreprocessor(source.config(num_workers=2)).run()
    assert len(started) == 2
    assert not any(psutil.pid_exists(pid) for pid in started)
