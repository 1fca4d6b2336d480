"""The HDF5 skeleton: alignment, places, plainness, and the sparse file under it."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.store.compress import compress
from flatout.store.skeleton import (
    ALIGNMENT,
    TIGHT_ALIGNMENT,
    DatasetPlan,
    Skeleton,
    _lay_out,
    _SparseFile,
    lay_out,
)

PLANS = [
    DatasetPlan("flatout/key_hash", np.dtype("<u8"), (3,), is_table=True),
    DatasetPlan("flatout/crc/x", np.dtype("<u4"), (1,), is_table=True),
    DatasetPlan("x", np.dtype("<f4"), (3, 5, 7)),
    DatasetPlan("series/values", np.dtype("|u1"), (11,)),
    DatasetPlan("empty", np.dtype("<f8"), (3, 0)),
]


def image_of(skeleton: Skeleton, arrays: dict[str, Any] | None = None) -> bytes:
    image = bytearray(skeleton.size)
    for offset, piece in skeleton.pieces:
        image[offset : offset + len(piece)] = piece
    for path, array in (arrays or {}).items():
        offset = skeleton.offsets[path]
        assert offset is not None
        image[offset : offset + array.nbytes] = array.tobytes()
    return bytes(image)


def test_arrays_put_at_their_offsets_are_what_h5py_reads() -> None:
    skeleton = lay_out(PLANS, {"format": "flatout-shard"})
    x = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("<f4")
    with h5py.File(io.BytesIO(image_of(skeleton, {"x": x})), "r") as file:
        np.testing.assert_array_equal(file["x"][:], x)
        assert file["empty"].shape == (3, 0)
        assert file.attrs["format"] == "flatout-shard"


def test_data_starts_on_a_page_and_nothing_meets_anything() -> None:
    skeleton = lay_out(PLANS, {})
    assert (ALIGNMENT, TIGHT_ALIGNMENT) == (4096, 64)
    spans = [(at, at + len(piece)) for at, piece in skeleton.pieces]
    for plan in PLANS:
        offset = skeleton.offsets[plan.path]
        if plan.path == "empty":
            assert offset is None
            continue
        assert offset is not None
        assert offset % (64 if plan.is_table else 4096) == 0
        spans.append((offset, offset + int(np.prod(plan.shape)) * plan.dtype.itemsize))
    spans.sort()
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert spans[-1][1] <= skeleton.size


def test_the_metadata_itself_is_small_however_large_the_datasets() -> None:
    plans = [DatasetPlan("x", np.dtype("<f4"), (1 << 20, 1 << 20))]
    skeleton = lay_out(plans, {})
    assert skeleton.size > 4 << 40
    assert sum(len(piece) for _, piece in skeleton.pieces) < 8192


def test_a_shard_of_a_few_tiny_samples_is_small() -> None:
    tables = [DatasetPlan(f"flatout/t{n}", np.dtype("<u8"), (3,), is_table=True) for n in range(10)]
    assert lay_out([*tables, DatasetPlan("x", np.dtype("<f4"), (3,))], {}).size < 32768


def test_equal_plans_give_equal_bytes_without_any_time() -> None:
    first, second = lay_out(PLANS, {"version": 1}), lay_out(PLANS, {"version": 1})
    assert first.pieces == second.pieces
    with h5py.File(io.BytesIO(image_of(first)), "r") as file:
        for name in ("x", "series", "series/values", "flatout/crc"):
            assert h5py.h5g.get_objinfo(file.id, name.encode()).mtime == 0


def test_old_readers_open_it() -> None:
    skeleton = lay_out(PLANS, {})
    with h5py.File(io.BytesIO(image_of(skeleton)), "r") as file:
        creation = file.id.get_create_plist()
        superblock, *_ = creation.get_version()
        assert superblock == 0
        assert creation.get_userblock() == 0


@pytest.mark.parametrize("method", ["zstd", "gzip"])
def test_chunks_stand_where_the_skeleton_says(method: str) -> None:
    rows = [np.full((2, 3), row, "<i4") for row in range(5)]
    chunks = [compress(method, row) for row in rows]
    plans = [*PLANS, DatasetPlan("packed", np.dtype("<i4"), (5, 2, 3), method, chunks)]
    skeleton = lay_out(plans, {})
    image = image_of(skeleton)
    assert skeleton.offsets["packed"] is None
    for chunk, (offset, size) in zip(chunks, skeleton.chunk_places["packed"].tolist(), strict=True):
        assert image[offset : offset + size] == chunk
    assert all(skeleton.offsets[plan.path] == lay_out(PLANS, {}).offsets[plan.path] for plan in PLANS)


@pytest.mark.parametrize("shape", [(2, 0), (2, 3, 0)])
def test_an_empty_compressed_dataset_has_no_chunks(shape: tuple[int, ...]) -> None:
    skeleton = lay_out([DatasetPlan("x", np.dtype("<f4"), shape, "zstd", [b"", b""])], {})
    assert skeleton.offsets["x"] is None
    assert skeleton.chunk_places["x"].tolist() == [[0, 0], [0, 0]]
    with h5py.File(io.BytesIO(image_of(skeleton)), "r") as file:
        assert file["x"].shape == shape


def test_shards_of_one_form_share_a_skeleton_that_is_laid_out_once() -> None:
    first = lay_out(PLANS, {"format": "a"})
    assert lay_out([replace(plan) for plan in PLANS], {"format": "a"}) is first
    assert lay_out(PLANS, {"format": "b"}).pieces != first.pieces
    for change in ({"shape": (4,)}, {"dtype": np.dtype("<i8")}, {"path": "flatout/more"}, {"is_table": False}):
        other = [replace(PLANS[0], **change), *PLANS[1:]]
        assert lay_out(other, {"format": "a"}).pieces == _lay_out(other, {"format": "a"}).pieces != first.pieces
    again = _lay_out(PLANS, {"format": "a"})
    assert (again.pieces, again.offsets, again.size) == (first.pieces, first.offsets, first.size)


def test_compressed_chunks_are_placed_anew() -> None:
    plans = [
        DatasetPlan("x", np.dtype("|u1"), (1, 4), "gzip", [compress("gzip", np.full((4,), n, np.uint8))])
        for n in range(2)
    ]
    assert lay_out(plans[:1], {}).pieces != lay_out(plans[1:], {}).pieces


Step = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 60), st.binary(max_size=20)),
    st.tuples(st.just("read"), st.integers(0, 60), st.integers(0, 30)),
    st.tuples(st.just("truncate"), st.integers(0, 60), st.none()),
)


@given(steps=st.lists(Step, max_size=25))
def test_the_sparse_file_behaves_as_a_file(steps: list[Any]) -> None:
    sparse, plain = _SparseFile(), bytearray()
    for name, at, value in steps:
        sparse.seek(at)
        if name == "write" and value:
            assert sparse.write(value) == len(value)
            plain.extend(bytes(max(0, at - len(plain))))
            plain[at : at + len(value)] = value
        elif name == "truncate":
            sparse.truncate(at)
            plain[at:] = bytes(max(0, at - len(plain)))
        elif name == "read":
            assert sparse.read(value) == bytes(plain[at : at + value]).ljust(value, b"\0")
        assert sparse.size == len(plain)
    image = bytearray(sparse.size)
    for at, piece in sparse.pieces():
        image[at : at + len(piece)] = piece
    assert image == plain
    starts = sparse.pieces()
    assert all(at + len(piece) <= after for (at, piece), (after, _) in pairwise(starts))
