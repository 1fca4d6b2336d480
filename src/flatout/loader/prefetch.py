"""Producers: threads that make batches ahead of the consumer, who gets them in exact order and helps when late.

The stream never ends (the next epoch follows the last batch) and is made in units, a unit being several small
batches or one large one. Numbers of units that may be made lie in one queue; whoever makes a unit puts it into
the slot of its number. A consumer that finds its slot empty, but for the first, makes units itself rather than
sleep: put to sleep and woken for each unit, cores stood idle for a third of the time.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from flatout.errors import LoaderError
from flatout.loader.switching import switching

Item = TypeVar("Item")
Make = Callable[[int, int], list[Item]]

POLL_S = 1.0
GONE = "the producers are gone; was the loader closed or used in a fork?"
DROP_WAIT_S = 5.0
"""Longest that whoever drops a stream waits for its producers. The collector drops one wherever it happens to
run: also in a thread that holds a lock (of the cache, the log, an import) which a producer waits for."""
SLOTS = 256
"""Room for units that are made ahead: a stream can be widened up to here while it runs; 256 take 45 us."""


class Prefetcher(Generic[Item]):
    """A stream of items 0, 1, 2, ... made ahead by threads; closed when dropped.

    Args:
        make: number of the first item and count in, the items out; runs in the producers and in the consumer.
        first: number of the first item.
        num_threads: producers; 0: the consumer makes all.
        depth: units ahead of the consumer for each producer.
        unit: items made and handed over at once; the first alone, so that it comes soon.
    """

    def __init__(self, make: Make[Item], first: int, num_threads: int, depth: int, unit: int = 1) -> None:
        self.pid = os.getpid()
        self._belt = self._new_belt(make, first, unit, max(1, num_threads * depth))
        self._after = first
        """Number of the item behind those that are ready."""
        self._at = 0
        """Number of the unit that is handed over next."""
        self._limit = 0
        """Number of the first unit that may not be made yet."""
        self.ready: list[Item] = []
        """Items that lie ready for the consumer, the next one last."""
        self._threads: list[_Producer] = []
        self._finalizer = weakref.finalize(self, _close, self._belt, self._threads, self.pid, DROP_WAIT_S)
        _close_at_exit()
        _living.add(self)
        self.resize(num_threads, depth)

    @property
    def is_usable(self) -> bool:
        """Whether items can be taken: not in a forked child, which has not the threads."""
        return self.pid == os.getpid()

    @property
    def next_number(self) -> int:
        """Number of the item that `take` gives next."""
        return self._after - len(self.ready)

    def take(self) -> Item:
        """The next item; made here or waited for if it is not made yet.

        Raises:
            LoaderError: a producer died without a word. Whatever `make` raised for this item; asked again, it
                is raised again, so that no item is passed over in silence. After a KeyboardInterrupt alone the
                stream is of no more use: it may have come between any two steps.
        """
        if not self.ready:
            self.ready = self._next_unit()
            self._after += len(self.ready)
        item = self.ready.pop()
        if isinstance(item, _Failure):
            self.ready.append(item)
            self.close()
            raise item.error
        return item

    def resize(self, num_threads: int, depth: int) -> None:
        """So many producers and units ahead of each from here on; the items and their order stay the same.

        To be called by whoever takes. Units that are made already are handed over, so that fewer ahead are
        reached as they are taken.
        """
        self.shape = (num_threads, depth)
        self._num_ahead = min(self._ahead_of(num_threads, depth), self._belt.num_slots)
        if not self._belt.is_closed:
            self._allow()
            self._hire(num_threads)

    def close(self) -> None:
        """Stop the producers and wait for them, however long their units take."""
        if self._finalizer.detach() is not None:
            _close(self._belt, self._threads, self.pid)

    def _new_belt(self, make: Make[Item], first: int, unit: int, size: int) -> Belt:
        return Belt(make, first, unit, size)

    def _ahead_of(self, num_threads: int, depth: int) -> int:
        """Units that may be ready or under way."""
        return max(1, num_threads * depth)

    def _next_unit(self) -> list[Item]:
        belt, number = self._belt, self._at
        slot = belt.slot(number)
        items: list[Item] | None
        # The first has been a producer's from the start. On a cold disk it took 50 ms, and another beside it
        # 500, which the consumer would see to its end.
        is_helping = number > 0 or not belt.has_staff
        while (items := _get_now(slot)) is None:
            if belt.is_closed:
                raise LoaderError(GONE)
            if (other := _get_now(belt.room) if is_helping else None) is None:
                items = self._wait(slot)
                break
            belt.make(other)
        self._at += 1
        self._allow()
        return items

    def _allow(self) -> None:
        """Let units be made up to so many ahead, some at once: to wake a producer takes the consumer 14 us."""
        stop = self._at + self._num_ahead
        if stop - self._limit >= max(1, self._num_ahead // 2):
            for number in range(self._limit, stop):
                self._belt.room.put(number)
            self._limit = stop

    def _hire(self, num_threads: int) -> None:
        """Start the producers that are missing; those too many leave after their next unit."""
        if num_threads and not self._threads:
            switching.enter()
        missing = self._belt.employ(num_threads)
        while missing:
            thread = _Producer(self._belt, missing[0])
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process: those are missing still
                self._belt.dismiss(missing)
                if not self._threads:  # nobody whose end would do it
                    switching.leave()
                raise
            self._threads.append(thread)
            missing.pop(0)

    def _is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _wait(self, slot: SimpleQueue[list[Item]]) -> list[Item]:
        """A unit that another thread is making."""
        while True:
            is_alive = self._is_alive()  # before the look: it may come last
            with suppress(Empty):
                return slot.get(timeout=POLL_S if is_alive else 0)
            if not is_alive:
                raise LoaderError(GONE)


class _Producer(threading.Thread):
    """A thread that makes items; `number` is its place among those of its stream."""

    def __init__(self, belt: Belt, number: int) -> None:
        super().__init__(target=_produce, args=(belt, number), name=f"flatout-producer-{number}", daemon=True)


class Belt:
    """Where units are made and laid down. Holds nothing of the Prefetcher: dropping that ends its producers.

    All ends are SimpleQueues because these may be used from a finaliser that interrupts their own use; a
    Semaphore would wait for itself.
    """

    def __init__(self, make: Make[Any], first: int, unit: int, size: int) -> None:
        self.num_slots = max(size, SLOTS)
        self.room: SimpleQueue[int] = SimpleQueue()
        """Numbers of the units that may be made, in order."""
        self.is_closed = False
        self._slots: list[SimpleQueue[list[Any]]] = [SimpleQueue() for _ in range(self.num_slots)]
        self._make = make
        self._first = first
        self._unit = unit
        self._num_producers = 0
        """Producers of this number and above leave."""
        self._employed: set[int] = set()
        self._lock = threading.Lock()

    def employ(self, num_producers: int) -> list[int]:
        """So many from here on: the numbers of those to be started."""
        with self._lock:
            self._num_producers = num_producers
            missing = sorted(set(range(num_producers)) - self._employed)
            self._employed.update(missing)
        return missing

    def dismiss(self, numbers: list[int]) -> None:
        """These were not started."""
        with self._lock:
            self._employed.difference_update(numbers)

    @property
    def has_staff(self) -> bool:
        """Whether there is a producer that stays."""
        with self._lock:
            return any(number < self._num_producers for number in self._employed)

    def stays(self, number: int) -> bool:
        """Whether this producer is still wanted; told no, it is counted as gone before it is."""
        with self._lock:
            if number < self._num_producers:
                return True
            self._employed.discard(number)
        return False

    def slot(self, number: int) -> SimpleQueue[list[Any]]:
        """Where a unit is laid down. It is free again before unit number + num_slots may be made."""
        return self._slots[number % self.num_slots]

    def close(self) -> None:
        """No more units are made."""
        self.is_closed = True

    def clear(self) -> None:
        """Nobody makes or takes units any more."""

    def items_of(self, number: int) -> tuple[int, int]:
        """Number of the first item of a unit, and how many it has."""
        return self._first + (1 + (number - 1) * self._unit if number else 0), self._unit if number else 1

    def make(self, number: int) -> None:
        """Make a unit, or lay down the failure in its place."""
        first, count = self.items_of(number)
        try:
            items = self._make(first, count)
        except Exception as error:
            items = [_Failure(error)] if count == 1 else self._one_by_one(first)
        items.reverse()  # the consumer pops from the end
        self.slot(number).put(items)

    def _one_by_one(self, first: int) -> list[Any]:
        """The items of a unit that could not be made at once, up to the one that fails."""
        items: list[Any] = []
        for number in range(first, first + self._unit):
            try:
                items += self._make(number, 1)
            except Exception as error:
                return [*items, _Failure(error)]
        return items


def _get_now(queue: SimpleQueue[Any]) -> Any:
    """What lies in a queue, or None."""
    try:
        return queue.get_nowait()
    except Empty:
        return None


class _Failure:
    """An error on its way to the consumer, in place of the item that raised it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _produce(belt: Belt, own_number: int) -> None:
    """The producer's loop."""
    while belt.stays(own_number):
        number = belt.room.get()
        if belt.is_closed:
            return
        try:
            belt.make(number)
        except BaseException as error:  # no Ctrl-C comes here: an exit, or whatever else `make` means by it
            belt.slot(number).put([_Failure(error)])


def _close(belt: Belt, threads: list[_Producer], pid: int, timeout_s: float | None = None) -> None:
    belt.close()
    if os.getpid() != pid:  # a forked child has no threads to wait for
        return
    for _ in threads:
        belt.room.put(-1)
    try:
        # A producer that collects a Prefetcher waits for nobody: others may wait for a lock that it holds.
        # Those of one loader share its cache.
        if not isinstance(threading.current_thread(), _Producer):
            _join(threads, timeout_s)
            if not any(thread.is_alive() for thread in threads):
                belt.clear()
    finally:
        if threads:
            switching.leave()


def _join(threads: list[_Producer], timeout_s: float | None) -> None:
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))


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
