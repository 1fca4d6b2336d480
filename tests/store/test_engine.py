"""Engines: which one a config asks for, and that none changes a byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.config import load_config
from flatout.store.engine import InCaller, count_workers, make_engine
from flatout.store.pool import LocalPool

pytestmark = pytest.mark.usefixtures("few_shards")


def test_num_workers_decides() -> None:
    assert isinstance(make_engine(load_config({"num_workers": 0}), []), InCaller)
    pool = make_engine(
        load_config({"num_workers": 3, "preprocess_batch_size": 5, "decode_timeout_s": 7}), ["/somewhere"]
    )
    assert isinstance(pool, LocalPool)
    assert (pool.num_workers, pool.request_rows, pool.timeout_s, pool.sys_path) == (3, 5, 7.0, ["/somewhere"])


def test_auto_is_the_cores_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    assert count_workers(load_config({"num_workers": "auto"})) == 3
    assert count_workers(load_config({"num_workers": 9})) == 9


def test_neither_workers_nor_requests_change_the_store(
    source: Any, all_bytes: Callable[[Path], dict[str, bytes]]
) -> None:
    stores = {}
    for name, settings in {
        "caller": {"num_workers": 0},
        "one": {"num_workers": 1, "preprocess_batch_size": 1},
        "two": {"num_workers": 2, "preprocess_batch_size": 3},
    }.items():
        folder = source.folder / name
        stats = source.prepare(preprocessed_data_dir=str(folder), **settings)
        found = all_bytes(folder)
        parts = {path: data for path, data in found.items() if path.startswith(("shards/", "index-", "quar"))}
        stores[name] = (stats.content_hash, parts)
    assert stores["caller"] == stores["one"] == stores["two"]
    assert len(stores["caller"][1]) == 3 + 1 + 1


def test_progress_adds_up_to_the_rows(source: Any) -> None:
    from flatout.store import DataPreprocessor

    class Told:
        def __init__(self) -> None:
            self.total = self.done = 0

        def begin(self, what: str, total: int) -> None:
            self.total = total

        def advance(self, rows: int) -> None:
            self.done += rows

        def bad(self, rows: int) -> None:
            assert rows == 0

        def say(self, text: str) -> None:
            assert text

    told = Told()
    DataPreprocessor(source.config()).run(progress=told)
    assert (told.total, told.done) == (12, 12)
