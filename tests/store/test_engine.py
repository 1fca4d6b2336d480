"""Engines: which one a config asks for, and that none changes a byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import load_config
from flatout.store.engine import InCaller, count_workers, make_engine
from flatout.store.job import job_from_config, row_task
from flatout.store.pool import LocalPool
from flatout.store.specify import specify
from flatout.store.task import TaskSetup

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


def test_in_the_caller_rows_are_told_as_they_are_made(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    with InCaller() as engine:
        monkeypatch.setattr("flatout.store.engine.TELL_S", -1.0)
        config = load_config(source.config())
        job = job_from_config(config)
        fields = specify(job.sections, job.kinds, engine.describe(job.maker, job.manifest.rows(range(8))))
        setup = TaskSetup(job.maker, fields, "", is_dry=True)
        tasks = [row_task(job, 0, np.arange(5)), row_task(job, 1, np.arange(5, 12))]
        assert len(list(engine.run(setup, tasks, told.append))) == 2
    assert told == [1] * 12
