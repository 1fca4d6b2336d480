"""Notes: what was decided on the way to a loader, in plain words; some of it against what was asked for."""

from __future__ import annotations


class Change(str):
    """A note of something that is not done as it was asked for: it is logged as a warning."""

    __slots__ = ()
