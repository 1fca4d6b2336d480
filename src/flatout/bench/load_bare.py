"""A bare hand-over: what remains of the limit once anything at all is handed over, by as little as we know.

Batches of fresh tensors, made by one thread and by the consumer whenever none lies ready, as fast as they can.
They come in no order, nothing is checked, no state is kept, and buffers are filled again after a while whether
or not somebody still looks at them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from flatout.bench.load_cases import LoadCase
from flatout.bench.load_ours import shuffled
from flatout.bench.load_runner import Batches
from flatout.loader.fetch import MAX_UNIT, UNIT_BYTES
from flatout.loader.fixed import open_fixed
from flatout.loader.places import Places
from flatout.store import StoreReader
from flatout.types import Array

NUM_AHEAD = 2
"""Units that are made or lie ready at the most."""
NUM_BUFFERS = NUM_AHEAD + 2
"""The consumer holds two more, or fills one of them."""

Unit = tuple[Array, list[dict[str, Any]]]


def hand_over(case: LoadCase, store: Path, scratch: Path) -> Callable[[], Batches]:
    """Endless batches of `x` and `y` in units of the size that the loader's producers have."""
    reader = StoreReader(store)
    spec = reader.fields["x"]
    everything = np.arange(case.num_samples)
    rows = open_fixed(reader, spec, Places.of(reader, everything), batch_size=case.batch_size)
    places = rows.look_up(everything)
    batch_bytes = case.batch_size * case.sample(0).nbytes
    unit = max(1, min(MAX_UNIT, UNIT_BYTES // batch_bytes))
    shape = (unit * case.batch_size, *case.shape)
    free = [np.empty(shape, spec.stored_dtype) for _ in range(NUM_BUFFERS)]

    def make(picked: Iterator[Array]) -> Unit:
        numbers = np.concatenate([next(picked) for _ in range(unit)])
        buffer = free.pop()  # that came back last: it is still in the CPU's cache
        rows.gather(places[numbers], buffer)
        edges = range(0, len(numbers), case.batch_size)
        return buffer, [
            {
                "x": torch.from_numpy(buffer[at : at + case.batch_size]),
                "y": torch.from_numpy(numbers[at : at + case.batch_size]),
            }
            for at in edges
        ]

    def batches() -> Batches:
        ready: SimpleQueue[Unit] = SimpleQueue()
        room: SimpleQueue[bool] = SimpleQueue()
        for _ in range(NUM_AHEAD):
            room.put(True)
        threading.Thread(target=_produce, args=(make, shuffled(case, 0), room, ready), daemon=True).start()
        own, held = shuffled(case, 1), deque[Array]()
        try:
            while True:
                try:
                    buffer, made = ready.get_nowait()
                    room.put(True)
                except Empty:
                    buffer, made = make(own)
                yield from made
                held.append(buffer)
                if len(held) > 1:
                    free.append(held.popleft())
        finally:
            room.put(False)

    return batches


def _produce(
    make: Callable[[Iterator[Array]], Unit],
    picked: Iterator[Array],
    room: SimpleQueue[bool],
    ready: SimpleQueue[Unit],
) -> None:
    """Until there is no more room for ever."""
    while room.get():
        ready.put(make(picked))
