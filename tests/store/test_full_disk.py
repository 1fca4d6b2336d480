"""A disk that is full or fails: a clean error that names the place, the old version whole, and a way on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.crashing import (
    Nursery,
    Source,
    TinyUpdate,
    can_trace,
    check_finished,
    copied,
    fast_folder,
    left_over,
    shard_hashes,
    traced,
)

from flatout.errors import StoreError, StoreSpaceError
from flatout.store import compact
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader
from flatout.store.verification import verify

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def nursery(base: Path) -> Iterator[Nursery]:
    with Nursery(base) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def tiny(base: Path, nursery: Nursery) -> TinyUpdate:
    return TinyUpdate(nursery, base / "tiny")


def some(every: int) -> list[object]:
    """Every so many points by default, all of them with the slow tests."""
    return [every, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


@pytest.mark.skipif(not can_trace(), reason="strace is absent or may not trace here")
class TestEveryCall:
    """One system call after another fails, as on a full, a broken and a busy disk."""

    @pytest.mark.parametrize("every", some(11))
    def test_no_space(self, nursery: Nursery, tiny: TinyUpdate, tmp_path: Path, base: Path, every: int) -> None:
        for call, count in tiny.points[every // 3 :: every]:
            message = self._fail(nursery, tiny, base, f"{call}:error=ENOSPC:when={count}")
            if message is not None:
                assert re.match(rf"StoreSpaceError: {base}/store: .*[0-9,]+ bytes are free", message), message
                assert "run the same command again" in message

    @pytest.mark.parametrize("every", some(23))
    def test_broken(self, nursery: Nursery, tiny: TinyUpdate, base: Path, every: int) -> None:
        for call, count in tiny.points[every // 3 :: every]:
            message = self._fail(nursery, tiny, base, f"{call}:error=EIO:when={count}")
            if message is not None:
                assert re.match(rf"StoreError: {base}/store.*: ", message), message

    @pytest.mark.parametrize("every", some(31))
    def test_interrupted(self, nursery: Nursery, tiny: TinyUpdate, base: Path, every: int) -> None:
        """A call that a signal cut short is made again, by Python, Arrow or us; else the error is clean."""
        for call, count in tiny.points[every // 3 :: every]:
            message = self._fail(nursery, tiny, base, f"{call}:error=EINTR:when={count}")
            assert message is None or call in ("rename", "unlink")

    def _fail(self, nursery: Nursery, tiny: TinyUpdate, base: Path, inject: str) -> str | None:
        """The error's text, or None if the run did not need that call. Then all is well in any case."""
        store = copied(tiny.before, base / "store")
        run = traced(nursery, tiny.settings(store), base / "trace", inject)
        assert "(INJECTED)" in (base / "trace").read_text()
        assert run.code in (0, 1), f"{inject}: exit {run.code}: {run.text()}"
        assert "Traceback" not in run.text()
        tiny.check_cut_off(store)
        if "unlink" not in inject:
            assert not [name for name in left_over(store) if name.endswith((".tmp", ".lock"))]
        nursery.finish(tiny.settings(store))
        tiny.check_finished(store)
        shutil.rmtree(store)
        return run.text() if run.code else None


@pytest.fixture
def many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards even for small samples."""
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("many_shards")
def test_a_disk_that_is_full(small_disk: Path, tmp_path: Path, num_workers: int) -> None:
    """The first rows are small, so that the run is let in; then the disk is really full."""
    rows = np.random.default_rng(0).random((60, 100_000))
    lengths = [100] * 10 + [100_000] * 50
    paths = []
    for number, length in enumerate(lengths):
        np.save(tmp_path / f"{number}.npy", rows[number, :length])
        paths.append(f"{number}.npy")
    settings = {
        "manifest": str(tmp_path / "rows.csv"),
        "preprocessed_data_dir": str(small_disk / "store"),
        "fields": {"x": {"kind": "array", "column": "path", "ragged": True}},
        "num_workers": num_workers,
    }
    (tmp_path / "rows.csv").write_text("\n".join(["path", *paths[:10]]) + "\n")
    old = DataPreprocessor(settings).run()
    (tmp_path / "rows.csv").write_text("\n".join(["path", *paths]) + "\n")

    with pytest.raises(StoreSpaceError, match=rf"{small_disk}/store: .*bytes are free.*to continue") as caught:
        DataPreprocessor(settings).run()
    assert int(re.findall(r"([0-9,]+) bytes are free", str(caught.value))[0].replace(",", "")) < 4 << 20
    assert verify(small_disk / "store").content_hash == old.content_hash
    assert len(StoreReader(small_disk / "store")) == 10
    finished = set(shard_hashes(small_disk / "store"))

    subprocess.run(["mount", "-o", "remount,size=128m", small_disk], check=True)
    DataPreprocessor(settings).run()

    report = verify(small_disk / "store")
    assert report, report.damage
    assert report.num_samples == 60
    assert len(finished) > 10
    assert finished <= set(shard_hashes(small_disk / "store"))
    reader = StoreReader(small_disk / "store")
    assert all(np.array_equal(reader.read(at)["x"], rows[at, : lengths[at]]) for at in range(60))


class TestFreeSpace:
    """Asked before anything is made."""

    def test_need_and_free_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = Source(tmp_path / "source")
        source.add(range(100))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 123_456, 123_456))

        with pytest.raises(StoreSpaceError) as caught:
            DataPreprocessor(source.settings(tmp_path / "store")).run()

        wanted = r"/store: about 1,[0-9]{3},[0-9]{3} bytes \(1\.\d MiB\) are needed, "
        wanted += r"123,456 bytes \(120\.6 KiB\) are free"
        assert re.search(wanted, str(caught.value))
        assert not (tmp_path / "store").exists()

    def test_nothing_to_do_needs_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = Source(tmp_path / "source")
        source.add(range(5))
        settings = source.settings(tmp_path / "store")
        DataPreprocessor(settings).run()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 0))

        assert DataPreprocessor(settings).run().unchanged == 5


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(tmp_path / "source")
    source.add(range(20))
    DataPreprocessor(source.settings(tmp_path / "whole")).run()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:100]))

    DataPreprocessor(source.settings(tmp_path / "store")).run()

    check_finished(tmp_path / "store", source.model)
    assert shard_hashes(tmp_path / "store") == shard_hashes(tmp_path / "whole")


@pytest.mark.parametrize("name", ["store", "store/below"])
def test_a_file_in_the_place_of_the_store(tmp_path: Path, name: str) -> None:
    source = Source(tmp_path / "source")
    source.add(range(5))
    (tmp_path / "store").write_text("a file")

    with pytest.raises(StoreError, match=r"store.*: (Not a directory|File exists)"):
        DataPreprocessor(source.settings(tmp_path / name)).run()


@pytest.mark.usefixtures("many_shards")
def test_compact_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(tmp_path / "source")
    source.add(range(130))
    settings = source.settings(tmp_path / "store")
    DataPreprocessor(settings).run()
    source.remove(range(0, 130, 2))
    DataPreprocessor(settings).run()
    before = shard_hashes(tmp_path / "store")

    def full(descriptor: int) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreSpaceError):
            compact(tmp_path / "store")

    check_finished(tmp_path / "store", source.model)
    assert shard_hashes(tmp_path / "store") == before
    compact(tmp_path / "store")
    check_finished(tmp_path / "store", source.model)
