"""Trace: the rows of one training process, sorted by what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SPANS = ("own", "copy", "forward", "backward", "optimiser", "sync", "log")


class Span(NamedTuple):
    """A stretch of the training thread's time."""

    start: float
    end: float
    phase: str


class Next(NamedTuple):
    """A call of `next`: by the loader's number; 0 samples mean that the epoch was over."""

    start: float
    end: float
    number: int
    num_samples: int


class Placed(NamedTuple):
    """A call at a line of the user's."""

    start: float
    end: float
    file: str
    line: int
    call: str


class BlockRow(NamedTuple):
    """A block of steps with one source."""

    name: str
    round: int
    start: float
    end: float
    num_steps: int
    cpu_s: float


@dataclass
class Trace:
    """One process."""

    pid: int
    spans: list[Span] = field(default_factory=list)
    nexts: list[Next] = field(default_factory=list)
    iters: list[tuple[float, float, int]] = field(default_factory=list)
    syncs: list[Placed] = field(default_factory=list)
    logs: list[Placed] = field(default_factory=list)
    blocks: list[BlockRow] = field(default_factory=list)
    restarts: list[tuple[str, float, float]] = field(default_factory=list)
    """Ends of epochs after the observed steps: source, when, and when the next first batch was there."""
    workers: dict[int, int] = field(default_factory=dict)
    """Loader number by process."""
    loaders: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    observed_until: float | None = None
    alone: tuple[float, int] | None = None
    measured: dict[str, float] = field(default_factory=dict)
    """What parts of a step or a batch take alone, by the names of the facts."""
    watching_s: float = 0.0
    """What the sampler and the meters of this process took during the observation."""
    agreements: dict[str, bool | None] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Measurements of the doctor's own that went wrong."""
    unread: tuple[int, int] | None = None
    """Samples of an epoch of the loader trained on, and of a larger one that nobody had read from."""
    stopped_at: float | None = None
    num_rows: int = 0

    @property
    def train_number(self) -> int | None:
        """The loader that the script trains on; of several the one whose steps were counted."""
        trained = [each for each in self.loaders if each["is_train"]]
        best = max(trained, key=lambda each: (each.get("is_primary", False), each["num_batches"]), default=None)
        return None if best is None else int(best["number"])

    def loader(self, number: int) -> Mapping[str, Any] | None:
        """What is known of a loader."""
        return next((each for each in self.loaders if each["number"] == number), None)


def read_trace(pid: int, rows: Sequence[Sequence[Any]]) -> Trace:
    """A process's rows in, sorted."""
    trace = Trace(pid, num_rows=len(rows))
    for row in rows:
        _add(trace, row[0], row[1:])
    return trace


def _add(trace: Trace, kind: str, values: Sequence[Any]) -> None:
    if kind in SPANS:
        trace.spans.append(Span(values[0], values[1], kind))
    if kind == "sync":
        trace.syncs.append(Placed(*values))
    elif kind == "log":
        trace.logs.append(Placed(*values))
    elif kind == "next":
        trace.nexts.append(Next(*values))
    elif kind == "iter":
        trace.iters.append((values[0], values[1], values[2]))
    elif kind == "block":
        trace.blocks.append(BlockRow(*values))
    elif kind == "restart":
        trace.restarts.append((values[0], values[1], values[2]))
    elif kind == "workers":
        trace.workers |= dict.fromkeys(values[1], values[0])
    else:
        _add_single(trace, kind, values)


def _add_single(trace: Trace, kind: str, values: Sequence[Any]) -> None:
    """Rows that come once, or of which the last counts."""
    if kind == "stopped":
        trace.stopped_at = values[0]
    elif kind == "facts":
        trace.facts = values[0]
    elif kind == "loaders":
        trace.loaders = values[0]
    elif kind == "observed":
        trace.observed_until = values[0]
    elif kind == "alone":
        trace.alone = (values[0], values[1])
    elif kind == "measured":
        trace.measured |= values[0]
    elif kind == "watching":
        trace.watching_s = trace.watching_s or values[0]  # the first tells of the observation alone
    elif kind == "agrees":
        trace.agreements[values[0]] = values[1]
    elif kind == "unread":
        trace.unread = values[0]
    elif kind == "failed":
        trace.failures.append(values[0])
    elif kind == "refused":
        trace.refusals[values[0]] = values[1]
