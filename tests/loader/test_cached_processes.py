"""A cache that workers, programs and threads fill together, and that some of them leave by being killed."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.caching import (
    NUM_ITEMS,
    WAIT_S,
    assert_all,
    assert_item,
    cached,
    decoded,
    entries,
    expected,
)
from tests.loader.caching import items as items
from torch.utils.data import DataLoader

from flatout.store import verify
from flatout.store.fill import known


@pytest.mark.parametrize(
    ("method", "persistent"), [("fork", False), ("fork", True), ("spawn", True)], ids=lambda value: str(value)
)
def test_workers_fill_it_together(items: Any, tmp_path: Path, method: str, persistent: bool) -> None:
    dataset = cached(items(), tmp_path / "cache", shard_bytes=10_000 if persistent else 1 << 20)
    loader: Any = DataLoader(
        dataset,
        batch_size=5,
        shuffle=True,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context=method,
    )
    for epoch in range(3):
        names = []
        for batch in loader:
            names += batch["name"]
            for signal, name in zip(batch["signal"], batch["name"], strict=True):
                assert torch.equal(signal, expected(int(name.split()[1]))["signal"])
        assert sorted(names) == sorted(f"item {at}" for at in range(NUM_ITEMS))
        if epoch == 0:
            assert sorted(decoded(tmp_path)) == list(range(NUM_ITEMS))
    del loader
    gc.collect()
    assert dataset.is_complete
    assert verify(tmp_path / "cache")
    if not persistent:
        assert len(decoded(tmp_path)) == NUM_ITEMS


def fill(dataset: Any, folder: Path, step: int, shard_bytes: int) -> None:
    """What each of several programs does, in an order of its own."""
    chosen = cached(dataset, folder, shard_bytes=shard_bytes)
    for at in range(NUM_ITEMS):
        assert_item(chosen[at * step % NUM_ITEMS], at * step % NUM_ITEMS)


def start(*arguments: Any) -> Any:
    program = get_context("fork").Process(target=fill, args=arguments)
    program.start()
    return program


def test_two_programs_at_once(items: Any, tmp_path: Path) -> None:
    programs = [start(items(wait_s=0.002), tmp_path / "cache", step, 8_000) for step in (1, 7)]
    for program in programs:
        program.join(WAIT_S)
    assert [program.exitcode for program in programs] == [0, 0]
    dataset = cached(items(), tmp_path / "cache")
    assert dataset.is_complete
    assert verify(tmp_path / "cache")
    before = len(decoded(tmp_path))
    assert_all(dataset)
    assert len(decoded(tmp_path)) == before <= 2 * NUM_ITEMS


def test_what_another_has_written_is_not_written_again(items: Any, tmp_path: Path) -> None:
    one, other = (cached(items(), tmp_path / "cache") for _ in range(2))
    for at in (0, 1):
        one[at]
        other[at + 1]
    one.close()
    other.close()
    assert one.num_cached == other.num_cached == 3
    assert [entry.add[0].meta.rows for entry in entries(tmp_path / "cache")] == [2, 1]


def test_a_killed_program_leaves_what_it_wrote(items: Any, tmp_path: Path) -> None:
    program = start(items(wait_s=0.01), tmp_path / "cache", 1, 8_000)
    try:
        deadline = time.monotonic() + WAIT_S
        while len(entries(tmp_path / "cache")) < 2:
            assert time.monotonic() < deadline
            assert program.is_alive()
            time.sleep(0.005)
    finally:
        program.kill()
        program.join(WAIT_S)
    dataset = cached(items(), tmp_path / "cache")
    kept = dataset.num_cached
    assert 2 <= kept < NUM_ITEMS
    before = len(decoded(tmp_path))
    assert_all(dataset)
    assert len(decoded(tmp_path)) == before + NUM_ITEMS - kept
    assert verify(tmp_path / "cache")


@pytest.mark.parametrize("cut", [1, 60, 200])
def test_a_line_torn_by_a_kill_takes_no_other_with_it(items: Any, tmp_path: Path, cut: int) -> None:
    dataset = cached(items(), tmp_path / "cache", shard_bytes=1)
    dataset[0]
    (log,) = (tmp_path / "cache").glob("cache-*.jsonl")
    with open(log, "ab") as file:
        file.write(log.read_bytes()[:cut])
    dataset[1]
    again = cached(items(), tmp_path / "cache")
    assert again.num_cached == 2
    assert_all(again)


def test_a_program_that_just_ends_has_written_everything(items: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "slow_items.py", "cache", str(tmp_path / "notes")]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=WAIT_S)
    assert cached(items(), tmp_path / "cache").num_cached == NUM_ITEMS - 1


def test_a_dataset_that_is_dropped_has_written_everything(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    dataset[0]
    del dataset
    gc.collect()
    assert cached(items(), tmp_path / "cache").num_cached == 1


def test_a_forked_child_writes_only_its_own(items: Any, tmp_path: Path) -> None:
    dataset = cached(items(), tmp_path / "cache")
    dataset[0]
    if (child := os.fork()) == 0:
        dataset[1]
        dataset.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert cached(items(), tmp_path / "cache").num_cached == 1
    dataset.close()
    assert dataset.num_cached == 2


@pytest.mark.parametrize("max_open", [1, known.MAX_OPEN])
def test_threads_share_it(items: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_open: int) -> None:
    monkeypatch.setattr(known, "MAX_OPEN", max_open)
    before = set(threading.enumerate())
    dataset = cached(items(), tmp_path / "cache", shard_bytes=4000)
    errors: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            for at in random.Random(seed).sample(range(NUM_ITEMS), NUM_ITEMS):
                assert_item(dataset[at], at)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not errors
    assert verify(tmp_path / "cache")
    assert not set(threading.enumerate()) - before
