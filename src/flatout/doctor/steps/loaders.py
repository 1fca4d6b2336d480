"""LoaderFacts: rows of the processes that make batches in, what a batch costs by stage and function out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from flatout.doctor.record import FunctionCost, LoaderFacts
from flatout.doctor.steps.trace import Trace

MAX_FUNCTIONS = 25
LEAST_SHARE = 0.01
"""Functions below this part of a batch are left out."""
ENOUGH = 5
"""Batches from which on the first of each process, and those looked at closely, are left out."""
MANY = 100
"""Samples of which one is a hundredth. Of 20 the slowest is whichever waited for a core: 308 medians once."""


class BatchRow(NamedTuple):
    """One batch, as `Meter.end` writes it."""

    start: float
    end: float
    number: int
    cpu_s: float
    making_s: float
    items_us: list[int]
    collate_s: float
    run_wait_s: float | None
    read_bytes: int | None
    num_reads: int | None
    disk_bytes: int | None
    num_opened: int
    last_read: str
    packed_s: float
    is_looked_at: bool
    num_items: int | None
    draws_random: bool | None
    padding: list[float] | None


class Sampled(NamedTuple):
    """A stack that was seen so often, as `Sampler.write` writes it."""

    phase: str
    number: int
    places: list[list[Any]]
    text: str
    is_reading: bool
    is_logging: bool


class Made(NamedTuple):
    """All that is known of how a loader's batches are made."""

    rows: list[BatchRow]
    """Those that are typical: without first ones and those looked at closely."""
    looked_at: list[BatchRow]
    samples: list[Sampled]
    calls: Counter[tuple[str, str, int]]


def made_by(
    trace: Trace,
    number: int,
    batches: Mapping[int, Sequence[Sequence[Any]]],
    samples: Mapping[int, Sequence[Sequence[Any]]],
    calls: Mapping[int, Sequence[Sequence[Any]]],
) -> Made:
    """The rows of a loader's workers, or the training thread's own for it."""
    pids = [pid for pid, owner in trace.workers.items() if owner == number]
    rows = [BatchRow(*row) for pid in pids for row in batches.get(pid, ())[1:]]
    looked = [BatchRow(*row) for pid in pids for row in batches.get(pid, ())]
    if not pids:
        looked = [row for row in map(_as_row, batches.get(trace.pid, ())) if row.number == number]
        rows, pids = looked[1:], [trace.pid]
    until = trace.observed_until if trace.observed_until is not None else float("inf")
    typical = [row for row in rows if not row.is_looked_at and row.end <= until]
    for fewer in (rows, looked):
        typical = typical if len(typical) >= ENOUGH else fewer
    return Made(
        typical,
        [row for row in looked if row.is_looked_at],
        [Sampled(*row) for pid in pids for row in samples.get(pid, ()) if row[0] == "make"],
        Counter({(name, file, line): n for pid in pids for name, file, line, n in calls.get(pid, ())}),
    )


def _as_row(row: Sequence[Any]) -> BatchRow:
    return BatchRow(*row)


def loader_facts(trace: Trace, known: Mapping[str, Any], made: Made) -> LoaderFacts:
    """One loader of the script."""
    names = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory", "start_method")
    rows = made.rows
    return LoaderFacts(
        name="train" if known["is_train"] else "evaluate",
        **{name: known[name] for name in names},
        is_iterable=known["is_iterable"],
        num_samples=known["num_samples"],
        dataset=known["dataset"],
        batch_bytes=known["batch_bytes"],
        seconds=_stages(trace, known, made),
        cpu_seconds=fmean(row.cpu_s for row in rows) if rows else None,
        slowest=slowest_of([us for row in rows for us in row.items_us]),
        padding_share=mean_of(row.padding[0] for row in made.looked_at if row.padding),
        worker_starts=sum(1 for owner in trace.workers.values() if owner == known["number"]),
        functions=_functions(made),
    )


def _stages(trace: Trace, known: Mapping[str, Any], made: Made) -> dict[str, float]:
    if not made.rows:
        return {}
    rows = made.rows
    making_s, collate_s = fmean(row.making_s for row in rows), fmean(row.collate_s for row in rows)
    fetch_s = min(making_s, _fetch_seconds(made, making_s))
    stages = {"fetch": fetch_s, "prepare": making_s - fetch_s, "collate": collate_s}
    if known["num_workers"]:
        packed_s = fmean(row.packed_s for row in rows)
        unpacked_s = trace.facts.get("unpacked_s", 0.0) / max(1, trace.facts.get("num_unpacked", 0))
        stages["hand_over"] = packed_s + unpacked_s
    return stages


def _fetch_seconds(made: Made, making_s: float) -> float:
    """Time in which a process neither ran nor waited for a core, or was seen reading: the larger."""
    blocked = [max(0.0, row.end - row.start - row.cpu_s - (row.run_wait_s or 0.0)) for row in made.rows]
    total = sum(each.number for each in made.samples)
    seen = sum(each.number for each in made.samples if each.is_reading)
    return max(fmean(blocked), making_s * seen / total if total else 0.0)


def slowest_of(items: Sequence[float]) -> float | None:
    """Mean of the slowest hundredth, in medians; None where that is less than one of them."""
    if len(items) < MANY:
        return None
    ordered = sorted(items)
    worst = ordered[-(len(ordered) // 100) :]
    return fmean(worst) / max(median(ordered), 1e-9)


def mean_of(values: Any) -> float | None:
    """None for nothing."""
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def _functions(made: Made) -> tuple[FunctionCost, ...]:
    """Inclusive seconds of each function, from the share of samples that it was on the stack."""
    total = sum(each.number for each in made.samples)
    if not total or not made.rows:
        return ()
    seen: Counter[tuple[str, str, int]] = Counter()
    callers: dict[tuple[str, str, int], Counter[tuple[str, int]]] = defaultdict(Counter)
    for each in made.samples:
        for place, caller in {(name, file, line): (by, at) for name, file, line, by, at in each.places}.items():
            seen[place] += each.number
            callers[place][caller] += each.number
    batch_s = fmean(row.making_s + row.collate_s for row in made.rows)
    num_items = mean_of(row.num_items for row in made.rows) or 1.0
    found = [
        FunctionCost(
            *place,
            batch_s * number / total,
            made.calls.get(place, 0) * num_items,
            *callers[place].most_common(1)[0][0],
        )
        for place, number in seen.items()
        if number >= LEAST_SHARE * total
    ]
    return tuple(sorted(found, key=lambda each: -each.seconds_per_batch)[:MAX_FUNCTIONS])
