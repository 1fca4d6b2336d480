"""DataLoader: `iter` and `next` of every loader and of every subclass, by patches of torch's base classes."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import dataloader

from flatout.doctor.child_session import SESSION
from flatout.doctor.child_watch import WATCH
from flatout.doctor.observe_settings import ObserveSettings


def patch_loaders(settings: ObserveSettings) -> None:
    """From here on every loader of the training thread is seen."""
    advance = dataloader._BaseDataLoaderIter.__next__
    iterate = dataloader.DataLoader.__iter__
    SESSION.begin(settings, advance, iterate)

    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807
        seen = getattr(self, "_flatout_seen", None)
        if seen is None or not WATCH.is_here():
            return advance(self)
        return SESSION.next(self, seen)

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807
        return SESSION.iterate(self) if WATCH.is_here() else iterate(self)

    dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]
    dataloader.DataLoader.__iter__ = __iter__  # type: ignore[method-assign]
