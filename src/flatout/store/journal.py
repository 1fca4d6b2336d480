"""The journal of a prepare under way: its plan, then one durable line for each finished task.

`plan-<hash>.parquet` holds the rows as they were scanned, so that finished shards can be used even if the
manifest has changed since; `journal.jsonl` holds the rest. Both go when the root has been swapped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flatout.errors import StoreError
from flatout.store.files import BINARY, sync_file, temporary_beside, write_all, write_durable_text
from flatout.store.metadata import SHARD_FOLDER, ShardMeta, field_spec, shard_meta
from flatout.store.shard_reader import ShardReader
from flatout.store.task import Receipt
from flatout.types import FieldSpec

JOURNAL = "journal.jsonl"
PLANS = f"plan-{'?' * 16}.parquet"
"""Pattern of the plan files; `JournalHead.plan_file` gives them their names."""


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The first line: which plan this journal belongs to."""

    plan: str
    """Hash of everything that decides the shards' bytes."""
    fields: tuple[FieldSpec, ...]
    fingerprint: Mapping[str, Any]
    first_task: int
    num_tasks: int
    rows_per_shard: int
    adopted: tuple[ShardMeta, ...] = ()
    """Shards that an earlier plan finished and no root names yet."""
    is_forced: bool = False
    """Whether everything was to be made again; only then another such run may use what this one finished."""
    bytes_per_row: float = 0.0
    """What a row was expected to take on disk at least; 0: not noted."""
    planned_bytes: float = 0.0
    """What all rows were expected to take before compression; 0: not noted."""

    @property
    def plan_file(self) -> str:
        return f"plan-{self.plan[:16]}.parquet"


@dataclass(slots=True)
class Journal:
    """An open journal: what an earlier run finished, and the place to note what this one does."""

    folder: Path
    head: JournalHead
    receipts: dict[int, Receipt]

    def shards(self) -> list[ShardMeta]:
        """Every shard that this plan has finished."""
        return [shard for receipt in self.receipts.values() for shard in receipt.shards]

    def is_later_try(self, task: int) -> bool:
        """Whether a task made rows again that had failed, beside the plan's own."""
        return task >= self.head.first_task + self.head.num_tasks

    def append(self, receipt: Receipt) -> None:
        """Note a finished task; when this returns, a crash no longer loses it."""
        line = json.dumps(receipt.to_json(), separators=(",", ":")) + "\n"
        descriptor = os.open(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND | BINARY)
        try:
            write_all(descriptor, line.encode())
            sync_file(descriptor)
        finally:
            os.close(descriptor)
        self.receipts[receipt.task] = receipt


def begin(folder: Path, head: JournalHead, rows: Any) -> Journal:
    """Start a journal: plan file first, then the line that names it."""
    temporary = temporary_beside(folder / head.plan_file)
    try:
        # Hashes and times as they are: to compress them takes seven times as long, with nobody at work.
        packed = {name: "zstd" if name == "path" else "none" for name in rows.column_names}
        pq.write_table(rows, temporary, compression=packed, use_dictionary=["path"])
        with open(temporary, "rb+") as file:
            sync_file(file.fileno())
        temporary.replace(folder / head.plan_file)
    finally:
        temporary.unlink(missing_ok=True)
    write_durable_text(folder / JOURNAL, json.dumps(asdict(head), separators=(",", ":")) + "\n")
    return Journal(folder, head, {})


def find(folder: Path) -> Journal | None:
    """The journal an earlier run left, with the tasks whose shards are there; None if there is none.

    A torn last line (the run was killed while it wrote) counts as not written.
    """
    journal, is_torn = _read(folder)
    if journal is not None and is_torn:
        _rewrite(journal)
    return journal


def _read(folder: Path) -> tuple[Journal | None, bool]:
    """The journal as it stands, and whether its last line is torn."""
    try:
        lines = (folder / JOURNAL).read_text(errors="replace").splitlines(keepends=True)
        document = json.loads(lines[0])
        document["fields"] = tuple(field_spec(spec) for spec in document["fields"])
        document["adopted"] = tuple(shard_meta(shard) for shard in document["adopted"])
        document["adopted"] = tuple(shard for shard in document["adopted"] if _is_there(folder, shard))
        head = JournalHead(**document)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None, False
    receipts = {}
    for line in lines[1:]:
        with suppress(ValueError, KeyError, TypeError):
            receipt = Receipt.from_json(json.loads(line))
            if line.endswith("\n") and all(_is_there(folder, shard) for shard in receipt.shards):
                receipts[receipt.task] = receipt
    return Journal(folder, head, receipts), not lines[-1].endswith("\n")


def num_finished(folder: Path) -> int:
    """Shards that a prepare which was stopped has finished and no root names yet; changes nothing."""
    journal = _read(folder)[0]
    return 0 if journal is None else len(journal.shards()) + len(journal.head.adopted)


def without_damaged(journal: Journal) -> Journal:
    """The journal without the shards whose tables are damaged: their tasks are done again."""
    head, fields = journal.head, journal.head.fields
    head = replace(head, adopted=tuple(s for s in head.adopted if _is_whole(journal.folder, s, fields)))
    whole = {
        task: receipt
        for task, receipt in journal.receipts.items()
        if all(_is_whole(journal.folder, shard, fields) for shard in receipt.shards)
    }
    return Journal(journal.folder, head, whole)


def _is_whole(folder: Path, shard: ShardMeta, fields: Sequence[FieldSpec]) -> bool:
    try:
        return bool(ShardReader(folder / SHARD_FOLDER / shard.file, shard, fields).tables)
    except StoreError:
        return False


def planned_rows(journal: Journal) -> Any | None:
    """The rows as they were when the journal's plan was made; None if the plan file is lost."""
    try:
        return pq.read_table(journal.folder / journal.head.plan_file)
    except (OSError, pa.ArrowException):
        return None


def discard(folder: Path) -> None:
    """Forget the journal: its work is in the root now, or is not wanted."""
    (folder / JOURNAL).unlink(missing_ok=True)
    for path in folder.glob(PLANS):
        path.unlink(missing_ok=True)


def _rewrite(journal: Journal) -> None:
    """Drop a torn line, so that the next one does not continue it."""
    lines = [asdict(journal.head), *(receipt.to_json() for receipt in journal.receipts.values())]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    write_durable_text(journal.folder / JOURNAL, text)


def _is_there(folder: Path, shard: ShardMeta) -> bool:
    path = folder / SHARD_FOLDER / shard.file
    return path.is_file() and path.stat().st_size == shard.size
