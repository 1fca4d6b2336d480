"""Spare: the prefetcher that has run on into the next epoch, until somebody takes it."""

from __future__ import annotations

from typing import Any

from flatout.loader.prefetch import Prefetcher
from flatout.loader.transfer import Sent


class Spare:
    """Holds one prefetcher, or none, and what it was made for."""

    def __init__(self) -> None:
        self._key: Any = None
        self._stream: Prefetcher[Sent] | None = None

    def take(self, key: Any) -> Prefetcher[Sent] | None:
        """The prefetcher if it was made for `key`; it is the caller's now."""
        stream, self._stream = self._stream, None
        return stream if self._key == key else None

    def put(self, key: Any, stream: Prefetcher[Sent] | None) -> None:
        """Hold this one; what was held before is closed."""
        before, self._stream = self._stream, None
        if before is not None:
            before.close()  # it may be interrupted: then nobody finds it half closed
        self._key, self._stream = key, stream
