"""Lanes: from the second epoch on the same batches, copied by threads that need no interpreter."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.breaking import make_store
from tests.loader.epochs import WAIT_S, epoch_keys, keys_of, loader_of, producers
from tests.loader.test_fork import in_child

from flatout.loader import buffers, copy_kernels, fetch, lane, lane_belt, maker
from flatout.loader.fetch import ReadRule
from flatout.loader.lane import MOST_FAULTS, Lane
from flatout.loader.lane_belt import LaneBelt
from flatout.loader.loader import FastDataLoader
from flatout.loader.maker import BatchMaker
from flatout.loader.prefetch import Prefetcher
from flatout.store import StoreReader


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    """Fields that only have to be copied."""
    return make_store(tmp_path_factory.mktemp("lane") / "store", ("image", "label"))


def stream_of(loader: FastDataLoader) -> Prefetcher[Any] | None:
    """What the last epoch came from."""
    return loader._spare._stream


def images_of(store: StoreReader) -> dict[int, np.ndarray]:
    keys = store.numbers["key_hash"].view(np.int64).tolist()
    return {key: store.read(at)["image"] for at, key in enumerate(keys)}


def clones(batches: Any) -> list[dict[str, torch.Tensor]]:
    return [{name: value.clone() for name, value in batch.items()} for batch in batches]


def assert_same(some: list[dict[str, torch.Tensor]], others: list[dict[str, torch.Tensor]]) -> None:
    assert [list(batch) for batch in some] == [list(batch) for batch in others]
    for one, other in zip(some, others, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def wait_until(is_so: Any) -> bool:
    until = time.monotonic() + WAIT_S
    while not (found := is_so()) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(found)


def test_the_second_epoch_comes_by_a_lane(plain: StoreReader) -> None:
    loader = loader_of(plain, 4, num_workers=2)
    kinds = []
    for epoch in range(4):
        assert keys_of(loader) == epoch_keys(plain, epoch)
        kinds.append(type(stream_of(loader)))
    assert kinds == [Prefetcher, Lane, Lane, Lane]
    loader.close()


@settings(max_examples=40)
@given(
    batch_size=st.integers(1, 9),
    num_workers=st.integers(0, 3),
    prefetch_factor=st.integers(1, 3),
    drop_last=st.booleans(),
    ranks=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
    stops=st.lists(st.integers(1, 24), min_size=2, max_size=5),
)
def test_batches_are_those_of_producers(
    plain: StoreReader,
    batch_size: int,
    num_workers: int,
    prefetch_factor: int,
    drop_last: bool,
    ranks: tuple[int, int],
    stops: list[int],
) -> None:
    """Whatever the settings, and wherever an epoch is left."""
    same = {"drop_last": drop_last, "rank": ranks[0], "world_size": ranks[1]}
    mine = loader_of(plain, batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor, **same)
    other = loader_of(plain, batch_size, read=ReadRule(crc="always"), **same)  # which never comes by a lane
    for epoch, stop in enumerate([24, *stops]):  # the first one compares every checksum
        mine.set_epoch(epoch)
        other.set_epoch(epoch)
        assert_same(
            clones(batch for batch, _ in zip(mine, range(stop), strict=False)),
            clones(batch for batch, _ in zip(other, range(stop), strict=False)),
        )
        assert mine.state_dict() == other.state_dict()
    if ranks == (0, 1) and not drop_last:  # otherwise some samples have not been compared yet
        mine.set_epoch(99)
        keys_of(mine)
        assert isinstance(stream_of(mine), Lane)
    assert not isinstance(stream_of(other), Lane)
    mine.close()
    other.close()


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_that_are_held_stay_as_they_are(plain: StoreReader, num_workers: int) -> None:
    truth = images_of(plain)
    loader = loader_of(plain, 3, num_workers=num_workers)
    held = []
    for _ in range(6):
        held += [(batch["key"].tolist(), batch["image"][1:]) for batch in loader]  # a view, not the batch
        held = held[len(held) // 2 :]  # some buffers come back, others do not
    assert isinstance(stream_of(loader), Lane)
    for keys, images in held:
        assert all((image.numpy() == truth[key]).all() for key, image in zip(keys[1:], images, strict=True))
    loader.close()


@pytest.mark.parametrize(
    "settings_",
    [
        {"read": ReadRule(crc="always")},
        {"read": ReadRule(io="pread")},
        {"read": ReadRule(on_damage="skip")},
    ],
)
def test_others_stay_with_producers(plain: StoreReader, settings_: dict[str, Any]) -> None:
    loader = loader_of(plain, **settings_)
    for _ in range(2):
        keys_of(loader)
    assert type(stream_of(loader)) is Prefetcher
    loader.close()


def test_fields_that_need_more_than_a_copy_stay_with_producers(store: StoreReader) -> None:
    for fields in (("coded",), ("half",), ("packed",), ("series",), ("small", "label")):
        loader = loader_of(store, read=ReadRule(fields=fields))
        for _ in range(2):
            keys_of(loader)
        assert type(stream_of(loader)) is Prefetcher, fields
        loader.close()


def test_small_splits_are_not_worth_it(plain: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "LANE_BYTES", 1 << 40)
    loader = loader_of(plain)
    for _ in range(2):
        keys_of(loader)
    assert type(stream_of(loader)) is Prefetcher


def test_rows_that_left_the_memory_are_announced_again(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = 0
    monkeypatch.setattr(lane, "all_major_faults", lambda: faults)
    loader = loader_of(plain, 2, num_workers=1)
    kinds = []
    for epoch, fetched in enumerate([0, 0, MOST_FAULTS, 0, MOST_FAULTS + 1, 0, 0]):
        stream = iter(loader)
        keys = keys_of([next(stream), next(stream)])
        faults += fetched
        assert keys + keys_of(stream) == epoch_keys(plain, epoch)
        kinds.append(type(stream_of(loader)))
    # The fifth leaves its lane at once, the sixth follows a stream in which nothing was fetched.
    assert kinds == [Prefetcher, Lane, Lane, Lane, Prefetcher, Lane, Lane]
    loader.close()


def test_an_epoch_that_fetched_pages_is_not_followed_by_a_lane(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = 0
    monkeypatch.setattr(lane, "all_major_faults", lambda: faults)
    loader = loader_of(plain, 2, read=ReadRule(crc="off"))
    kinds = []
    for fetched in (MOST_FAULTS + 1, 0, 0):
        keys_of(loader)
        faults += fetched
        kinds.append(type(stream_of(loader)))
    assert kinds == [Prefetcher, Prefetcher, Lane]


def test_more_and_fewer_producers_while_it_runs(plain: StoreReader) -> None:
    loader = loader_of(plain, 2, num_workers=1)
    keys_of(loader)
    before = producers()
    for epoch, (num_workers, depth) in enumerate([(3, 1), (0, 2), (2, 4)], start=1):
        stream, keys = iter(loader), []
        keys += keys_of([next(stream), next(stream)])
        loader.adjust(num_workers=num_workers, prefetch_factor=depth)
        keys += keys_of(stream)
        assert keys == epoch_keys(plain, epoch)
        assert isinstance(stream_of(loader), Lane)
    loader.close()
    assert producers() <= before


def test_every_producer_can_be_woken(plain: StoreReader) -> None:
    """Whatever was started, woken or added: who sleeps is counted, or has a token to wake up by."""
    loader = loader_of(plain, 1, num_workers=1, prefetch_factor=2)
    keys_of(loader)
    for num_workers in (4, 2, 4, 3):
        loader.adjust(num_workers=num_workers)
        keys_of(loader)
        keys_of(loader)
        stream = stream_of(loader)
        assert isinstance(stream, Lane)
        belt = stream._belt

        def all_sleep(belt: Any = belt, count: int = num_workers) -> bool:
            return len(belt._asleep) >= count and belt.room.empty()

        # They are woken for nothing, and each says so again before it sleeps; those that have left count on.
        until = time.monotonic() + WAIT_S
        while not all_sleep() and time.monotonic() < until:
            belt.open_up_to(belt._num_laid, 0)
            time.sleep(0.01)
        assert all_sleep(), (len(belt._asleep), num_workers)
    loader.close()


def test_a_lane_that_is_dropped_ends_its_producers(plain: StoreReader) -> None:
    before = producers()
    loader = loader_of(plain, 2, num_workers=2)
    keys_of(loader)
    stream = iter(loader)
    next(stream)
    assert isinstance(stream._stream, Lane)  # type: ignore[attr-defined]
    mine = producers() - before
    assert mine
    del stream, loader
    for thread in mine:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("first_bad", [25, 29, 31, 47, 50])
def test_an_error_comes_with_its_own_batch(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch, first_bad: int
) -> None:
    """Of 24 batches an epoch, which are made three at a time; also one of the next epoch."""
    loader, before = loader_of(plain, 1, num_workers=1, prefetch_factor=3), producers()
    keys_of(loader)
    find = BatchMaker._look_up

    def fails(self: BatchMaker, first: int, count: int) -> Any:
        if first + count > first_bad:
            raise OSError("no more rows")
        return find(self, first, count)

    monkeypatch.setattr(BatchMaker, "_look_up", fails)
    keys: list[int] = []
    batches = chain.from_iterable(repeat(loader))

    def run_on(batches: Any) -> None:
        for batch in batches:
            keys.extend(keys_of([batch]))

    with pytest.raises(OSError, match="no more rows"):
        run_on(batches)
    wanted = epoch_keys(plain, 1) + epoch_keys(plain, 2)
    assert keys == wanted[: first_bad - 24]
    with pytest.raises(OSError, match="no more rows"):
        next(batches)
    del batches, loader
    gc.collect()
    assert wait_until(lambda: producers() <= before), "an error holds on to no stream"


def test_threads_copy_each_unit_once() -> None:
    """The compiled part alone: units claimed by many threads are all copied, each to its own place."""
    random, kernels = np.random.default_rng(0), copy_kernels
    tables = [random.integers(0, 255, (50, width)).astype(np.uint8) for width in (7, 640)]
    num_units, num_rows = 200, 9
    places = random.integers(0, 50, (num_units, num_rows))
    made = [np.zeros((num_units, num_rows, table.shape[1]), np.uint8) for table in tables]
    words = np.zeros(kernels.HEAD + 2 * kernels.FIELD + num_units * (kernels.SLOT + 4), np.int64)
    words[[kernels.NUM_FIELDS, kernels.NUM_SLOTS]] = 2, num_units
    words[kernels.STREAM_BYTES] = num_rows * 640  # the second is streamed, the first is not
    edge = kernels.HEAD + 2 * kernels.FIELD
    words[kernels.HEAD : edge] = [n for table in tables for n in (table.ctypes.data, table.shape[1])]
    slots = words[edge:].reshape(num_units, -1)
    slots[:, 0] = -1
    for unit in range(num_units):
        row = [num_rows] + [n for each in made for n in (places[unit].ctypes.data, each[unit].ctypes.data)]
        slots[unit, 1:] = row
    kernels.publish(words.ctypes.data, kernels.LIMIT, num_units)
    threads = [threading.Thread(target=kernels.make_all, args=(words.ctypes.data,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert slots[:, 0].tolist() == list(range(num_units))
    assert words[kernels.NEXT] == num_units
    for table, each in zip(tables, made, strict=True):
        assert (each == table[places]).all()


def test_without_numba_there_are_none(plain: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "lane_kernels", lambda: None)
    loader = loader_of(plain)
    for epoch in range(2):
        assert keys_of(loader) == epoch_keys(plain, epoch)
    assert type(stream_of(loader)) is Prefetcher


@pytest.mark.parametrize(
    ("num_workers", "depth", "free_bytes", "wanted"),
    [
        (1, 1, 1 << 40, 2),  # half of the epoch's eight batches
        (1, 7, 1 << 40, 4),  # as many batches as were asked for, in units of two
        (1, 1, 1 << 10, 1),  # memory is short: what was asked for, and no more
        (0, 4, 1 << 40, 1),
    ],
)
def test_so_much_is_ready_ahead(
    plain: StoreReader,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    depth: int,
    free_bytes: int,
    wanted: int,
) -> None:
    machine = lane.describe_machine(look_for_gpu=False)
    monkeypatch.setattr(lane, "describe_machine", lambda **_: replace(machine, free_bytes=free_bytes))
    monkeypatch.setattr(fetch, "UNIT_BYTES", 1)
    loader = loader_of(plain, len(plain) // 8, num_workers=num_workers, prefetch_factor=depth)
    monkeypatch.setattr(
        lane,
        "UNIT_BYTES",
        2
        * loader._kept.fetcher(
            loader.store, loader._positions, loader.batch_size, loader._transfer, True
        ).batch_bytes,
    )
    monkeypatch.setattr(maker, "UNITS_PER_EPOCH", 4)
    keys_of(loader)
    keys_of(loader)
    stream = stream_of(loader)
    assert isinstance(stream, Lane)
    assert stream._maker.unit == (2 if num_workers else 1)
    assert stream._num_ahead == wanted
    loader.close()


def test_buffers_of_units_that_nobody_took_are_used_again(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[int] = []
    allocate = buffers._allocated

    def count(shape: tuple[int, ...], dtype: Any) -> Any:
        allocated.append(shape[0])
        return allocate(shape, dtype)

    monkeypatch.setattr(buffers, "_allocated", count)
    loader = loader_of(plain, 4, num_workers=1)
    keys_of(loader)
    keys_of(loader)
    next(iter(loader))  # the rest of this epoch is left lying
    before = len(allocated)
    for _ in range(5):
        cursor = iter(loader)
        next(cursor)
        assert isinstance(cursor._stream, Lane)
        del cursor
    assert len(allocated) == before


def test_producers_do_all_of_it_while_the_consumer_is_elsewhere(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(plain, 2, num_workers=1, prefetch_factor=4)
    keys_of(loader)
    monkeypatch.setattr(lane_belt, "FIRST_AHEAD", 4)
    cursor = iter(loader)
    keys = keys_of([next(cursor)])
    belt = cursor._stream._belt  # type: ignore[attr-defined]
    names = set()
    hand_out = LaneBelt._hand_out_next

    def note(self: LaneBelt) -> None:
        names.add(threading.current_thread().name)
        hand_out(self)

    monkeypatch.setattr(LaneBelt, "_hand_out_next", note)
    for _ in range(8):
        # It may have found the consumer at work and gone to sleep: here it is woken, there it is a unit later.
        assert wait_until(lambda: len(belt._out) >= 2 or (belt._wake_one() and False)), "units lie ready"
        keys += keys_of([next(cursor)])
    assert names
    assert "MainThread" not in names
    assert keys == epoch_keys(plain, 1)[: len(keys)]
    loader.close()


def test_more_is_laid_ahead_for_a_consumer_that_comes_too_early(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_belt, "FIRST_AHEAD", 1)
    monkeypatch.setattr(LaneBelt, "_tend", lambda self: None)  # nobody helps, so nothing is ever ready
    loader = loader_of(plain, 1, num_workers=1, prefetch_factor=6)
    keys_of(loader)
    seen: list[int] = []
    for _ in range(3):
        for _ in loader:
            pass
        stream = stream_of(loader)
        assert isinstance(stream, Lane)
        seen.append(stream._belt._num_ahead)
    assert stream._num_ahead == 6
    assert 1 < seen[0] < seen[1]
    assert seen[2] == 6
    loader.close()


def test_what_fails_in_a_producer_is_made_again_one_by_one(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(plain, 1, num_workers=1, prefetch_factor=4)
    keys_of(loader)
    tensors_of, tried = LaneBelt._tensors_of, threading.Event()

    def fails(self: LaneBelt, unit: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            tried.set()
            raise MemoryError("not here")
        return tensors_of(self, unit)

    cursor = iter(loader)
    keys = keys_of([next(cursor)])
    belt = cursor._stream._belt  # type: ignore[attr-defined]
    monkeypatch.setattr(LaneBelt, "_tensors_of", fails)
    assert wait_until(lambda: tried.is_set() or (belt._wake_one() and False))
    keys += keys_of(cursor)
    assert keys == epoch_keys(plain, 1)
    assert type(stream_of(loader)) is Prefetcher
    monkeypatch.undo()
    for epoch in (2, 3):
        assert keys_of(loader) == epoch_keys(plain, epoch)
    loader.close()


class Interrupted(list[Any]):
    """Ctrl-C comes when the batch is taken already."""

    def pop(self, *at: Any) -> Any:
        super().pop(*at)
        raise KeyboardInterrupt


@pytest.mark.parametrize("num_taken", [1, 2, 3, 5, 23])
def test_whoever_goes_on_after_ctrl_c_misses_nothing(plain: StoreReader, num_taken: int) -> None:
    loader = loader_of(plain, 1, num_workers=1)
    keys_of(loader)
    cursor = iter(loader)
    keys = keys_of(next(cursor) for _ in range(num_taken))
    ready = cursor._stream.ready  # type: ignore[attr-defined]
    cursor._ready = cursor._stream.ready = Interrupted(ready or [{}])  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        next(cursor)
    assert keys + keys_of(cursor) == epoch_keys(plain, 1)
    assert keys_of(loader) == epoch_keys(plain, 2)
    loader.close()


def test_ctrl_c_at_the_end_of_an_epoch_leads_into_no_other(
    plain: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(plain, 1, num_workers=1)
    keys_of(loader)
    cursor = iter(loader)
    keys = keys_of(next(cursor) for _ in range(23))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loader._spare, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(cursor)
    assert keys + keys_of(cursor) == epoch_keys(plain, 1)
    assert keys_of(loader) == epoch_keys(plain, 2)
    loader.close()


@pytest.mark.parametrize("num_taken", [1, 2, 3, 22])
def test_a_child_goes_on_with_a_lane_that_it_inherits(plain: StoreReader, num_taken: int) -> None:
    loader = loader_of(plain, 1, num_workers=2)
    keys_of(loader)
    cursor = iter(loader)
    keys = keys_of(next(cursor) for _ in range(num_taken))
    assert isinstance(cursor._stream, Lane)  # type: ignore[attr-defined]
    in_childs = in_child(lambda: keys_of(cursor) + keys_of(loader))
    assert keys + in_childs == epoch_keys(plain, 1) + epoch_keys(plain, 2)
    assert keys + keys_of(cursor) == epoch_keys(plain, 1), "and so does the parent"
    assert keys_of(loader) == epoch_keys(plain, 2)
    loader.close()


def test_several_iterators_at_once(plain: StoreReader) -> None:
    loader, before = loader_of(plain, 1, num_workers=1), producers()
    keys_of(loader)
    pairs = list(zip(loader, loader, strict=True))
    assert keys_of(first for first, _ in pairs) == epoch_keys(plain, 1)
    assert keys_of(second for _, second in pairs) == epoch_keys(plain, 2)
    for stop in (1, 2, 7):  # left in the middle of a unit
        epoch = loader._next[0]
        assert (
            keys_of(batch for batch, _ in zip(loader, range(stop), strict=False))
            == (epoch_keys(plain, epoch)[:stop])
        )
    loader.close()
    del pairs
    gc.collect()
    assert wait_until(lambda: producers() <= before)


def test_batches_of_an_evaluation_can_be_trained_on(plain: StoreReader) -> None:
    loader = loader_of(plain, 1, num_workers=1)
    for _ in range(2):  # once by producers, once by a lane
        with torch.inference_mode():
            keys_of(loader)
        assert not any(value.is_inference() for batch in loader for value in batch.values())
    loader.close()


def test_an_augmentation_that_fails_loses_no_batch(plain: StoreReader) -> None:
    calls: list[int] = []

    def augment(batch: dict[str, torch.Tensor], epoch: int) -> dict[str, torch.Tensor]:
        calls.append(epoch)
        if len(calls) in (1, 30, 48):
            raise ValueError("only once")
        return batch

    loader, keys = loader_of(plain, 1, num_workers=1, augment=augment), []
    for _ in range(2):
        cursor = iter(loader)
        while True:
            try:
                keys += keys_of([next(cursor)])
            except StopIteration:
                break
            except ValueError:
                assert loader.state_dict()["samples"] == len(keys) % len(plain)
    assert keys == epoch_keys(plain, 0) + epoch_keys(plain, 1)
    assert len(calls) == 48 + 3
    loader.close()
