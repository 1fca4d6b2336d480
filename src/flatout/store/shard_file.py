"""The shard as a file: bytes in file order, hashed as they are written, and a check through libhdf5."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import h5py

from flatout.errors import StoreCorruptError
from flatout.store import layout
from flatout.store.checks import shard_hasher
from flatout.store.files import NEW_FILE, Buffer, write_all
from flatout.store.metadata import ShardMeta
from flatout.store.past_cache import ask_for_direct, in_pieces, write_piece
from flatout.store.shard_look import is_as_planned
from flatout.store.skeleton import DEFLATE_FILTER, ZSTD_FILTER, Skeleton
from flatout.types import FieldSpec

MAX_DEPTH = 2
"""Groups within groups in a shard: flatout/crc/FIELD."""
SMALL_BYTES = 1 << 14
TOGETHER_BYTES = 1 << 17
"""Buffers below the one size are written together, up to about the other: a shard has 60 of 100 bytes."""


def in_file_order(skeleton: Skeleton, data: Mapping[int, Iterable[Buffer]]) -> Iterator[memoryview]:
    """Every byte of the file from first to last; holes are zeros."""
    position = 0
    places: list[tuple[int, Iterable[Buffer]]] = [*data.items()]
    places += [(offset, [piece]) for offset, piece in skeleton.pieces]
    for offset, buffers in sorted(places, key=lambda place: place[0]):
        if offset < position:
            raise AssertionError(f"two pieces of a shard overlap at {offset}")
        for buffer in chain([bytes(offset - position)], buffers):  # buffers are made one at a time
            view = memoryview(buffer).cast("B")
            position += len(view)
            yield view
    yield memoryview(bytes(skeleton.size - position))


def write_hashed(
    path: Path, buffers: Iterable[memoryview], *, safe: bool = True, past_cache: bool = False
) -> str:
    """Write a new file; its hash out. Unsafe: no hash, a random name.

    Args:
        past_cache: straight to the disk, where the filesystem can do so.
    """
    hasher = shard_hasher()
    descriptor = os.open(path, NEW_FILE, 0o666)
    try:
        is_direct = past_cache and ask_for_direct(descriptor)
        write = write_piece if is_direct else write_all
        for buffer in in_pieces(buffers) if is_direct else _fewer(buffers):
            if safe:
                hasher.update(buffer)
            write(descriptor, buffer)
    finally:
        os.close(descriptor)
    return hasher.hexdigest() if safe else secrets.token_hex(16)


def _fewer(buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes in the same order, small buffers joined."""
    waiting = bytearray()
    for buffer in buffers:
        if len(buffer) < SMALL_BYTES:
            waiting += buffer
        if waiting and (len(buffer) >= SMALL_BYTES or len(waiting) >= TOGETHER_BYTES):
            yield memoryview(waiting)
            waiting = bytearray()
        if len(buffer) >= SMALL_BYTES:
            yield buffer
    if waiting:
        yield memoryview(waiting)


def check_through_libhdf5(path: Path, fields: Sequence[FieldSpec], meta: ShardMeta) -> None:
    """Open the file as any other tool would and compare what stands where; refuse what may not be there.

    The caller has checked the file's hash: libhdf5 must not parse bytes nobody vouches for.

    Raises:
        StoreCorruptError: a dataset is missing, elsewhere, of another form, or not plain.
    """
    if is_as_planned(path, fields, meta):
        return
    try:
        with h5py.File(path, "r") as file:
            found = _plain_datasets(file, "")
            _compare_places(dict(zip(layout.dataset_paths(fields), meta.at, strict=True)), found, meta.size)
            _compare_forms(fields, meta.rows, found)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise StoreCorruptError(f"{path}: {error}", str(error)) from error


def _compare_places(wanted: Mapping[str, int | None], found: Mapping[str, Any], size: int) -> None:
    if missing := set(wanted) ^ set(found):
        raise ValueError(f"datasets differ from the layout: {sorted(missing)}")
    for name, offset in wanted.items():
        dataset = found[name]
        actual = dataset.id.get_offset() if dataset.chunks is None else None
        if actual != offset:
            raise ValueError(f"dataset {name} stands at {actual}, not at {offset}")
        if actual is not None and actual + dataset.nbytes > size:
            raise ValueError(f"dataset {name} has {dataset.nbytes:,} bytes and leaves the file")


def _compare_forms(fields: Sequence[FieldSpec], rows: int, found: Mapping[str, Any]) -> None:
    """Dtypes, and the shapes that the number of rows gives."""
    dtypes = {**layout.table_dtypes(fields), **{layout.data_path(spec): spec.stored_dtype for spec in fields}}
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((layout.KEY_HASH, layout.DIGEST, layout.PART), (rows,))
    shapes |= {spec.name: (rows, *(n or 0 for n in spec.shape)) for spec in fields if not spec.is_ragged}
    for path, dtype in dtypes.items():
        dataset = found[path]
        if dataset.dtype != dtype or dataset.shape != shapes.get(path, dataset.shape):
            raise ValueError(
                f"dataset {path} is {dataset.dtype} {dataset.shape}; wanted {dtype} {shapes.get(path, '')}"
            )


def _plain_datasets(group: Any, prefix: str) -> dict[str, Any]:
    """Path -> dataset of a file that has nothing but plain groups and datasets."""
    if prefix.count("/") > MAX_DEPTH:
        raise ValueError(f"{prefix} is nested deeper than any layout: refused")  # a group may hold itself
    found = {}
    for name in group:
        path, link = f"{prefix}{name}", group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{path} is a {type(link).__name__}: links out of a shard are refused")
        item = group[name]
        if isinstance(item, h5py.Group):
            found.update(_plain_datasets(item, f"{path}/"))
        elif isinstance(item, h5py.Dataset):
            _check_plain(path, item)
            found[path] = item
        else:
            raise ValueError(f"{path} is a {type(item).__name__}")
    return found


def _check_plain(path: str, dataset: Any) -> None:
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"{path} keeps its data in other files: refused")
    creation = dataset.id.get_create_plist()
    filters = [creation.get_filter(at)[0] for at in range(creation.get_nfilters())]
    if unknown := set(filters) - {ZSTD_FILTER, DEFLATE_FILTER}:
        raise ValueError(f"{path} uses unknown filters {sorted(unknown)}: refused")
