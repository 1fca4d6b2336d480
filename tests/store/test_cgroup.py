"""Limits of control groups, read from made-up trees of both versions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flatout.store import pool
from flatout.store.cgroup import Limits, read_limits

GIB = 1 << 30


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "groups").mkdir()
    return tmp_path


def write(tree: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tree / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def limits(tree: Path, membership: str) -> Limits:
    (tree / "self").write_text(membership)
    return read_limits(tree / "groups", tree / "self")


def test_without_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert read_limits(tmp_path / "no", tmp_path / "none") == Limits()


def test_version_2_counts_pages_of_files_as_free(tree: Path) -> None:
    write(
        tree,
        {
            "job/memory.max": f"{4 * GIB}\n",
            "job/memory.current": f"{3 * GIB}\n",
            "job/memory.stat": f"anon 5\nactive_file {GIB}\ninactive_file {GIB}\nfile {7 * GIB}\n",
            "job/cpu.max": "150000 100000\n",
        },
    )
    found = limits(tree, "0::/job\n")
    assert found == Limits(memory_bytes=4 * GIB, free_bytes=3 * GIB, num_cores=2)


def test_the_tightest_group_around_counts(tree: Path) -> None:
    write(
        tree,
        {
            "pod/memory.max": f"{2 * GIB}",
            "pod/memory.current": f"{GIB}",
            "pod/cpu.max": "400000 100000",
            "pod/job/memory.max": "max",
            "pod/job/cpu.max": "max 100000",
        },
    )
    assert limits(tree, "0::/pod/job\n") == Limits(2 * GIB, GIB, 4)


def test_a_container_that_sees_its_own_group_as_the_root(tree: Path) -> None:
    write(tree, {"memory.max": f"{GIB}", "memory.current": "0", "cpu.max": "50000 100000"})
    assert limits(tree, "0::/host/path/that/is/not/here\n") == Limits(GIB, GIB, 1)


def test_version_1(tree: Path) -> None:
    write(
        tree,
        {
            "memory/job/memory.limit_in_bytes": f"{2 * GIB}",
            "memory/job/memory.usage_in_bytes": f"{2 * GIB}",
            "memory/job/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
            "cpu/job/cpu.cfs_quota_us": "300000",
            "cpu/job/cpu.cfs_period_us": "100000",
        },
    )
    assert limits(tree, "4:memory:/job\n1:cpu,cpuacct:/job\n") == Limits(2 * GIB, GIB, 3)


def test_version_1_says_unlimited_with_a_large_number(tree: Path) -> None:
    write(tree, {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/cpu.cfs_quota_us": "-1"})
    assert limits(tree, "4:memory:/\n1:cpu:/\n") == Limits()


def test_an_overdrawn_group_has_nothing_free(tree: Path) -> None:
    write(tree, {"memory.max": "100", "memory.current": "300"})
    assert limits(tree, "0::/\n").free_bytes == 0


@pytest.mark.parametrize(("free", "expected"), [(None, 1000), (400, 400), (5000, 1000)])
def test_the_pool_takes_no_more_than_the_container_has(
    monkeypatch: pytest.MonkeyPatch, free: int | None, expected: int
) -> None:
    monkeypatch.setattr(pool.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr(pool, "read_limits", lambda: Limits(free_bytes=free))
    assert pool.free_memory_bytes() == expected
