"""Producers: threads that make batches ahead of the consumer and hand them over in exact order.

Producer p makes units p, p + k, p + 2k, ... of a stream that never ends (the next epoch follows the last
batch), a unit being several small batches or one large one, and keeps `depth` units ahead. Each has a queue
of its own, so the hand-over needs no lock between them and the order needs no sorting.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from flatout.errors import LoaderError

Item = TypeVar("Item")

POLL_S = 1.0
SWITCH_S = 5e-4
"""Interpreter's switch interval while producers live: with a busy main thread the default of 5 ms costs
20-40 % waiting."""


class Prefetcher(Generic[Item]):
    """A stream of items 0, 1, 2, ... made ahead by threads; closed when dropped.

    Args:
        make: number of an item in, the item out; runs in the producers.
        first: number of the first item.
        num_threads: producers; 0 makes each item when it is asked for.
        depth: units ahead of the consumer in each producer.
        unit: items made and handed over at once.
    """

    def __init__(
        self, make: Callable[[int], Item], first: int, num_threads: int, depth: int, unit: int = 1
    ) -> None:
        self.pid = os.getpid()
        self._make = make
        self._next = first
        self._unit = unit
        self._ready: list[Item] = []
        self._lanes = [_Lane(depth) for _ in range(num_threads)]
        self._turn = 0
        self._stop = threading.Event()
        self._threads = [
            _Producer(
                target=_produce,
                args=(lane, make, first + number * unit, unit, num_threads * unit, self._stop),
                name=f"flatout-producer-{number}",
                daemon=True,
            )
            for number, lane in enumerate(self._lanes)
        ]
        if self._threads:
            _switching.enter()
        self._finalizer = weakref.finalize(self, _close, self._stop, self._lanes, self._threads, self.pid)
        _close_at_exit()
        _living.add(self)
        for thread in self._threads:
            thread.start()

    @property
    def next_number(self) -> int:
        """Number of the item that `take` gives next."""
        return self._next

    def take(self) -> Item:
        """The next item; waits for it if it is not made yet.

        Raises:
            LoaderError: a producer died without a word. Whatever `make` raised for this item; asked again, it
                is raised again, so that no item is passed over in silence.
        """
        if not self._lanes:
            item = self._make(self._next)
        else:
            if not self._ready:
                self._ready = self._next_unit()
            item = self._ready.pop()
            if isinstance(item, _Failure):
                self._ready.append(item)
                self.close()
                raise item.error
        self._next += 1
        return item

    def close(self) -> None:
        """Stop the producers and wait for them."""
        self._finalizer()

    def _next_unit(self) -> list[Item]:
        lane, thread = self._lanes[self._turn], self._threads[self._turn]
        while True:
            try:
                items = lane.queue.get(timeout=POLL_S)
                break
            except Empty:
                if thread.is_alive():
                    continue
            with suppress(Empty):  # it may have come since
                items = lane.queue.get_nowait()
                break
            raise LoaderError("the producers are gone; was the loader closed or used in a fork?")
        self._turn = (self._turn + 1) % len(self._lanes)
        lane.room.put(None)
        return items


class _Producer(threading.Thread):
    """A thread that makes items."""


class _Lane:
    """One producer's way to the consumer.

    `room` holds a token for each unit that may still be made. Both ends are SimpleQueues because these may be
    used from a finaliser that interrupts their own use; a Semaphore would wait for itself.
    """

    def __init__(self, depth: int) -> None:
        self.queue: SimpleQueue[list[Any]] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self.room.put(None)


class _Failure:
    """An error on its way to the consumer, in place of the item that raised it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _produce(
    lane: _Lane, make: Callable[[int], Any], first: int, unit: int, step: int, stop: threading.Event
) -> None:
    """The producer's loop, up to its first failure. Holds nothing of the Prefetcher: dropping that ends it."""
    number = first
    while True:
        lane.room.get()
        if stop.is_set():
            return
        items: list[Any] = []
        try:
            for at in range(number, number + unit):
                items.append(make(at))  # noqa: PERF401  what was made before a failure is kept
        except BaseException as error:
            lane.queue.put([_Failure(error), *reversed(items)])
            return
        items.reverse()  # the consumer pops from the end
        lane.queue.put(items)
        number += step


def _close(stop: threading.Event, lanes: list[_Lane], threads: list[_Producer], pid: int) -> None:
    stop.set()
    if os.getpid() != pid:  # a forked child has no threads to wait for
        return
    for lane in lanes:
        lane.room.put(None)
    # A producer that collects a Prefetcher waits for nobody: others may wait for a lock that it holds. Those of
    # one loader share its cache.
    if not isinstance(threading.current_thread(), _Producer):
        for thread in threads:
            if thread.ident is not None:  # it was started
                thread.join()
    if threads:
        _switching.leave()


_living: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@cache
def _close_at_exit() -> None:
    """End the producers before the interpreter runs its finalisers, to which they would add others meanwhile.

    What is registered last runs first, and the finalisers were registered with the first one made.
    """
    atexit.register(_close_living)


def _close_living() -> None:
    for stream in list(_living):
        stream.close()


class _Switching:
    """Lowers the interpreter's switch interval while any producer lives, and puts it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser may leave while its thread enters
        self._pid = os.getpid()
        self._count = 0
        self._before = 0.0

    def enter(self) -> None:
        if self._pid != os.getpid():
            self._start_anew()
        with self._lock:
            if self._count == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_S))
            self._count += 1

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                sys.setswitchinterval(self._before)

    def _start_anew(self) -> None:
        """A forked child has no producers, whatever its parent had."""
        if self._count:
            sys.setswitchinterval(self._before)
        self._lock, self._count, self._pid = threading.RLock(), 0, os.getpid()


_switching = _Switching()
