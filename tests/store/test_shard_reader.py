"""Reading by offset: damage is named exactly, nonsense is refused, nothing outside is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import StoreCorruptError
from flatout.store import checks, layout, metadata
from flatout.store.announcing import announce_mapped
from flatout.store.byte_source import MappedBytes
from flatout.store.checks import BLOCK_BYTES, tables_crc
from flatout.store.shard_reader import ShardReader
from flatout.types import FieldSpec

LARGE = FieldSpec("large", "array", "float32", (2048,))
SMALL = FieldSpec("small", "array", "uint8", (1000,))
RAGGED = FieldSpec("ragged", "sequence", "float32", (None, 2))
PACKED = FieldSpec("packed", "array", "float32", (None,), compression="zstd")
SHAPED = FieldSpec("shaped", "image", "uint8", (None, None))
SCALED = FieldSpec("scaled", "array", "float32", (8,), encoding="uint8")
FIELDS = (LARGE, SMALL, RAGGED, PACKED, SHAPED, SCALED)
NUM_ROWS = 200


@pytest.fixture
def shard(write_shard: Callable[..., ShardReader]) -> ShardReader:
    generator = np.random.default_rng(0)
    samples = [
        {
            "large": generator.normal(size=2048).astype(np.float32),
            "small": generator.integers(0, 256, 1000, np.uint8),
            "ragged": generator.normal(size=(row % 7 * 100, 2)).astype(np.float32),
            "packed": generator.normal(size=1 + row % 3).astype(np.float32),
            "shaped": generator.integers(0, 256, (row % 4, row % 5), np.uint8),
            "scaled": generator.normal(size=8).astype(np.float32),
        }
        for row in range(NUM_ROWS)
    ]
    return write_shard(FIELDS, samples)


def place(shard: ShardReader, path: str) -> int:
    at = dict(zip(layout.dataset_paths(FIELDS), shard.meta.at, strict=True))[path]
    assert at is not None
    return at


def reopened(shard: ShardReader) -> ShardReader:
    return ShardReader(shard.path, shard.meta, FIELDS)


def test_tables_and_keys(shard: ShardReader) -> None:
    assert len(shard) == NUM_ROWS
    assert shard.keys() == [f"k{row}" for row in range(NUM_ROWS)]
    assert list(shard.tables) == list(layout.table_dtypes(FIELDS))
    assert shard.lengths("ragged").tolist() == [row % 7 * 200 for row in range(NUM_ROWS)]
    assert [shard.shape("ragged", row) for row in (0, 1, 6)] == [(0, 2), (100, 2), (600, 2)]
    assert [shard.shape("shaped", row) for row in (0, 7)] == [(0, 0), (3, 2)]
    assert shard.shape("large", 0) == (2048,)


def test_fixed_data_is_mapped_not_copied(shard: ShardReader) -> None:
    data = shard.data("large")
    assert data.shape == (NUM_ROWS, 2048)
    assert not data.flags.writeable
    assert np.shares_memory(data, shard.data("large"))
    assert data.ctypes.data % 4096 == 0
    copy = shard.read("large", 3)
    assert copy.flags.writeable
    assert not np.shares_memory(copy, data)


@pytest.mark.parametrize("name", ["offsets", "shapes", "values", "flatoutcrc", "key_hash"])
@pytest.mark.parametrize("shape", [(2,), (None,), (None, None)])
def test_any_field_name_is_read_back(write_shard: Callable[..., ShardReader], name: str, shape: Any) -> None:
    spec = FieldSpec(name, "array", "float32", shape, encoding="uint8", compression="zstd")
    array = np.ones([n or 2 for n in shape], np.float32)
    shard = write_shard((spec,), [{name: array}, {name: array}])
    np.testing.assert_array_equal(shard.read(name, 1), array)


def test_another_size_is_refused_at_once(shard: ShardReader) -> None:
    os.truncate(shard.path, shard.meta.size - 1)
    with pytest.raises(StoreCorruptError, match="bytes instead of"):
        reopened(shard)
    shard.path.unlink()
    with pytest.raises(StoreCorruptError, match="No such file"):
        reopened(shard)


def test_a_flipped_bit_in_a_large_sample_names_that_row_alone(
    shard: ShardReader, flip_bit: Callable[..., None]
) -> None:
    row_bytes = 2048 * 4
    for row, byte, bit in ((0, 0, 0), (17, 4097, 7), (NUM_ROWS - 1, row_bytes - 1, 3)):
        at = place(shard, "large") + row * row_bytes + byte
        flip_bit(shard.path, at, bit)
        assert reopened(shard).bad_rows("large") == [row]
        flip_bit(shard.path, at, bit)
    assert reopened(shard).bad_rows("large") == []


def rows_in_block(edges: list[int], block: int) -> list[int]:
    start, stop = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
    return [r for r in range(len(edges) - 1) if any(start <= at < stop for at in range(edges[r], edges[r + 1]))]


def test_a_flipped_bit_among_small_samples_names_the_rows_of_its_block(
    shard: ShardReader, flip_bit: Callable[..., None]
) -> None:
    for name, edges in (
        ("small", [1000 * row for row in range(NUM_ROWS + 1)]),
        ("ragged", (shard.tables["ragged/offsets"] * 4).tolist()),
    ):
        path = layout.data_path(shard.fields[name])
        for byte in (0, BLOCK_BYTES - 1, BLOCK_BYTES, edges[-1] - 1):
            flip_bit(shard.path, place(shard, path) + byte)
            found = reopened(shard).bad_rows(name)
            assert found == rows_in_block(edges, byte // BLOCK_BYTES)
            assert any(edges[row] <= byte < edges[row + 1] for row in found)
            flip_bit(shard.path, place(shard, path) + byte)


def test_a_flipped_bit_in_a_chunk_names_that_row(shard: ShardReader, flip_bit: Callable[..., None]) -> None:
    places = np.array(shard.tables["flatout/chunks/packed"])
    for row, (offset, size) in enumerate(places[:20].tolist()):
        for byte in {0, size // 2, size - 1}:
            flip_bit(shard.path, offset + byte, row % 8)
            found = reopened(shard).bad_rows("packed")
            # A few bits of a zstd frame say nothing (a reserved flag): then every value is as it was.
            assert found in ([row], [])
            if not found:
                assert (
                    checks.crc32c(reopened(shard).stored("packed", row))
                    == shard.tables["flatout/crc/packed"][row]
                )
            flip_bit(shard.path, offset + byte, row % 8)


def test_a_flipped_bit_in_any_table_is_found(shard: ShardReader, flip_bit: Callable[..., None]) -> None:
    generator = np.random.default_rng(1)
    for path, table in shard.tables.items():
        for byte in generator.integers(0, table.nbytes, 4).tolist():
            flip_bit(shard.path, place(shard, path) + byte, byte % 8)
            with pytest.raises(StoreCorruptError):
                _ = reopened(shard).tables
            flip_bit(shard.path, place(shard, path) + byte, byte % 8)
    assert len(reopened(shard).tables) == len(layout.table_dtypes(FIELDS))


def forged(shard: ShardReader, path: str, edit: Callable[[Any], None]) -> ShardReader:
    """The shard with a table changed and a crc that matches it: what a forger would make."""
    tables = {name: np.array(table) for name, table in shard.tables.items()}
    edit(tables[path])
    with open(shard.path, "rb+") as file:
        file.seek(place(shard, path))
        file.write(tables[path].tobytes())
    return ShardReader(shard.path, replace(shard.meta, crc=tables_crc(tables.values())), FIELDS)


def put(index: Any, value: int) -> Callable[[Any], None]:
    def edit(table: Any) -> None:
        table[index] = value

    return edit


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("ragged/offsets", put(0, 5)),
        ("ragged/offsets", put(0, -5)),
        ("ragged/offsets", put(3, -1)),
        ("ragged/offsets", put(3, 10**6)),
        ("ragged/offsets", put(3, 2**62)),
        ("ragged/offsets", put(-1, 2**61)),
        ("ragged/offsets", put(-1, -1)),
        ("ragged/offsets", put(-1, -(2**63))),
        ("packed/offsets", put(2, 0)),
        ("flatout/key_offsets", put(-1, 2**62)),
        ("flatout/key_offsets", put(1, -3)),
        ("flatout/key_offsets", put(1, 10**6)),
        ("shaped/shapes", put((7, 0), 100)),
        ("shaped/shapes", put((7, 0), -3)),
        ("shaped/shapes", put((7, slice(None)), -1)),
        ("shaped/shapes", put((7, slice(None)), 2**31 - 1)),
        ("flatout/chunks/packed", put((3, 0), -64)),
        ("flatout/chunks/packed", put((3, 0), 2**62)),
        ("flatout/chunks/packed", put((3, 1), 2**62)),
        ("flatout/chunks/packed", put((3, 1), -1)),
        ("flatout/chunks/packed", lambda table: table.__setitem__(3, table[4])),
        ("flatout/chunks/packed", lambda table: table.__setitem__((3, 0), table[4, 0] - 1)),
    ],
)
def test_tables_without_sense_are_refused_though_their_crc_matches(
    shard: ShardReader, path: str, edit: Callable[[Any], None]
) -> None:
    with pytest.raises(StoreCorruptError):
        _ = forged(shard, path, edit).tables


@pytest.mark.parametrize("longest", [2**62, 2**40, 1000])
def test_chunks_shorter_than_the_offsets_claim_are_refused(shard: ShardReader, longest: int) -> None:
    hostile = forged(shard, "packed/offsets", put(-1, longest))
    assert hostile.bad_rows("packed") == list(range(NUM_ROWS))
    with pytest.raises(StoreCorruptError):
        hostile.read("packed", 0)


def test_keys_that_are_no_text_are_refused(shard: ShardReader) -> None:
    hostile = forged(shard, "flatout/key_bytes", put(1, 0xFF))
    with pytest.raises(StoreCorruptError, match="not UTF-8"):
        hostile.keys()


def test_a_length_that_is_no_whole_number_of_rows_is_refused(shard: ShardReader) -> None:
    hostile = forged(shard, "ragged/offsets", put(2, 201))
    with pytest.raises(StoreCorruptError, match="row 1 of field 'ragged'"):
        hostile.read("ragged", 1)
    assert 1 in hostile.bad_rows("ragged") or hostile.bad_rows("ragged") == []


def test_places_outside_the_file_are_refused(shard: ShardReader, with_at: Callable[..., Any]) -> None:
    paths = layout.dataset_paths(FIELDS)
    for path in ("large", "small", "ragged/values", "flatout/key_hash", "ragged/offsets"):
        position = paths.index(path)
        last_page = shard.meta.size // 4096 * 4096
        unaligned = -1 if path == "small" else shard.meta.at[position] + 1
        for offset in (shard.meta.size, last_page, 1 << 62, -4096, unaligned, None):
            at = list(shard.meta.at)
            at[position] = offset
            hostile = ShardReader(shard.path, with_at(shard.meta, at), FIELDS)
            with pytest.raises(StoreCorruptError):
                _ = hostile.tables, hostile.data(path.partition("/")[0])


class Noted(MappedBytes):
    """Bytes that note what is announced and what is read."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size)
        self.announced: list[tuple[int, int]] = []
        self.was_read: list[tuple[int, int]] = []

    def read(self, offset: int, size: int) -> Any:
        self.was_read.append((offset, offset + size))
        return super().read(offset, size)

    def announce(self, offset: int, size: int) -> None:
        self.announced.append((offset, offset + size))
        announce_mapped(super().read(offset, size))


def noted(shard: ShardReader, meta: Any = None) -> tuple[ShardReader, Noted]:
    opened: list[Noted] = []

    def open_bytes(path: Path, size: int) -> Noted:
        opened.append(Noted(path, size))
        return opened[0]

    return ShardReader(shard.path, meta or shard.meta, FIELDS, open_bytes), opened[0]


def test_what_is_announced_is_what_is_read(shard: ShardReader) -> None:
    """All tables and little more; all data of a field and nothing else. Tables that are there are not."""
    reader, source = noted(shard)
    reader.announce_tables()
    _ = reader.tables
    [(start, stop)] = source.announced
    assert all(start <= a <= b <= stop for a, b in source.was_read)
    assert stop <= max(b for _, b in source.was_read) + metadata.HEAD_ROW_BYTES * (NUM_ROWS + 1)
    assert stop < shard.meta.size / 4
    reader.announce_tables()
    assert len(source.announced) == 1
    source.was_read.clear()
    reader.announce_data("large")
    reader.data("large")
    assert source.announced[1:] == source.was_read[-1:]


@pytest.mark.parametrize("offset", [1 << 62, 1 << 70, -4096, None])
def test_nothing_outside_the_file_is_announced(
    shard: ShardReader, with_at: Callable[..., Any], offset: int | None
) -> None:
    paths, at = layout.dataset_paths(FIELDS), list(shard.meta.at)
    for path in ("large", "ragged/offsets"):
        at[paths.index(path)] = offset
    reader, source = noted(shard, with_at(shard.meta, at))
    reader.announce_tables()
    reader.announce_data("large")
    assert all(0 <= start < stop <= shard.meta.size for start, stop in source.announced)


def test_datasets_that_overlap_are_refused(shard: ShardReader, with_at: Callable[..., Any]) -> None:
    paths = layout.dataset_paths(FIELDS)
    at = list(shard.meta.at)
    at[paths.index("small")] = at[paths.index("large")]
    with pytest.raises(StoreCorruptError, match="overlap"):
        _ = ShardReader(shard.path, with_at(shard.meta, at), FIELDS).tables


@pytest.mark.parametrize("rows", [NUM_ROWS - 1, NUM_ROWS + 1, 10**9, 2**62])
def test_another_number_of_rows_is_refused(shard: ShardReader, rows: int) -> None:
    with pytest.raises(StoreCorruptError):
        _ = ShardReader(shard.path, replace(shard.meta, rows=rows), FIELDS).tables


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 1 << 62), (0, 1 << 62, 1 << 62)])
def test_a_huge_shape_is_refused(shard: ShardReader, shape: tuple[int, ...]) -> None:
    fields = (replace(LARGE, shape=shape), *FIELDS[1:])
    hostile = ShardReader(shard.path, shard.meta, fields)
    with pytest.raises(StoreCorruptError):
        hostile.data("large")


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12), blocks=st.sets(st.integers(0, 30)))
def test_rows_of_blocks_against_a_plain_model(lengths: list[int], blocks: set[int]) -> None:
    edges = np.concatenate([[0], np.cumsum(lengths)])
    shard = object.__new__(ShardReader)
    shard.__dict__.update(_tables={"x/offsets": edges}, meta=type("Meta", (), {"rows": len(lengths)})())
    damaged = sorted(block for block in blocks if block * 4 < edges[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "BLOCK_BYTES", 4)
        found = shard._rows_of_blocks(FieldSpec("x", "array", "uint8", (None,)), np.array(damaged, np.int64))
    expected = [
        row
        for row in range(len(lengths))
        if {byte // 4 for byte in range(edges[row], edges[row + 1])} & set(damaged)
    ]
    assert found == expected


def test_errors_say_which_store_to_mend(shard: ShardReader) -> None:
    folder = Path(shard.path).parent.parent
    assert f"flatout verify {folder} --repair" in str(shard.damaged("broken"))
