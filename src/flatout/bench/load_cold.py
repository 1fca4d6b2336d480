"""Cold data: nothing in the page cache, or more data than memory; against one sequential read of the bytes."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from flatout.bench.load_data import write_store
from flatout.errors import FlatoutError
from flatout.loader import FastDataLoader
from flatout.loader.local import ShardLocal
from flatout.store import StoreReader
from flatout.store.metadata import SHARD_FOLDER
from flatout.store.task import SHARD_BYTES
from flatout.types import FieldSpec

ROW_BYTES = {"16KB": 16_000, "150KB": 150_528}
COLD_BYTES = 1 << 30
"""Of each store that is read cold."""
COLD_SHARDS = 256
"""Of such a store, 16 windows of the shard-local order: in one window it would be the global one."""
READ_BYTES = 4 << 20
ROWS_AHEAD = 256
CGROUP = Path("/sys/fs/cgroup")
CAPPED_BYTES = 1 << 30
STORE_BYTES = 6 * 10**9
CAPPED_HOW = ("sequential", "global")
CANNOT_JOIN = 77
"""With this a process ends that cannot be put into its control group."""


class NoCapError(Exception):
    """Memory cannot be limited here; the message says why."""


def measure_cold(scratch: Path, rounds: int, num_bytes: int = COLD_BYTES) -> dict[str, Any]:
    """MB/s of global and shard-local order as a ratio to a sequential read, for small and large rows."""
    found: dict[str, Any] = {}
    for name, row_bytes in ROW_BYTES.items():
        rows_per_shard = max(1, num_bytes // row_bytes // COLD_SHARDS)
        store = _rows_store(scratch / f"cold-{name}", row_bytes, num_bytes, rows_per_shard)
        seconds: dict[str, list[float]] = {"sequential": [], "announced": [], "global": [], "shard_local": []}
        for _ in range(rounds):
            for how, times in seconds.items():
                drop_cache(store)
                started = time.perf_counter()
                _read(store, how, row_bytes)
                times.append(time.perf_counter() - started)
        rates = {how: num_bytes / median(times) / 1e6 for how, times in seconds.items()}
        found[name] = {"mb_per_s": rates}
        found[name] |= {how: rates[how] / rates["sequential"] for how in ("announced", "global", "shard_local")}
    return found


def _read(store: Path, how: str, row_bytes: int) -> None:
    if how == "sequential":
        _read_all(store)
    elif how == "announced":
        _read_announced(store, row_bytes)
    else:
        _load_all(store, how)


def measure_capped(
    scratch: Path, rounds: int = 1, num_bytes: int = STORE_BYTES, cap_bytes: int = CAPPED_BYTES
) -> dict[str, Any]:
    """The same in a process that may have far less memory than the store has bytes.

    Raises:
        FlatoutError: it was killed, for want of memory or otherwise. Only where no limit can be set at all is
            the measurement skipped.
    """
    row_bytes = ROW_BYTES["150KB"]
    store = _rows_store(scratch / "capped", row_bytes, num_bytes, SHARD_BYTES // row_bytes)
    found: dict[str, list[float]] = {how: [] for how in CAPPED_HOW}
    try:
        for _ in range(rounds):
            for how, each in found.items():
                with _memory_cap(cap_bytes) as join:
                    each.append(_capped_rate(store, how, join))
    except NoCapError as error:
        return {"skipped": f"no memory cgroup can be made here: {error}"}
    rates = {how: median(each) for how, each in found.items()}
    return {"mb_per_s": rates, "ratio": rates["global"] / rates["sequential"]}


def drop_cache(store: Path) -> None:
    """Make the system forget the pages of every shard; those that a loader still maps would stay."""
    gc.collect()
    for path in _shard_paths(store):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _rows_store(folder: Path, row_bytes: int, num_bytes: int, rows_per_shard: int) -> Path:
    pool = np.random.default_rng(0).integers(0, 256, row_bytes + 4096, np.uint8)
    samples = ({"x": pool[n % 4096 : n % 4096 + row_bytes]} for n in range(num_bytes // row_bytes))
    return write_store(folder, [FieldSpec("x", "array", "uint8", (row_bytes,))], samples, rows_per_shard)


def _shard_paths(store: Path) -> list[Path]:
    return sorted((store / SHARD_FOLDER).iterdir())


def _read_all(store: Path) -> None:
    buffer = bytearray(READ_BYTES)
    for path in _shard_paths(store):
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while file.readinto(buffer):
                pass


def _read_announced(store: Path, row_bytes: int) -> None:
    """Rows in random order, each announced ahead and then read: what the disk can do, with no loader."""
    files = [os.open(path, os.O_RDONLY) for path in _shard_paths(store)]
    starts = [(file, at) for file in files for at in range(0, os.fstat(file).st_size - row_bytes, row_bytes)]
    order = [starts[at] for at in np.random.default_rng(1).permutation(len(starts)).tolist()]
    for number in range(-ROWS_AHEAD, len(order)):
        if number + ROWS_AHEAD < len(order):
            file, at = order[number + ROWS_AHEAD]
            os.posix_fadvise(file, at, row_bytes, os.POSIX_FADV_WILLNEED)
        if number >= 0:
            file, at = order[number]
            os.pread(file, row_bytes, at)
    for file in files:
        os.close(file)


def _load_all(folder: Path, how: str) -> None:
    store = StoreReader(folder)
    order = ShardLocal.of(store.numbers["shard"], seed=1) if how == "shard_local" else None
    loader = FastDataLoader(store, 64, shuffle=order is None, order=order)
    for _ in loader:
        pass
    loader.close()


@contextmanager
def _memory_cap(num_bytes: int) -> Iterator[Path]:
    """A control group with a memory limit; the file through which a process joins it.

    Raises:
        NoCapError: there is none to be had.
    """
    is_unified = (CGROUP / "cgroup.controllers").exists()
    group = (CGROUP if is_unified else CGROUP / "memory") / f"flatout-bench-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise NoCapError(str(error)) from error
    try:
        try:
            (group / ("memory.max" if is_unified else "memory.limit_in_bytes")).write_text(str(num_bytes))
        except OSError as error:
            raise NoCapError(str(error)) from error
        yield group / "cgroup.procs"
    finally:
        with suppress(OSError):  # an empty group that is left takes nothing
            group.rmdir()


def _capped_rate(store: Path, how: str, join: Path) -> float:
    drop_cache(store)
    done = subprocess.run(
        [sys.executable, "-m", "flatout.bench.load_cold", str(store), how, str(join)],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.strip()[-500:]
    if done.returncode == CANNOT_JOIN:
        raise NoCapError(said)
    if done.returncode:
        why = " (killed: it took more memory than it may have)" if done.returncode == -signal.SIGKILL else ""
        raise FlatoutError(f"capped, {how}: the process ended with {done.returncode}{why}: {said}")
    return float(json.loads(done.stdout))


def main() -> None:
    """Join the group, read once, print MB/s."""
    store, how, join = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    try:
        join.write_text(str(os.getpid()))
    except OSError as error:
        sys.stderr.write(str(error))
        sys.exit(CANNOT_JOIN)
    started = time.perf_counter()
    _read_all(store) if how == "sequential" else _load_all(store, how)
    seconds = time.perf_counter() - started
    sys.stdout.write(json.dumps(sum(path.stat().st_size for path in _shard_paths(store)) / seconds / 1e6))


if __name__ == "__main__":
    main()
