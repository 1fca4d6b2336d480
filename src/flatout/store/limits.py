"""What stops a prepare early: a disk that is full or fails, too many bad rows."""

from __future__ import annotations

import errno
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from flatout.errors import FlatoutError, StoreError, StoreSpaceError, TooManyBadError
from flatout.store.commit import QUARANTINE, write_quarantine
from flatout.store.receipt import BadRow
from flatout.units import bytes_text

HEADROOM = 1.02
"""Tables, alignment and the index beside the samples' own bytes."""
SPARE_BYTES = 1 << 20
"""Metadata, log and journal."""
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*|\d[\d.,]*")
"""What differs between two errors of one reason: names, paths, numbers."""


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written where the store lies."""
    return shutil.disk_usage(folder).free


def check_free_space(folder: Path, num_bytes: float) -> None:
    """Refuse a job that cannot fit.

    Raises:
        StoreSpaceError: naming need and free.
    """
    need, free = _need(num_bytes), free_bytes(folder)
    if need > free:
        raise StoreSpaceError(
            f"{folder}: about {_sized(need)} are needed, {_sized(free)} are free. Make room, choose another "
            "place (--output-dir), or shrink the samples (encoding: float16 or uint8, compression: zstd)"
        )


def doubt_space(folder: Path, num_bytes: float) -> str:
    """A sentence on a job that fits only if its samples can be compressed; "" if it fits in any case."""
    need, free = _need(num_bytes), free_bytes(folder)
    if need <= free:
        return ""
    return (
        f"{folder}: before compression the samples take about {_sized(need)}, {_sized(free)} are free; if that "
        "is not enough, the run stops, and continues when there is room"
    )


def _need(num_bytes: float) -> int:
    """With what stands beside so many bytes of samples."""
    return int(num_bytes * HEADROOM) + (SPARE_BYTES if num_bytes else 0)


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
            free = free_bytes(folder)
            raise StoreSpaceError(
                f"{folder}: {error.strerror} (without the unfinished file {free:,} bytes are free"
                f"{_in_units(', {}', free)}). Nothing is lost: make room and run the same command again to "
                "continue"
            ) from error
        raise StoreError(
            f"{error.filename or folder}: {error.strerror or error}. What was finished is kept: when this is "
            "mended, run the same command again"
        ) from error


def check_bad_fraction(folder: Path, bad: Sequence[BadRow], num_rows: int, max_fraction: float) -> None:
    """Stop as soon as more rows have failed than are allowed.

    Raises:
        TooManyBadError: naming the most frequent reason; the list so far is in quarantine.jsonl.
    """
    if len(bad) <= max_fraction * num_rows:
        return
    write_quarantine(folder, bad)
    raise TooManyBadError(
        f"{len(bad):,} of {num_rows:,} rows failed, more than max_bad_fraction {max_fraction:g} allows. "
        f"{_reasons(bad)}. All so far are in "
        f"{folder / QUARANTINE}. Mend them and run again, or raise max_bad_fraction: what is finished is kept"
    )


def refuse_all_bad(folder: Path, bad: Sequence[BadRow]) -> NoReturn:
    """Stop where no row is good, whatever is allowed: nobody knows what a sample looks like.

    Raises:
        TooManyBadError: naming the most frequent reason; the list is in quarantine.jsonl.
    """
    write_quarantine(folder, bad)
    raise TooManyBadError(
        f"all {len(bad):,} rows failed, so there is nothing to store. {_reasons(bad)}. All are in "
        f"{folder / QUARANTINE}. Mend them and run again"
    )


def _reasons(bad: Sequence[BadRow]) -> str:
    """The most frequent reason with its count and an example, and how many others there are."""
    counts = Counter(map(_reason, bad))
    reason, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    example = min((row for row in bad if _reason(row) == reason), key=lambda row: row.key)
    told = f"{example.path or example.key}: {example.stage}: {example.error}"
    if len(counts) == 1:
        return f"All for one reason, as in {told}" if count > 1 else told
    if count == 1:
        return f"{len(counts):,} different reasons, such as {told}"
    others = "1 other reason" if len(counts) == 2 else f"{len(counts) - 1:,} other reasons"
    return f"Most often ({count:,} rows): {told}; {others}"


def _reason(row: BadRow) -> tuple[str, str]:
    """Stage and error without what belongs to this row alone."""
    own = row.path.rpartition("/")[2] or row.key
    return row.stage, _DETAIL.sub("", row.error.replace(own, ""))


def _sized(num_bytes: int) -> str:
    """8704000 -> '8,704,000 bytes (8.3 MiB)'."""
    return f"{num_bytes:,} bytes{_in_units(' ({})', num_bytes)}"


def _in_units(pattern: str, num_bytes: int) -> str:
    """The size in KiB or more, in this pattern; nothing for one that is below."""
    return pattern.format(bytes_text(num_bytes)) if num_bytes >= 1024 else ""
