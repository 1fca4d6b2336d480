"""`cache.json`: which dataset a cache belongs to, and its log: a cleared cache is never written to again."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flatout.errors import CacheError
from flatout.store.commit import QUARANTINE, STATS
from flatout.store.files import TEMPORARY, write_durable, write_durable_text
from flatout.store.fingerprint import Fingerprint, explain_difference
from flatout.store.metadata import ROOT, SHARD_FOLDER, is_store
from flatout.store.view import VIEW

HEAD = "cache.json"
GUARD = ".cache.guard"
VERSION = 2
"""1: of an early build, whose samples are told apart by another hash."""
GUARD_TIMEOUT_S = 60.0
"""Making or clearing a cache takes milliseconds; whoever holds the guard longer hangs."""


@dataclass(frozen=True)
class Head:
    """What a cache says of itself."""

    id: str
    num_items: int
    fingerprint: Fingerprint

    @property
    def log_name(self) -> str:
        return f"cache-{self.id}.jsonl"

    def is_same(self, other: Head) -> bool:
        """Whether both hold items of the same dataset."""
        return self.num_items == other.num_items and self.fingerprint.digest == other.fingerprint.digest


def open_head(folder: Path, fingerprint: Fingerprint, num_items: int, *, clear: bool = False) -> Head:
    """The head of the cache in this folder; a new one if there is none, or if it is to be cleared.

    Raises:
        CacheError: the cache was made by another dataset or other code, or the folder holds something else.
    """
    try:
        head = None if clear else read_head(folder)
        if head is None:
            folder.mkdir(parents=True, exist_ok=True)
            with _guarded(folder):
                head = None if clear else read_head(folder)
                head = head or _create(folder, Head(secrets.token_hex(8), num_items, fingerprint))
    except OSError as error:
        raise CacheError(f"{folder} cannot hold a cache: {error}. Choose another directory") from error
    _check_fits(folder, head, fingerprint, num_items)
    return head


def read_head(folder: Path) -> Head | None:
    """The head as it stands; None if there is no cache here.

    Raises:
        CacheError: it is damaged, or of a later release.
    """
    path = folder / HEAD
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            raise CacheError(
                f"{path} is version {document['version']}; this release reads {VERSION}. Use clear=True "
                "to fill it anew, or upgrade flatout"
            )
        num_items, name = document["num_items"], document["id"]
        if type(num_items) is not int or not str(name).isalnum():
            raise ValueError("no number of items or no id")
        return Head(str(name), num_items, Fingerprint.from_json(document["fingerprint"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"{path} is damaged ({type(error).__name__}: {error}). Use clear=True to fill the cache anew"
        ) from error


def settled_head(folder: Path) -> Head | None:
    """The head after whoever is just making or clearing the cache is done."""
    with _guarded(folder):
        return read_head(folder)


def _create(folder: Path, head: Head) -> Head:
    """Remove what a cleared or half-made cache left, then begin: the log first, the head that names it last."""
    if is_store(folder) and not (folder / HEAD).exists():
        raise CacheError(
            f"{folder} holds a prepared store, not a cache. Read it with FastDataset, or choose a new directory"
        )
    _remove(folder)
    (folder / SHARD_FOLDER).mkdir(exist_ok=True)
    write_durable(folder / head.log_name, [])
    document: dict[str, Any] = {"format": "flatout-cache", "version": VERSION, "id": head.id}
    document |= {"num_items": head.num_items, "fingerprint": asdict(head.fingerprint)}
    write_durable_text(folder / HEAD, json.dumps(document, indent=1) + "\n")
    return head


def _remove(folder: Path) -> None:
    """Root before head: a root without a head would look like a prepared store."""
    first = [folder / ROOT, folder / HEAD]
    rest = [folder / name for name in (VIEW, QUARANTINE, STATS)]
    shards = folder / SHARD_FOLDER
    for pattern in ("cache-*.jsonl", "index-*.parquet", f"*{TEMPORARY}"):
        rest += folder.glob(pattern)
    rest += [*shards.glob("[0-9]*-*.h5"), *shards.glob(f"*{TEMPORARY}")]
    for path in first:
        path.unlink(missing_ok=True)
    for path in rest:
        with suppress(OSError):  # Windows keeps a file that somebody has mapped; nothing names it any more
            path.unlink()


def _check_fits(folder: Path, head: Head, fingerprint: Fingerprint, num_items: int) -> None:
    changes = explain_difference(head.fingerprint, fingerprint)
    if head.num_items != num_items:
        changes.insert(0, f"the dataset had {head.num_items:,} items and has {num_items:,}")
    if changes:
        raise CacheError(
            f"the cache in {folder} was made by another dataset: {'; '.join(changes)}. Its items may be out of "
            "date: use a new directory, or clear=True to fill it anew. If the change does not alter the items, "
            "give a version= of your own from the start: then only that counts"
        )


@contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    try:
        with FileLock(folder / GUARD, timeout=GUARD_TIMEOUT_S):
            yield
    except Timeout:
        raise CacheError(
            f"{folder / GUARD} has been held for {GUARD_TIMEOUT_S:g} s: another program hangs while it makes "
            "the cache. End it, or choose another directory"
        ) from None
