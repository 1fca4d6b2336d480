"""Buffers: used again when nobody looks at them, and never a moment earlier."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.epochs import begun, has_lane, keys_of, loader_of

from flatout.loader.buffers import WINDOW, BufferPool, PinnedPool
from flatout.loader.fetch import Fetcher, ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

FLOAT = np.dtype(np.float32)


def test_a_buffer_comes_back_when_its_tensor_is_gone() -> None:
    pool = BufferPool((3,), FLOAT)
    buffer = pool.take(4)
    (tensor,) = pool.hand_out(buffer, [2])
    assert tensor.shape == (2, 3)
    assert pool.take(4) is not buffer
    del tensor
    assert pool.take(4) is buffer


def test_a_buffer_of_several_batches_comes_back_after_the_last() -> None:
    pool = BufferPool((3,), FLOAT)
    buffer = pool.take(9)
    buffer[:] = np.arange(9)[:, None]
    tensors = pool.hand_out(buffer, [4, 3, 2])
    assert [tensor[:, 0].tolist() for tensor in tensors] == [[0, 1, 2, 3], [4, 5, 6], [7, 8]]
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [48, 36, 24]  # what torch.save writes
    while tensors:
        assert pool.take(9) is not buffer
        tensors.pop(len(tensors) // 2)
    assert pool.take(9) is buffer


def test_samples_without_a_byte_are_handed_out_too() -> None:
    pool = BufferPool((0,), FLOAT)
    assert [tuple(tensor.shape) for tensor in pool.hand_out(pool.take(9), [4, 5])] == [(4, 0), (5, 0)]


def test_the_buffer_that_came_back_last_is_used_first() -> None:
    pool = BufferPool((3,), FLOAT)
    buffers = [pool.take(4) for _ in range(3)]
    for buffer in buffers:
        pool.hand_out(buffer, [4])
    assert pool.take(4) is buffers[2]
    assert pool.take(4) is buffers[1]


def test_what_was_needed_once_is_not_kept_for_good() -> None:
    pool = BufferPool((3,), FLOAT)
    alive: Any = weakref.WeakValueDictionary()

    def hold(count: int) -> list[torch.Tensor]:
        buffers = [pool.take(4) for _ in range(count)]
        alive.update({id(buffer): buffer for buffer in buffers})
        return [tensor for buffer in buffers for tensor in pool.hand_out(buffer, [4])]

    hold(300)
    assert len(alive) == 300
    for _ in range(20 * WINDOW):
        hold(2)
    assert 2 <= len(alive) < 10


def test_its_pool_may_be_gone_before_it() -> None:
    pool = BufferPool((3,), FLOAT)
    buffer = pool.take(4)
    buffer[:] = 7
    (tensor,) = pool.hand_out(buffer, [4])
    del pool, buffer
    gc.collect()
    assert (tensor == 7).all()


def test_a_tensor_that_outlives_its_pool_holds_no_buffer_but_its_own() -> None:
    """At once, and not when the collector comes: a batch that is kept must not keep a loader's memory."""
    pool = BufferPool((3,), FLOAT)
    idle, lent = pool.take(4), pool.take(4)
    lent[:] = 7
    (tensor,) = pool.hand_out(lent, [4])
    pool.give_back(idle)
    alive = [weakref.ref(idle), weakref.ref(lent)]
    del idle, lent, pool
    assert alive[0]() is None
    assert alive[1]() is not None
    assert (tensor == 7).all()
    del tensor
    assert alive[1]() is None


def same(value: Any) -> Any:
    return value


def of_storage(storage: torch.UntypedStorage, shape: torch.Size) -> torch.Tensor:
    return torch.empty(0).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


def of_memory(view: memoryview) -> torch.Tensor:
    return torch.from_numpy(np.asarray(view))


class SavedForBackward:
    """Holds a batch through an autograd graph alone."""

    def __init__(self, value: torch.Tensor) -> None:
        self._weight = torch.ones_like(value, requires_grad=True)
        self._product = (self._weight * value).sum()

    def read(self) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(self._product, self._weight)
        return gradient


class LeafOfGraph:
    """Holds a batch that requires gradients, by a result that was computed from it."""

    def __init__(self, value: torch.Tensor) -> None:
        self._loss: Any = (value.requires_grad_() ** 2).sum() / 2

    def read(self) -> torch.Tensor:
        self._loss.backward()
        node = self._loss.grad_fn
        while not hasattr(node, "variable"):
            node = node.next_functions[0][0]
        gradient: torch.Tensor = node.variable.grad
        return gradient


def first_rows(value: torch.Tensor) -> torch.Tensor:
    return value[:2]


def later_columns(value: torch.Tensor) -> torch.Tensor:
    return value[:, 1:]


def flat(value: torch.Tensor) -> torch.Tensor:
    return value.view(len(value), -1)


def turned(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(1, 2)


Look = Callable[[torch.Tensor], Callable[[], torch.Tensor]]
LOOKS: dict[str, Look] = {
    "tensor": lambda value: partial(same, value),
    "detached": lambda value: partial(same, value.detach()),
    "slice": lambda value: partial(same, later_columns(value)),
    "transposed": lambda value: partial(same, turned(value)),
    "reshaped": lambda value: partial(same, flat(value)),
    "shallow copy": lambda value: partial(same, copy.copy(value)),
    "storage": lambda value: partial(of_storage, value.untyped_storage(), value.shape),
    "numpy": lambda value: partial(torch.from_numpy, value.numpy()),
    "numpy slice": lambda value: partial(torch.from_numpy, value.numpy()[:2]),
    "memoryview": lambda value: partial(of_memory, memoryview(value.numpy())),
    "torch dlpack": lambda value: partial(same, torch.from_dlpack(value)),
    "numpy dlpack": lambda value: partial(torch.tensor, np.from_dlpack(value)),
    "unread capsule": lambda value: partial(torch.from_dlpack, torch.utils.dlpack.to_dlpack(value)),
    "saved for backward": lambda value: SavedForBackward(value).read,
    "leaf of a graph": lambda value: LeafOfGraph(value).read,
}
"""How a training may go on looking at a batch: the batch in, what shows it later out."""
PARTS = {"slice": later_columns, "transposed": turned, "reshaped": flat, "numpy slice": first_rows}
"""What a look shows, where that is not the whole batch as it is."""


@pytest.mark.parametrize("kind", LOOKS)
@pytest.mark.parametrize("sizes", [[4], [3, 4, 2], [0, 4]])
def test_every_way_to_look_at_a_batch_keeps_its_buffer(kind: str, sizes: list[int]) -> None:
    """Also where several batches share the buffer, and all but one of them are gone."""
    pool = BufferPool((3, 5), FLOAT)
    buffer = pool.take(10)
    buffer[:] = np.arange(buffer.size).reshape(buffer.shape)
    start = sum(sizes[: sizes.index(4)])
    wanted = PARTS.get(kind, same)(torch.from_numpy(buffer[start : start + 4].copy()))
    read = LOOKS[kind](pool.hand_out(buffer, sizes)[sizes.index(4)])
    gc.collect()
    assert pool.take(10) is not buffer
    assert torch.equal(read(), wanted)
    del read
    gc.collect()
    assert pool.take(10) is buffer


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(LOOKS)), st.integers(0, 12), st.booleans()), min_size=20, max_size=60
)


def hold(loader: FastDataLoader, name: str, steps: list[tuple[str, int, bool]]) -> None:
    """Each step takes a batch and looks at it in some way for some number of steps; some epochs are left.

    The loader is closed then, and what it gave is looked at once more.
    """
    stream = iter(loader)
    held: list[tuple[int, Callable[[], torch.Tensor], torch.Tensor]] = []
    for number, (kind, duration, is_left) in enumerate(steps):
        if is_left and number % 5 == 0:
            stream = iter(loader)
        batch = next(stream, None)
        if batch is None:
            stream = iter(loader)
            batch = next(stream)
        wanted = PARTS.get(kind, same)(batch[name].clone())
        held.append((number + duration, LOOKS[kind](batch[name]), wanted))
        del batch
        for until, read, wanted in held:
            if until <= number:
                assert torch.equal(read(), wanted)
        held = [entry for entry in held if entry[0] > number]
    loader.close()
    del stream, loader
    gc.collect()
    for _, read, wanted in held:
        assert torch.equal(read(), wanted)


@given(STEPS, st.sampled_from([0, 2]), st.sampled_from(["image", "series"]))
@settings(max_examples=12)
def test_batches_held_across_epochs_never_change(
    store: StoreReader, steps: list[tuple[str, int, bool]], num_workers: int, name: str
) -> None:
    hold(loader_of(store, 9, num_workers=num_workers), name, steps)


@given(STEPS, st.sampled_from([0, 1, 2]))
@settings(max_examples=12)
def test_batches_of_a_lane_that_are_held_never_change(
    plain_store: StoreReader, steps: list[tuple[str, int, bool]], num_workers: int
) -> None:
    """Several of them share a buffer, which comes back when nobody looks at any."""
    loader = begun(plain_store, 3, num_workers=num_workers)
    hold(loader, "image", steps)
    keys_of(loader)
    assert has_lane(loader)
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_few_buffers_serve_many_batches(store: StoreReader, num_workers: int) -> None:
    loader = loader_of(store, 4, num_workers=num_workers, prefetch_factor=2)
    addresses = [batch["image"].data_ptr() for _ in range(20) for batch in loader]
    loader.close()
    assert len(addresses) == 20 * 26
    assert len(set(addresses)) < 200


def test_pinned_buffers_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch alone knows when a copy to the device is over: every batch asks it for another buffer."""
    asked: list[tuple[tuple[int, ...], torch.dtype, bool]] = []
    empty = torch.empty

    def fake_empty(shape: tuple[int, ...], *, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        asked.append((shape, dtype, pin_memory))
        return empty(shape, dtype=dtype)

    monkeypatch.setattr(torch, "empty", fake_empty)
    pool = PinnedPool((3,), np.dtype(np.uint16))
    for _ in range(3):
        buffer = pool.take(4)
        buffer[:] = 9
        first, second = pool.hand_out(buffer, [2, 1])
        assert first.data_ptr() == buffer.ctypes.data
        assert second.untyped_storage().data_ptr() == buffer.ctypes.data
        assert first.tolist() + second.tolist() == [[9, 9, 9]] * 3
        del first, second, buffer
    assert asked == [((4, 3), torch.uint16, True)] * 3


def test_a_pinned_buffer_that_is_given_back_is_torchs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype))
    pool = PinnedPool((3,), FLOAT)
    buffer = pool.take(4)
    alive = weakref.ref(buffer)
    pool.give_back(buffer)
    del buffer
    assert alive() is None


def test_all_that_is_large_in_a_batch_for_cuda_is_page_locked(
    store: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed, compressed and ragged fields: the same values, in memory that torch was asked to pin."""
    positions = np.arange(20, 37)
    wanted = Fetcher(store, np.arange(len(store)), 17, ReadRule()).fetch(positions)
    pinned: list[int] = []
    empty = torch.empty

    def fake_empty(shape: Any, *, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        made = empty(shape, dtype=dtype)
        pinned.append(made.data_ptr())
        assert pin_memory
        return made

    monkeypatch.setattr(torch, "empty", fake_empty)
    batch = Fetcher(store, np.arange(len(store)), 17, ReadRule(), is_pinned=True).fetch(positions)
    assert batch.keys() == wanted.keys()
    assert all(torch.equal(batch[name], wanted[name]) for name in batch)
    locked = {name for name, value in batch.items() if value.untyped_storage().data_ptr() in pinned}
    assert locked == {"image", "half", "packed", "series"}
