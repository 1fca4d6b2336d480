"""Ragged fields in a batch: every form of them is cut and padded as a simple model does it."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.ragged_items import NUM_RAGGED, RAGGED_FIELDS, padded

from flatout.errors import StoreCorruptError
from flatout.loader import announce
from flatout.loader.buffers import WINDOW
from flatout.loader.crc import CrcCheck
from flatout.loader.lengths import RaggedRule, length_axis
from flatout.loader.mount import open_as
from flatout.loader.places import Places
from flatout.loader.ragged import FlatPool, RaggedRows
from flatout.loader.values import RangeValues, open_values
from flatout.store import StoreReader

RULES = st.builds(
    RaggedRule,
    max_length=st.none() | st.integers(1, 45),
    crop=st.sampled_from(["head", "tail", "random"]),
    multiple=st.integers(1, 8),
    to_max=st.booleans(),
)
POSITIONS = st.lists(st.integers(0, NUM_RAGGED - 1), min_size=1, max_size=20)
NAMES = [*RAGGED_FIELDS, "words"]


def rows_of(store: StoreReader, name: str, rule: RaggedRule, io: str = "mmap") -> RaggedRows:
    places = Places.of(store, np.arange(len(store)))
    check = CrcCheck(store, store.fields[name], places)
    opened = open_as(store, io)
    values = open_values(opened.store, store.fields[name], places, opened.files)
    return RaggedRows(opened.store, store.fields[name], places, rule, check, values)


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", NAMES)
@given(RULES, POSITIONS, st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=25)
def test_a_batch_is_its_samples_cut_and_padded(
    ragged_store: StoreReader, name: str, io: str, rule: RaggedRule, positions: list[int], seed: int
) -> None:
    spec = ragged_store.fields[name]
    found, lengths = rows_of(ragged_store, name, rule, io).gather(np.array(positions), seed)
    samples = [ragged_store.read(at)[name] for at in positions]
    keys = ragged_store.numbers["key_hash"][positions].tolist()
    wanted = padded(samples, keys, length_axis(spec), rule, seed)
    np.testing.assert_array_equal(found.numpy().astype(wanted.dtype), wanted)
    kept = [min(sample.shape[length_axis(spec)], rule.max_length or 10**9) for sample in samples]
    assert lengths.tolist() == kept


def test_old_padding_does_not_shine_through(ragged_store: StoreReader) -> None:
    """A buffer that held a longer batch is zeroed where it must be."""
    by_length = np.argsort(ragged_store.numbers["length_steps"])
    for name in NAMES:
        rows = rows_of(ragged_store, name, RaggedRule())
        for _ in range(3):
            rows.gather(by_length[-8:])  # its buffer comes back at once
            batch = np.concatenate([by_length[:4], by_length[-1:]])
            found, lengths = rows.gather(batch)
            axis = length_axis(ragged_store.fields[name]) + 1
            for row, length in zip(found.numpy(), lengths.tolist(), strict=True):
                assert not np.take(row, range(length, row.shape[axis - 1]), axis=axis - 1).any()


def test_uncompressed_fields_are_slices_of_one_range(ragged_store: StoreReader) -> None:
    forms = {name: type(rows_of(ragged_store, name, RaggedRule())._values) for name in NAMES}
    assert {name for name, form in forms.items() if form is not RangeValues} == {"packed"}


def test_the_mean_size_is_the_fields(ragged_store: StoreReader) -> None:
    for name in NAMES:
        counts = ragged_store.numbers[f"length_{name}"]
        itemsize = ragged_store.fields[name].stored_dtype.itemsize
        assert rows_of(ragged_store, name, RaggedRule()).mean_bytes == int(counts.mean() * itemsize)


def test_a_damaged_sample_is_found_though_its_damage_is_cut_away(
    ragged_store: StoreReader, tmp_path: Any
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    for path in ragged_store.folder.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(ragged_store.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    store = StoreReader(folder)
    position = int(np.argmax(store.numbers["length_steps"]))
    shard = store.shard(int(store.numbers["shard"][position]))
    row = int(store.numbers["row"][position])
    last = (shard.offset_of("steps") or 0) + shard.byte_range("steps", row)[1] - 1
    with open(shard.path, "r+b") as file:
        file.seek(last)
        byte = file.read(1)
        file.seek(last)
        file.write(bytes([byte[0] ^ 1]))
    rows = rows_of(StoreReader(folder), "steps", RaggedRule(max_length=1))
    with pytest.raises(StoreCorruptError, match="steps"):
        rows.gather(np.array([position]))


def test_buffers_grow_and_are_used_again() -> None:
    pool = FlatPool(np.dtype(np.float32))
    first = pool.take(100)
    held = pool.hand_out(first, first[:100])
    assert pool.take(10) is not first
    del held
    assert pool.take(110) is first
    pool.hand_out(first, first[:1])
    assert len(pool.take(1000)) >= 1000


def test_samples_are_announced_where_they_stand(
    ragged_store: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(
        announce,
        "_will_need",
        lambda pieces: told.extend((first, first + size) for first, size in pieces.tolist()),
    )
    rows = rows_of(ragged_store, "steps", RaggedRule())
    positions = np.array([3, 140, 7])
    rows.announce(positions)
    samples = rows._values.whole(positions)
    for (first, end), sample in zip(told, samples, strict=True):
        assert first % mmap.PAGESIZE == 0
        assert first <= sample.ctypes.data < first + mmap.PAGESIZE
        assert end == sample.ctypes.data + sample.nbytes
    rows_of(ragged_store, "packed", RaggedRule()).announce(positions)
    assert len(told) == 3


def test_what_was_needed_once_is_not_kept_for_good() -> None:
    pool = FlatPool(np.dtype(np.float32))
    alive: Any = weakref.WeakValueDictionary()

    def hold(count: int) -> list[Any]:
        buffers = [pool.take(10) for _ in range(count)]
        alive.update({id(buffer): buffer for buffer in buffers})
        return [pool.hand_out(buffer, buffer[:10]) for buffer in buffers]

    hold(300)
    assert len(alive) == 300
    for _ in range(20 * WINDOW):
        hold(2)
    assert 2 <= len(alive) < 10
