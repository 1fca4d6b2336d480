"""Blocks of samples: the same bytes, the same bad rows and the same cuts as one sample at a time."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import SampleError
from flatout.source import hash_key
from flatout.store import block as blocks
from flatout.store import column, layout, shard_writer
from flatout.store import task as tasks
from flatout.store.block import Block, are_plain, fits
from flatout.store.receipt import Receipt
from flatout.store.shard_writer import ShardWriter
from flatout.store.task import ShardTask, TaskSetup
from flatout.types import FieldSpec, Row

FIELDS = (
    FieldSpec("x", "signal", "float32", (1, 5)),
    FieldSpec("label", "label", "int64", ()),
    FieldSpec("flag", "array", "bool", (2,)),
    FieldSpec("void", "array", "float64", (0, 3)),
)
SEED = st.integers(0, 1000)


def sample_of(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        "x": generator.normal(size=(1, 9)).astype(np.float32)[:, 2:7],
        "label": np.array(seed, np.int64),
        "flag": np.array([seed % 2 == 0, True]),
        "void": np.zeros((0, 3)),
    }


@dataclass
class Maker:
    """Gives, or raises, what the row holds."""

    def make(self, row: Row) -> Any:
        made = row.values["make"]
        if isinstance(made, BaseException):
            raise made
        return made

    def path_of(self, row: Row) -> str:
        return row.key


def unusual(seed: int) -> list[Any]:
    """Rows that no block takes, good and bad ones."""
    good = sample_of(seed)
    return [
        SampleError("decode", "broken"),
        {**good, "x": np.full((1, 5), np.nan, np.float32)},
        {**good, "x": np.full((1, 5), np.inf, np.float32)},
        {**good, "x": np.full((1, 5), 3e38, np.float32)},  # finite, its square is not
        {**good, "x": np.zeros((1, 4), np.float32)},
        {**good, "x": np.zeros((1, 5), np.float64)},
        {**good, "x": np.zeros((1, 5), ">f4")},
        {**good, "x": np.ma.masked_array(np.zeros((1, 5), np.float32))},
        {**good, "more": np.zeros(100)},
        {name: array for name, array in good.items() if name != "label"},
        [good, sample_of(seed + 1)],
        [good],
        [good] * 9,  # more than a shard takes
        {**good, "label": np.array(seed, np.int32)},
        {**good, "x": np.asfortranarray(good["x"])},
    ]


NUM_UNUSUAL = len(unusual(0))
Made = st.one_of(
    SEED.map(sample_of),
    st.tuples(SEED, st.integers(0, NUM_UNUSUAL - 1)).map(lambda pair: unusual(pair[0])[pair[1]]),
)


def run(folder: Path, made: list[Any], cuts: int, **changes: Any) -> Receipt:
    task = ShardTask(TaskSetup(Maker(), FIELDS, str(folder), **changes), 0)
    rows = [Row(f"row {number}", {"make": item}) for number, item in enumerate(made)]
    for start in range(0, len(rows), cuts):
        task.feed(rows[start : start + cuts])
    return task.finish()


def without_times(receipt: Receipt) -> Receipt:
    return replace(receipt, seconds={}, peak_bytes=0)


@settings(deadline=None, max_examples=100)
@given(
    made=st.one_of(st.lists(SEED.map(sample_of), min_size=4, max_size=12), st.lists(Made, max_size=12)),
    cuts=st.integers(1, 12),
    block_rows=st.sampled_from([1, 2, 5, blocks.BLOCK_ROWS]),
    together=st.sampled_from([1, 75, tasks.TOGETHER_BYTES]),
    seal=st.sampled_from([150, 400, tasks.SEAL_BYTES]),
    allowed=st.sampled_from([frozenset(), frozenset({"x"})]),
    slab=st.sampled_from([64, 128, 256, 1024]),
    room=st.sampled_from([1, 40, column.ROOM_BYTES]),
)
def test_a_task_with_blocks_gives_what_one_without_gives(
    made: list[Any],
    cuts: int,
    block_rows: int,
    together: int,
    seal: int,
    allowed: frozenset[str],
    slab: int,
    room: int,
) -> None:
    """Blocks are laid into slabs that have room for them, or for the first of them, or for none."""
    found = []
    for most_rows in (block_rows, 0):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "BLOCK_ROWS", most_rows)
            patch.setattr(blocks, "LEAST_BYTES", 0)
            patch.setattr(tasks, "TOGETHER_BYTES", together)
            patch.setattr(tasks, "MOST_TOGETHER_BYTES", 4 * together)
            patch.setattr(tasks, "SEAL_BYTES", seal)
            if most_rows:
                patch.setattr(column, "SMALL_BYTES", 1)
                patch.setattr(column, "SLAB_BYTES", slab)
                patch.setattr(column, "ROOM_BYTES", room)
                patch.setattr(shard_writer, "ROOM_BYTES", room)
            else:
                patch.setattr(blocks, "MOST_BYTES", 0)
            receipt = without_times(run(Path(folder), made, cuts, allow_nonfinite=allowed))
            files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
            found.append((receipt, files))
    assert found[0] == found[1]


def test_blocks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    keep = ShardWriter.append_block
    monkeypatch.setattr(
        ShardWriter, "append_block", lambda self, block: (taken.append(len(block.keys)), keep(self, block))
    )
    made = [sample_of(seed) for seed in range(11)]
    run(tmp_path, made, 4)
    assert taken == [4, 4, 3]
    taken.clear()
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 2)
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    run(tmp_path, [*made[:5], unusual(0)[4], *made[5:8]], 9)
    assert taken == [2, 2, 1, 2, 1]
    taken.clear()
    run(tmp_path, made, 11, max_sample_bytes=29)  # each has 30
    run(tmp_path, made, 11, is_dry=True)
    run(tmp_path, made, 11, is_measuring=True)
    assert taken == []


def test_a_sample_is_laid_down_at_once_and_what_it_was_made_in_is_free(tmp_path: Path) -> None:
    """The next is made in the same memory: what is stored is what it was when it was made."""
    memory = np.zeros((1, 5), np.float32)

    class InPlace(Maker):
        def make(self, row: Row) -> Any:
            memory[:] = row.values["make"]
            return {**sample_of(0), "x": memory}

    task = ShardTask(TaskSetup(InPlace(), FIELDS, str(tmp_path)), 0)
    task.feed([Row(str(number), {"make": number}) for number in range(6)])
    (shard,) = task.finish().shards
    with h5py.File(tmp_path / shard.file) as file:
        assert file["x"][:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_block_is_begun_behind_pieces_that_are_more_than_a_shard_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SEAL_BYTES", 150)
    receipt = run(tmp_path, [[sample_of(0)] * 9, *map(sample_of, range(3))], 4)
    assert [shard.rows for shard in receipt.shards] == [9, 3]
    assert not receipt.bad


def test_arrays_that_are_not_stored_count_wherever_a_row_stands(tmp_path: Path) -> None:
    made = [{**sample_of(seed), "more": np.zeros(100)} for seed in range(5)]
    assert len(run(tmp_path, made, 5, max_sample_bytes=800).bad) == 5
    assert not run(tmp_path, made, 5).bad


def test_what_is_no_making_is_not_counted_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = ShardWriter.put
    monkeypatch.setattr(ShardWriter, "put", lambda *args, **how: (time.sleep(0.1), put(*args, **how))[1])
    monkeypatch.setattr(tasks, "SEAL_BYTES", 60)
    receipt = run(tmp_path, [sample_of(seed) for seed in range(6)], 6)
    assert receipt.seconds["write"] >= 0.2
    assert receipt.seconds["make"] < receipt.seconds["write"] / 2


def test_a_block_that_has_no_memory_is_encoded_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(blocks, "is_finite", fail)
    assert run(tmp_path, [sample_of(seed) for seed in range(5)], 5).shards[0].rows == 5


def test_many_small_fields_take_no_slab_each(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(column, "_mapped", lambda: taken.append(0))
    fields = [FieldSpec(f"f{number}", "array", "float32", (16,)) for number in range(100)]
    writer = ShardWriter(fields, slabs=column.Slabs())
    sample = {spec.name: np.zeros(16, np.float32) for spec in fields}
    for _ in range(20):
        block = writer.block(blocks.block_rows(6400))
        while not block.is_full:
            assert block.add(0, Row("k", {}, key_hash=1), sample)
        encoded = block.encode((), safe=True)
        assert encoded is not None
        writer.append_block(encoded)
    assert len(writer) == 20 * 64
    assert not taken


@pytest.mark.parametrize(
    ("size", "wanted"), [(0, 1 << 18), (1024, 256), (16_000, 64), (163_840, 6), (1 << 21, 0)]
)
def test_how_many_make_a_block(size: int, wanted: int) -> None:
    assert blocks.block_rows(size) == wanted


def test_keys_are_hashed_where_nobody_has_done_so() -> None:
    block = Block(FIELDS, 3, dict.fromkeys(spec.name for spec in FIELDS))
    for number, row in enumerate([Row("a", {}), Row("b", {}, key_hash=77)]):
        assert fits(FIELDS, sample_of(0))
        assert block.add(number, row, sample_of(0))
    assert not block.is_full
    encoded = block.encode((), safe=True)
    assert encoded is not None
    assert encoded.key_hashes == [hash_key("a"), 77]


def test_without_safety_there_are_zeros_and_the_same_arrays() -> None:
    samples = [sample_of(seed) for seed in range(4)]
    block = Block(FIELDS, 4, dict.fromkeys(spec.name for spec in FIELDS))
    assert all(block.add(at, Row(str(at), {}), sample) for at, sample in enumerate(samples))
    found = {safe: block.encode((), safe=safe) for safe in (True, False)}
    assert found[True] is not None
    assert found[False] is not None
    assert found[False].crcs["x"] == [0] * 4 != found[True].crcs["x"]
    for name in ("x", "label", "flag", "void"):
        np.testing.assert_array_equal(found[True].stored[name], [sample[name] for sample in samples])
        np.testing.assert_array_equal(found[True].stored[name], found[False].stored[name])
    for name, array in block.samples()[2].items():
        np.testing.assert_array_equal(array, samples[2][name])


@pytest.mark.parametrize(
    "changes", [{"shape": (None,)}, {"encoding": "float16"}, {"compression": "zstd"}, {"encoding": "uint8"}]
)
def test_only_plain_fields(changes: dict[str, Any]) -> None:
    assert are_plain(FIELDS)
    assert not are_plain([*FIELDS, replace(FIELDS[0], name="y", **changes)])


def test_what_is_hashed_together_is_what_each_sample_has() -> None:
    samples = [sample_of(seed) for seed in range(6)]
    for safe in (True, False):
        writer = ShardWriter(FIELDS, safe=safe)
        encoded = [writer.encode(f"k{at}", hash_key(f"k{at}"), -1, sample) for at, sample in enumerate(samples)]
        for sample in encoded:
            writer.append(sample)
        tables = writer._tables()
        assert tables[layout.KEY_HASH].tolist() == [sample.key_hash for sample in encoded]
        assert tables[layout.DIGEST].tolist() == [sample.digest() if safe else 0 for sample in encoded]
