"""Receipt: what a finished task reports, and with it the rows that gave no sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flatout.source import SampleMaker, Sights
from flatout.store.measure import Measure
from flatout.store.metadata import ShardMeta, shard_meta
from flatout.types import Row

MAX_REASON_CHARS = 500
"""Longest reason that is kept of a bad row: a few hundred thousand of them must still fit a journal."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that gave no sample: what quarantine.jsonl records."""

    key: str
    path: str
    stage: str
    error: str

    @classmethod
    def of(cls, maker: SampleMaker, row: Row, stage: str, reason: str) -> BadRow:
        """With texts that any file and terminal takes, whatever the decoder or the file's name held."""
        return cls(row.key, _plain(maker.path_of(row)), stage, _plain(reason))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a finished task reports; one journal line."""

    task: int
    shards: tuple[ShardMeta, ...]
    bad: tuple[BadRow, ...]
    num_rows: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time by stage: make (decode, transform), encode, look; write and sync, while the next shard is made."""
    bytes_out: int = 0
    largest_errors: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    """Largest resident size of the process that made it."""
    digests: Mapping[str, int] = field(default_factory=dict)
    """Identity of each sample by key; only of a task that writes nothing."""
    measures: Mapping[str, Measure] = field(default_factory=dict)
    """Values of each field; only where they were to be measured."""
    sights: Sights | None = None
    """What each row was made from; only where that was to be looked at. The journal keeps it in its own way."""

    def to_json(self) -> dict[str, Any]:
        return asdict(replace(self, sights=None))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Receipt:
        shards = tuple(shard_meta(shard) for shard in document["shards"])
        bad = tuple(BadRow(**row) for row in document["bad"])
        return cls(**{**document, "shards": shards, "bad": bad})


def _plain(text: str) -> str:
    """Without lone surrogates and line ends, and not longer than a line of the log may be."""
    text = " ".join(text.encode(errors="backslashreplace").decode().splitlines())
    return text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}..."
