"""What stops a prepare early: a disk that is full or fails, too many bad rows."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flatout.errors import FlatoutError, StoreError, StoreSpaceError, TooManyBadError
from flatout.store.commit import QUARANTINE, write_quarantine
from flatout.store.task import BadRow

HEADROOM = 1.02
"""Tables, alignment and the index beside the samples' own bytes."""
SPARE_BYTES = 8 << 20


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written where the store lies."""
    return shutil.disk_usage(folder).free


def check_free_space(folder: Path, num_bytes: float) -> None:
    """Refuse a job that cannot fit.

    Raises:
        StoreSpaceError: naming need and free.
    """
    need, free = int(num_bytes * HEADROOM) + (SPARE_BYTES if num_bytes else 0), free_bytes(folder)
    if need > free:
        raise StoreSpaceError(
            f"{folder}: about {need:,} bytes are needed, {free:,} are free. Make room, choose another "
            "place (--output-dir), or shrink the samples (encoding: float16 or uint8, compression: zstd)"
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A disk that is full or fails becomes an error that says where, and what to do.

    Raises:
        StoreSpaceError: naming what is free. StoreError: anything else that the system refused.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FlatoutError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreSpaceError(
                f"{folder}: {error.strerror} (without the unfinished file {free_bytes(folder):,} bytes "
                "are free). Nothing is lost: make room and run the same command again to continue"
            ) from error
        raise StoreError(
            f"{error.filename or folder}: {error.strerror or error}. What was finished is kept: when this is "
            "mended, run the same command again"
        ) from error


def check_bad_fraction(folder: Path, bad: Sequence[BadRow], num_rows: int, max_fraction: float) -> None:
    """Stop as soon as more rows have failed than are allowed.

    Raises:
        TooManyBadError: naming the first of them; the list so far is in quarantine.jsonl.
    """
    if len(bad) <= max_fraction * num_rows:
        return
    write_quarantine(folder, bad)
    first = min(bad, key=lambda row: row.key)
    raise TooManyBadError(
        f"{len(bad):,} of {num_rows:,} rows failed, more than max_bad_fraction {max_fraction:g} allows. "
        f"The first: {first.path or first.key}: {first.stage}: {first.error}. All so far are in "
        f"{folder / QUARANTINE}. Mend them and run again, or raise max_bad_fraction: finished shards are kept"
    )
