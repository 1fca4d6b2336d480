"""The journal of a prepare under way: its plan, then one durable line for each finished task.

A line has what its rows were made from, so that finished shards can be used even if the manifest has changed
since; `plan-<hash>.parquet` has the same of rows that were made before. Both go when the root has been swapped.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flatout.errors import StoreError
from flatout.source import Sights
from flatout.store.files import BINARY, sync_file, temporary_beside, write_all, write_durable_text
from flatout.store.metadata import (
    JOURNAL,
    SHARD_FOLDER,
    ShardMeta,
    check_datasets,
    field_spec,
    shard_meta,
)
from flatout.store.receipt import Receipt
from flatout.store.shard_reader import ShardReader
from flatout.types import Array, FieldSpec

PLANS = f"plan-{'?' * 16}.parquet"
"""Pattern of the plan files; `JournalHead.plan_file` gives them their names."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The first line: which plan this journal belongs to."""

    plan: str
    """Its hash; see `Plan.digest`."""
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
    base: str = ""
    """Digest of what made the version whose samples stay beside this plan's; empty: none stay."""

    @property
    def plan_file(self) -> str:
        return f"plan-{self.plan[:16]}.parquet"

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> JournalHead:
        """From its JSON form.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none, or names what no store has.
        """
        specs = tuple(field_spec(spec) for spec in document["fields"])
        adopted = tuple(shard_meta(shard) for shard in document["adopted"])
        check_datasets(adopted, specs)
        if not _DIGEST.fullmatch(document["plan"]):
            raise ValueError(f"{document['plan']!r} is no hash of a plan")
        return cls(**{**document, "fields": specs, "adopted": adopted})


_MADE_KINDS = {"key_hashes": "<u8", "fingerprints": "<u8", "by_content": "?"}


@dataclass(frozen=True, slots=True)
class MadeRows:
    """Rows that gave samples: what a later run compares to tell whether they would give the same."""

    key_hashes: Array
    fingerprints: Array
    by_content: Array

    @classmethod
    def of(cls, key_hashes: Array, sights: Sights | None) -> MadeRows:
        """Of a task's rows that gave samples; of those that changed meanwhile with 0, which matches nothing."""
        if sights is None:
            return cls.from_json({})
        is_made = sights.sizes >= 0
        return cls(key_hashes[is_made], sights.fingerprints[is_made], sights.by_content[is_made])

    def to_json(self) -> dict[str, str]:
        """17 bytes a row; as JSON's own numbers they would take twice as many, and ten times as long."""
        arrays = {name: getattr(self, name).astype(kind) for name, kind in _MADE_KINDS.items()}
        return {name: b64encode(array.tobytes()).decode() for name, array in arrays.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, str]) -> MadeRows:
        """Raises ValueError where the three do not fit together."""
        hashes, fingerprints, by_content = (
            np.frombuffer(b64decode(document.get(name, ""), validate=True), kind)
            for name, kind in _MADE_KINDS.items()
        )
        if not len(hashes) == len(fingerprints) == len(by_content):
            raise ValueError("a torn record of rows")
        return cls(hashes, fingerprints, by_content)


@dataclass(slots=True)
class Journal:
    """An open journal: what an earlier run finished, and the place to note what this one does."""

    folder: Path
    head: JournalHead
    receipts: dict[int, Receipt]
    made: dict[int, MadeRows]
    """What the rows of each of these tasks were made from."""

    def shards(self) -> list[ShardMeta]:
        """Every shard that this plan has finished."""
        return [shard for receipt in self.receipts.values() for shard in receipt.shards]

    def is_later_try(self, task: int) -> bool:
        """Whether a task made rows again that had failed, beside the plan's own."""
        return task >= self.head.first_task + self.head.num_tasks

    def made_later(self) -> Array:
        """Key hashes of rows that had failed in a task of the plan, and that a later try has made."""
        later = [rows.key_hashes for task, rows in self.made.items() if self.is_later_try(task)]
        return np.concatenate([np.empty(0, np.uint64), *later])

    def append(self, receipt: Receipt, made: MadeRows) -> None:
        """Note a finished task; when this returns, a crash no longer loses it."""
        line = _line(receipt, made)
        descriptor = os.open(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND | BINARY)
        try:
            write_all(descriptor, line.encode())
            sync_file(descriptor)
        finally:
            os.close(descriptor)
        self.receipts[receipt.task], self.made[receipt.task] = receipt, made


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
    write_durable_text(folder / JOURNAL, _first_line(head))
    return Journal(folder, head, {}, {})


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
        head = JournalHead.from_json(json.loads(lines[0]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None, False
    head = replace(head, adopted=tuple(shard for shard in head.adopted if _is_there(folder, shard)))
    receipts, made = {}, {}
    for line in lines[1:]:
        with suppress(ValueError, KeyError, TypeError):
            document = dict(json.loads(line))
            rows = MadeRows.from_json(dict(document.pop("made", {})))
            receipt = Receipt.from_json(document)
            check_datasets(receipt.shards, head.fields)
            if line.endswith("\n") and all(_is_there(folder, shard) for shard in receipt.shards):
                receipts[receipt.task], made[receipt.task] = receipt, rows
    return Journal(folder, head, receipts, made), not lines[-1].endswith("\n")


def num_finished(folder: Path) -> int:
    """Shards that a prepare which was stopped has finished and no root names yet; changes nothing."""
    journal = _read(folder)[0]
    return 0 if journal is None else len(journal.shards()) + len(journal.head.adopted)


def without_damaged(journal: Journal, distrusted: Collection[str] = ()) -> Journal:
    """The journal without the shards that are distrusted or whose tables are damaged: they are made again."""
    head, fields = journal.head, journal.head.fields

    def is_whole(shard: ShardMeta) -> bool:
        return shard.file not in distrusted and _is_whole(journal.folder, shard, fields)

    head = replace(head, adopted=tuple(filter(is_whole, head.adopted)))
    whole = {task: receipt for task, receipt in journal.receipts.items() if all(map(is_whole, receipt.shards))}
    return Journal(journal.folder, head, whole, {task: journal.made[task] for task in whole})


def _is_whole(folder: Path, shard: ShardMeta, fields: Sequence[FieldSpec]) -> bool:
    try:
        return bool(ShardReader(folder / SHARD_FOLDER / shard.file, shard, fields).tables)
    except StoreError:
        return False


def recorded_rows(journal: Journal) -> Any | None:
    """Rows as they were when they were made, or when the journal's plan was; None if the plan file is lost."""
    try:
        planned = pq.read_table(journal.folder / journal.head.plan_file)
    except (OSError, pa.ArrowException):
        return None
    made = [_as_table(rows, planned.schema) for rows in journal.made.values()]
    hashes = np.concatenate([np.empty(0, np.uint64), *(rows.key_hashes for rows in journal.made.values())])
    is_older = np.isin(planned["key_hash"].to_numpy(), hashes)
    return pa.concat_tables([planned.filter(pa.array(~is_older)), *made])


def _as_table(rows: MadeRows, schema: Any) -> Any:
    """In the form of the plan file. What is not in the journal is looked at anew by whoever goes on."""
    known = {"key_hash": rows.key_hashes, "fingerprint": rows.fingerprints, "by_content": rows.by_content}
    columns = [
        pa.array(known[field.name], field.type)
        if field.name in known
        else pa.nulls(len(rows.key_hashes), field.type).fill_null("" if pa.types.is_string(field.type) else 0)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def discard(folder: Path) -> None:
    """Forget the journal: its work is in the root now, or is not wanted."""
    (folder / JOURNAL).unlink(missing_ok=True)
    for path in folder.glob(PLANS):
        path.unlink(missing_ok=True)


def _rewrite(journal: Journal) -> None:
    """Drop a torn line, so that the next one does not continue it."""
    lines = [_line(receipt, journal.made[task]) for task, receipt in journal.receipts.items()]
    write_durable_text(journal.folder / JOURNAL, "".join([_first_line(journal.head), *lines]))


def _first_line(head: JournalHead) -> str:
    return json.dumps(asdict(head), separators=(",", ":")) + "\n"


def _line(receipt: Receipt, made: MadeRows) -> str:
    return json.dumps({**receipt.to_json(), "made": made.to_json()}, separators=(",", ":")) + "\n"


def _is_there(folder: Path, shard: ShardMeta) -> bool:
    path = folder / SHARD_FOLDER / shard.file
    return path.is_file() and path.stat().st_size == shard.size
