"""The log of a cache: one durable line for each segment that a process finished. Many processes append to it.

A line is `crc json` between two line ends: what a killed writer left stands on a line of its own and is
skipped, and nobody else's line is lost with it.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatout.store.files import BINARY, sync_file, write_all
from flatout.store.metadata import ShardMeta, check_datasets, field_spec, shard_meta
from flatout.types import FieldSpec


@dataclass(frozen=True)
class Segment:
    """A shard as a cache knows it: it says itself which fields it has and how they make an item."""

    meta: ShardMeta
    fields: tuple[FieldSpec, ...]
    form: str
    """The items' structure, as JSON; the store only compares it."""

    @classmethod
    def from_json(cls, document: Any) -> Segment:
        meta = shard_meta(document["meta"])
        fields = tuple(field_spec(spec) for spec in document["fields"])
        check_datasets([meta], fields)
        return cls(meta, fields, str(document["form"]))


@dataclass(frozen=True)
class Entry:
    """One line: segments that are gone, segments that are new, and whether a root stands for all of them."""

    drop: tuple[str, ...] = ()
    """Files whose segments no longer count."""
    add: tuple[Segment, ...] = ()
    complete: str = ""
    """Content hash of the root that was committed."""
    form: str = ""
    """The items' structure in that root."""

    @classmethod
    def from_json(cls, document: Any) -> Entry:
        add = tuple(Segment.from_json(segment) for segment in document["add"])
        return cls(tuple(map(str, document["drop"])), add, str(document["complete"]), str(document["form"]))


class CacheLog:
    """The log as one process sees it: what it has read so far, and what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lines = 0
        self._size = 0
        self._position = 0

    def has_news(self) -> bool:
        """Whether somebody wrote since the last `read_new`: one stat, about 2 us.

        Raises:
            FileNotFoundError: the cache was cleared.
        """
        return os.stat(self.path).st_size != self._size  # noqa: PTH116  a Path's own stat costs twice as much

    def read_new(self) -> list[Entry]:
        """The whole lines that are new; damaged ones are skipped.

        Raises:
            FileNotFoundError: the cache was cleared.
        """
        with open(self.path, "rb") as file:
            file.seek(self._position)
            data = file.read()
        self._size = self._position + len(data)
        lines = data[: data.rfind(b"\n") + 1]
        self._position += len(lines)
        found = [entry for entry in map(_parsed, lines.splitlines()) if entry is not None]
        self.num_lines += len(found)
        return found

    def append(self, entry: Entry) -> None:
        """Add a line; when this returns, a crash no longer loses it.

        Raises:
            FileNotFoundError: the cache was cleared; the log is never made again under this name.
        """
        body = json.dumps(asdict(entry), separators=(",", ":")).encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | BINARY)
        try:
            write_all(descriptor, b"\n%08x %s\n" % (zlib.crc32(body), body))
            sync_file(descriptor)
        finally:
            os.close(descriptor)


def _parsed(line: bytes) -> Entry | None:
    crc, _, body = line.partition(b" ")
    try:
        return Entry.from_json(json.loads(body)) if int(crc, 16) == zlib.crc32(body) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
