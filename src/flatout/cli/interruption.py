"""Interrupted: what a command that was stopped by Ctrl-C or SIGTERM says instead of only ending."""

from __future__ import annotations

from flatout.errors import FlatoutError


class Interrupted(FlatoutError):  # noqa: N818  nothing went wrong
    """The user or the system stopped the command; the message says what is kept and how to go on."""
