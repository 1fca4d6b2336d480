"""EnoughSeen: how the doctor ends a script, out of the script's own `next()`."""

from __future__ import annotations


class EnoughSeen(SystemExit):
    """Raised out of `next()` when enough was seen.

    A SystemExit passes `except Exception`, runs every `finally` and `atexit` of the script, prints nothing and
    ends the process with code 0, so that a launcher of several processes sees no failure. In a thread other
    than the main one it ends the thread.
    """

    def __init__(self) -> None:
        super().__init__(0)
