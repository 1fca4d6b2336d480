"""The HDF5 metadata of a shard, laid out in memory: dataset plans in, byte pieces and offsets out.

libhdf5 never writes to the disk: with a full disk injected it crashed the process at 3 of 8 write
positions. Here it writes to a sparse in-memory file that only ever sees metadata (about 2 KB) and, for
compressed fields, the compressed chunks. The arrays are placed by us at the offsets it reserved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import h5py
import numpy as np

ALIGNMENT = 4096
"""Every dataset starts on a page. Unaligned, np.take copies the whole shard for each batch."""
TIGHT_ALIGNMENT = 64
"""Small tables and compressed chunks are copied when they are read: a page each would make a shard of a few
tiny samples 110-200 KB large."""

ZSTD_FILTER = 32015
DEFLATE_FILTER = 1


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """One dataset of a shard: contiguous, or (with `chunks`) one compressed chunk a row."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    compression: str = "none"
    chunks: Iterable[bytes] = ()
    """In row order; taken one at a time, so that they need not all be in memory."""
    is_table: bool = False
    """Small, and read as a whole: needs no page of its own."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """What libhdf5 laid out: its own bytes, each dataset's place, and each chunk's (offset, size)."""

    pieces: list[tuple[int, bytes]]
    offsets: dict[str, int | None]
    chunk_places: dict[str, np.ndarray[Any, Any]]
    size: int


def lay_out(plans: Sequence[DatasetPlan], attributes: dict[str, Any]) -> Skeleton:
    """Reserve a place for every dataset; compressed chunks are placed with their bytes.

    Shards of one form (as many rows, nothing ragged or compressed) have one skeleton, laid out once.
    """
    if any(plan.compression != "none" for plan in plans):
        return _lay_out(plans, attributes)
    return _kept(tuple((p.path, p.dtype.str, p.shape, p.is_table) for p in plans), tuple(attributes.items()))


@lru_cache(maxsize=8)  # 2 ms each, 3 KB; nobody changes one
def _kept(forms: tuple[tuple[str, str, tuple[int, ...], bool], ...], attributes: tuple[Any, ...]) -> Skeleton:
    plans = [DatasetPlan(path, np.dtype(dtype), shape, is_table=t) for path, dtype, shape, t in forms]
    return _lay_out(plans, dict(attributes))


def _lay_out(plans: Sequence[DatasetPlan], attributes: dict[str, Any]) -> Skeleton:
    memory = _SparseFile()
    offsets: dict[str, int | None] = {}
    contiguous = [plan for plan in plans if plan.compression == "none" or _is_empty(plan)]
    with _open(memory, "w", TIGHT_ALIGNMENT) as file:
        file.attrs.update(attributes)
        for plan in contiguous:
            if plan.is_table:
                offsets[plan.path] = _create_contiguous(file, plan)
    with _open(memory, "r+", ALIGNMENT) as file:
        for plan in contiguous:
            if not plan.is_table:
                offsets[plan.path] = _create_contiguous(file, plan)
    places = {plan.path: np.zeros((plan.shape[0], 2), np.int64) for plan in plans if _is_empty(plan)}
    chunked = [plan for plan in plans if plan.compression != "none" and not _is_empty(plan)]
    if chunked:
        with _open(memory, "r+", TIGHT_ALIGNMENT) as file:
            for plan in chunked:
                places[plan.path] = _create_chunked(file, plan)
                offsets[plan.path] = None
    return Skeleton(memory.pieces(), offsets, places, memory.size)


def _is_empty(plan: DatasetPlan) -> bool:
    """Nothing to compress; HDF5 has no chunks without elements."""
    return 0 in plan.shape


def _open(memory: _SparseFile, mode: str, alignment: int) -> Any:
    # Default libver: "latest" writes structures that older readers refuse.
    return h5py.File(memory, mode, alignment_threshold=1, alignment_interval=alignment)


def _create_contiguous(file: Any, plan: DatasetPlan) -> int | None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    dataset = _create(file, plan, creation)
    offset = dataset.get_offset()
    return None if offset is None else int(offset)


def _create_chunked(file: Any, plan: DatasetPlan) -> np.ndarray[Any, Any]:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_chunk((1, *plan.shape[1:]))
    if plan.compression == "zstd":
        import hdf5plugin  # noqa: F401  registers the filter with libhdf5

        creation.set_filter(ZSTD_FILTER, h5py.h5z.FLAG_MANDATORY, (3,))
    else:
        creation.set_deflate(6)
    dataset = _create(file, plan, creation)
    tail = (0,) * (len(plan.shape) - 1)
    for row, chunk in enumerate(plan.chunks):
        dataset.write_direct_chunk((row, *tail), chunk)
    places = np.zeros((plan.shape[0], 2), dtype=np.int64)

    def note(info: Any) -> None:
        places[info.chunk_offset[0]] = info.byte_offset, info.size

    dataset.chunk_iter(note)  # asked one by one, libhdf5 looks through all chunks each time
    return places


def _create(file: Any, plan: DatasetPlan, creation: Any) -> Any:
    creation.set_obj_track_times(False)  # a time would make equal shards differ
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(plan.shape)
    kind = h5py.h5t.py_create(plan.dtype)
    return h5py.h5d.create(file.id, plan.path.encode(), kind, space, creation, links)


class _SparseFile:
    """A file object for h5py that keeps what is written as pieces and never allocates the holes."""

    def __init__(self) -> None:
        self.size = 0
        self._position = 0
        self._starts: list[int] = []
        self._pieces: dict[int, bytes] = {}

    def pieces(self) -> list[tuple[int, bytes]]:
        """(offset, bytes) in file order, without overlaps."""
        return [(start, self._pieces[start]) for start in self._starts]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        start, piece = self._position, bytes(data)
        self._forget(start, start + len(piece))
        self._keep(start, piece)
        self._position = start + len(piece)
        self.size = max(self.size, self._position)
        return len(piece)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        self._forget(self.size, 1 << 62)
        return self.size

    def flush(self) -> None:
        return

    def read(self, size: int = -1) -> bytes:
        buffer = bytearray(self.size - self._position if size < 0 else size)
        self.readinto(buffer)
        return bytes(buffer)

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        start, stop = self._position, self._position + len(target)
        target[:] = bytes(len(target))
        for at in self._touched(start, stop):
            piece = self._pieces[at]
            low, high = max(at, start), min(at + len(piece), stop)
            target[low - start : high - start] = piece[low - at : high - at]
        self._position = stop
        return len(target)

    def _keep(self, start: int, piece: bytes) -> None:
        insort(self._starts, start)
        self._pieces[start] = piece

    def _touched(self, start: int, stop: int) -> list[int]:
        """Starts of the pieces that overlap [start, stop)."""
        first = bisect_right(self._starts, start) - 1
        found = self._starts[max(first, 0) : bisect_left(self._starts, stop)]
        return [at for at in found if at + len(self._pieces[at]) > start]

    def _forget(self, start: int, stop: int) -> None:
        """Drop what stands in [start, stop)."""
        for at in self._touched(start, stop):
            piece = self._pieces.pop(at)
            self._starts.remove(at)
            if at < start:
                self._keep(at, piece[: start - at])
            if at + len(piece) > stop:
                self._keep(stop, piece[stop - at :])
