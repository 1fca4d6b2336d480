"""The way of a batch from a worker to the training process: CPU seconds of packing and unpacking it."""

from __future__ import annotations

from multiprocessing import queues
from time import thread_time
from typing import Any


class HandOver:
    """Seconds and batches, packed (in a worker) or unpacked (in the training process)."""

    def __init__(self) -> None:
        self.packed_s = 0.0
        self.unpacked_s = 0.0
        self.num_unpacked = 0

    def take_packed(self) -> float:
        """Seconds of packing since the last time."""
        seconds, self.packed_s = self.packed_s, 0.0
        return seconds


HAND_OVER = HandOver()


def patch_queues() -> None:
    """Time the pickling of the queues that torch's workers use, whichever thread does it."""
    original: Any = queues._ForkingPickler  # type: ignore[attr-defined]

    class TimedPickler(original):  # type: ignore[misc]
        """The same pickler."""

        @classmethod
        def dumps(cls, obj: Any, protocol: int | None = None) -> Any:
            start = thread_time()
            packed = original.dumps(obj, protocol)
            if _is_batch(obj):
                HAND_OVER.packed_s += thread_time() - start
            return packed

        @staticmethod
        def loads(packed: Any) -> Any:
            start = thread_time()
            obj = original.loads(packed)
            if _is_batch(obj):
                HAND_OVER.unpacked_s += thread_time() - start
                HAND_OVER.num_unpacked += 1
            return obj

    queues._ForkingPickler = TimedPickler  # type: ignore[attr-defined]


def _is_batch(obj: Any) -> bool:
    """What a worker sends: its number and the data. Requests, the other way, hold a list of indices."""
    if not (isinstance(obj, tuple) and len(obj) == 2 and isinstance(obj[0], int)):
        return False
    return not (isinstance(obj[1], list) and all(isinstance(index, int) for index in obj[1][:1]))
