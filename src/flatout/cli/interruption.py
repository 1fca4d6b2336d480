"""Interrupted: what a command that was stopped by Ctrl-C or SIGTERM says instead of only ending."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatout.errors import FlatoutError


class Interrupted(FlatoutError):  # noqa: N818  nothing went wrong
    """The user or the system stopped the command; the message says what is kept and how to go on."""


@contextmanager
def telling_what_is_kept(folder: Path) -> Iterator[None]:
    """What is stopped in here, its imports included, says what the store at `folder` keeps.

    Raises:
        Interrupted: it was.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(what_is_kept(folder)) from error


def what_is_kept(folder: Path) -> str:
    """What a prepare of the store at `folder` that was stopped just now has finished, and how to go on."""
    from flatout.cli.words import count_text
    from flatout.store.journal import num_finished
    from flatout.store.metadata import is_store

    if num_shards := num_finished(folder):
        kept = count_text(num_shards, "finished shard is", "finished shards are")
        return f"{kept} kept; the same command continues where this one was"
    what = "the store is as it was last finished" if is_store(folder) else "no shard was finished yet"
    return f"{what}; the same command starts again"
