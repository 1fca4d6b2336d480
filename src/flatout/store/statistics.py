"""What a prepare did, in numbers: `preprocessing_stats.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flatout.store.receipt import BadRow, Receipt


@dataclass(frozen=True)
class RunStats:
    """One prepare's counts, bytes and times."""

    num_samples: int
    """Samples in the store now."""
    processed: int
    """Rows made in this run, and in the one that it continued."""
    unchanged: int
    """Rows whose samples were kept."""
    failed: int
    """Rows in quarantine."""
    removed: int
    """Samples of the version before that are gone or replaced."""
    bytes_in: int
    """Size of the source files of the rows made."""
    bytes_out: int
    """Size of the shards made."""
    wall_s: float
    rows_per_s: float
    """Rows that this run made itself, by its time."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Worker seconds by stage: make (decode and transform), encode, write."""
    largest_errors: Mapping[str, float] = field(default_factory=dict)
    """Largest absolute difference that each field's encoding made."""
    peak_worker_bytes: int = 0
    num_workers: int = 0
    continued: int = 0
    """Of the rows processed, those that an earlier run, which was cut off, had finished."""
    content_hash: str = ""
    bad: tuple[BadRow, ...] = ()

    @classmethod
    def collect(
        cls,
        *,
        receipts: Sequence[Receipt],
        num_samples: int,
        unchanged: int,
        removed: int,
        failed: int,
        bytes_in: int,
        wall_s: float,
        num_workers: int,
        continued: int = 0,
    ) -> RunStats:
        """Add up what the tasks report."""
        seconds: dict[str, float] = {}
        errors: dict[str, float] = {}
        for receipt in receipts:
            for stage, spent in receipt.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + spent
            for name, error in receipt.largest_errors.items():
                errors[name] = max(errors.get(name, 0.0), error)
        processed = sum(receipt.num_rows for receipt in receipts)
        return cls(
            num_samples=num_samples,
            processed=processed,
            unchanged=unchanged,
            failed=failed,
            removed=removed,
            bytes_in=bytes_in,
            bytes_out=sum(receipt.bytes_out for receipt in receipts),
            wall_s=wall_s,
            rows_per_s=(processed - continued) / max(wall_s, 1e-9),
            seconds=seconds,
            largest_errors=errors,
            peak_worker_bytes=max((receipt.peak_bytes for receipt in receipts), default=0),
            num_workers=num_workers,
            continued=continued,
        )

    def to_json(self) -> dict[str, Any]:
        """What the stats file holds; the bad rows are in quarantine.jsonl."""
        document = asdict(self)
        document.pop("bad")
        document.pop("content_hash")
        return document
