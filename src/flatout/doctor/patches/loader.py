"""DataLoader: `iter` and `next` of every loader and of every subclass, by patches of torch's base classes."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import dataloader

from flatout.doctor.child.session import SESSION
from flatout.doctor.child.watch import WATCH
from flatout.doctor.observe.settings import ObserveSettings


def patch_loaders(settings: ObserveSettings) -> None:
    """From here on every loader of the training thread is seen."""
    advance = dataloader._BaseDataLoaderIter.__next__
    iterate = dataloader.DataLoader.__iter__
    SESSION.begin(settings, advance, iterate)

    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807
        if not WATCH.is_here():
            return advance(self)
        seen = getattr(self, "_flatout_seen", None)
        return SESSION.next(self, SESSION.adopt(self, self._flatout_loader) if seen is None else seen)

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807
        return SESSION.iterate(self) if WATCH.is_here() else iterate(self)

    begin = dataloader._BaseDataLoaderIter.__init__

    @functools.wraps(begin)
    def __init__(self: Any, loader: Any) -> None:  # noqa: N807
        self._flatout_loader = loader
        begin(self, loader)

    setattr(dataloader._BaseDataLoaderIter, "__init__", __init__)  # noqa: B010  a method, to mypy
    dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]
    dataloader.DataLoader.__iter__ = __iter__  # type: ignore[method-assign]
