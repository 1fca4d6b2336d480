"""What the demo finds out, stage by stage; every number is measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from flatout.demo.recordings import Recordings
from flatout.store import RunStats, VerifyReport


@dataclass(frozen=True)
class Timing:
    """How long epochs over the same samples took."""

    num_samples: int
    """Samples of one epoch."""
    epochs_s: tuple[float, ...]
    """Seconds of each epoch."""

    @property
    def epoch_s(self) -> float:
        """Seconds of the fastest epoch: what else the machine does can only slow one down."""
        return max(min(self.epochs_s), 1e-9)

    @property
    def samples_per_s(self) -> float:
        return self.num_samples / self.epoch_s

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "samples_per_s": self.samples_per_s}


@dataclass(frozen=True)
class Before:
    """Every sample made anew each time."""

    timing: Timing
    unreadable: tuple[str, ...]
    """Keys of the files that end an ordinary run."""


@dataclass(frozen=True)
class After:
    """Every sample read from the store."""

    timing: Timing
    differing: tuple[str, ...]
    """Keys of samples that are not, bit for bit, what the ordinary way gives."""


@dataclass(frozen=True)
class Damaged:
    """A flipped byte, and what verify says of it."""

    file: str
    key: str
    byte: int
    report: VerifyReport

    @property
    def is_named(self) -> bool:
        """Whether verify names just this sample."""
        return [(damage.file, damage.key) for damage in self.report.damage] == [(self.file, self.key)]


@dataclass(frozen=True)
class Mended:
    """What the repair did, and what verify says afterwards."""

    rows_made: int
    report: VerifyReport
    same_content: bool
    """Whether the content hash is what it was."""


@dataclass(frozen=True)
class Added:
    """A new file, and what the next prepare did about it."""

    file: str
    stats: RunStats

    @property
    def num_made(self) -> int:
        return self.stats.processed - self.stats.failed


@dataclass(frozen=True)
class Outcome:
    """The whole story in numbers."""

    recordings: Recordings
    before: Before
    prepared: RunStats
    verified: VerifyReport
    after: After
    damaged: Damaged
    mended: Mended
    added: Added

    @property
    def factor(self) -> float:
        """How many times faster the samples come."""
        return self.after.timing.samples_per_s / self.before.timing.samples_per_s

    @property
    def epochs_to_pay(self) -> int | None:
        """Epochs after which the prepare has saved the time it took; None: never."""
        saved_s = self.before.timing.epoch_s - self.after.timing.epoch_s
        return math.ceil(self.prepared.wall_s / saved_s) if saved_s > 0 else None

    @property
    def bad_found(self) -> tuple[str, ...]:
        """Paths that the prepare put into quarantine."""
        return tuple(sorted(row.path for row in self.prepared.bad))

    def problems(self) -> list[str]:
        """What did not come out as promised, in words; empty: all did."""
        was_mended = bool(self.mended.report) and self.mended.same_content
        all_bad_found = self.bad_found == tuple(sorted(self.recordings.broken))
        claims = {
            "the broken files and the quarantined ones differ": all_bad_found,
            "verify found damage in a fresh store": bool(self.verified),
            "some samples of the store differ from the ordinary ones": not self.after.differing,
            "verify did not name the damaged sample": self.damaged.is_named,
            "the repair did not bring back the same store": was_mended,
            "prepare did more than the added file": self.added.num_made == 1,
        }
        return [problem for problem, holds in claims.items() if not holds]

    def to_json(self) -> dict[str, Any]:
        """The document of `flatout demo --json`."""
        return {
            "ok": not self.problems(),
            "problems": self.problems(),
            "recordings": asdict(self.recordings),
            "before": {**self.before.timing.to_json(), "unreadable": list(self.before.unreadable)},
            "prepare": self.prepared.to_json(),
            "verify": {"ok": bool(self.verified), "num_shards": self.verified.num_shards},
            "after": {**self.after.timing.to_json(), "differing": list(self.after.differing)},
            "damage": {
                "file": self.damaged.file,
                "key": self.damaged.key,
                "byte": self.damaged.byte,
                "is_named": self.damaged.is_named,
            },
            "repair": {
                "ok": bool(self.mended.report),
                "rows_made": self.mended.rows_made,
                "same_content": self.mended.same_content,
            },
            "added": {
                "file": self.added.file,
                "made": self.added.num_made,
                "unchanged": self.added.stats.unchanged,
                "wall_s": self.added.stats.wall_s,
            },
            "factor": self.factor,
            "epochs_to_pay": self.epochs_to_pay,
            "bad_found": list(self.bad_found),
        }
