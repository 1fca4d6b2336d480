"""The loose facts of a record, under the names and units that `flatout.doctor.rules.facts` reads them by."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.doctor.ceiling.measure import is_replayed, one_thread_of, resident_seconds, sent_of, slowdown_of
from flatout.doctor.steps.cut import Steps, inside
from flatout.doctor.steps.epochs import epochs_of
from flatout.doctor.steps.loaders import Made, Sampled, mean_of
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import Trace

MAX_LINES = 10
CHILD_FACTS = (
    *("device", "precision", "allows_tf32", "is_compiled", "cudnn_benchmark", "is_deterministic", "torch"),
    *("detects_anomalies", "num_threads", "has_attention", "repeated_forward", "device_bytes", "overwritten"),
)
"""What the training process said itself."""


def facts_of(
    trace: Trace, steps: Steps, phases: Phases, made: Made | None, sampled: Sequence[Sampled]
) -> dict[str, Any]:
    """All of them; None where nothing could be told."""
    facts = {name: trace.facts.get(name) for name in CHILD_FACTS}
    found = resident_seconds(trace, phases)
    facts |= {
        "resident_seconds": found[0] if found else None,
        "compute_cpu_s": found[1] if found else None,
        "slowdown": slowdown_of(trace, phases),
        "sent_s": sent_of(trace, phases),
        "one_thread_gain": one_thread_of(trace, phases),
        "ceiling": "replayed" if is_replayed(trace) else "from waits",
    }
    epochs = epochs_of(trace, steps)
    facts |= {
        "epoch_start_s": epochs.start_s,
        "steps_per_epoch": epochs.length,
        "unseen_start_s": epochs.unseen_s,
        "num_epochs": epochs.num_begun,
    }
    facts |= _loop(trace, steps, phases, sampled)
    return facts | (_making(made) if made is not None else {}) | trace.measured


def _loop(trace: Trace, steps: Steps, phases: Phases, sampled: Sequence[Sampled]) -> dict[str, Any]:
    """Evaluations and logging a step, and where they stand."""
    number = max(1, len(steps.steps))
    evaluations = [each for each in phases.evaluations if steps.start <= each.start < steps.end]
    logs = inside(trace.logs, steps)
    places: dict[str, float] = defaultdict(float)
    for each in logs:
        places[f"{Path(each.file).name}:{each.line} {each.call}"] += each.end - each.start
    other_s = sum(step.seconds["other"] + step.seconds["log"] for step in steps.steps)
    lines = other_lines(sampled, other_s / number)
    for line in lines:
        if line["is_log"]:
            places[f"{Path(line['file']).name}:{line['line']} {line['call']}"] += (
                line["seconds_per_step"] * number
            )
    evaluated = [each["place"] for each in trace.loaders if not each["is_train"] and each["num_batches"]]
    return {
        "evaluations": len(evaluations) / number,
        "evaluate_place": _short(evaluated[0]) if evaluated else None,
        "log_calls": len(logs) / number,
        "log_place": max(places, key=lambda place: places[place]) if places else None,
        "other_lines": lines,
    }


def log_share(sampled: Sequence[Sampled]) -> float:
    """Part of the unexplained time in which the loop was seen writing; 0 below a handful of looks."""
    others = [each for each in sampled if each.phase == "other"]
    total = sum(each.number for each in others)
    logged = sum(each.number for each in others if each.is_logging)
    return logged / total if logged >= 3 else 0.0


def other_lines(sampled: Sequence[Sampled], other_s: float) -> list[dict[str, Any]]:
    """Lines of the loop that take the time which no phase explains, the costliest first."""
    others = [each for each in sampled if each.phase == "other" and each.places]
    total = sum(each.number for each in others)
    counts: Counter[tuple[str, int, str, bool]] = Counter()
    for each in others:
        name, file, line, caller, caller_line = each.places[-1]
        at = (caller, caller_line) if caller else (file, line)
        counts[*at, each.text or name, each.is_logging] += each.number
    return [
        {
            "file": file,
            "line": line,
            "call": call,
            "is_log": is_log,
            "seconds_per_step": other_s * number / total,
        }
        for (file, line, call, is_log), number in counts.most_common(MAX_LINES)
    ]


def _making(made: Made) -> dict[str, Any]:
    rows, looked = made.rows, made.looked_at
    drawn = [row.draws_random for row in looked if row.draws_random is not None]
    last = next((row.last_read for row in reversed(rows) if row.num_opened and row.last_read), "")
    return {
        "loader_cpu_wait_s": mean_of(row.run_wait_s for row in rows),
        "opens_per_batch": mean_of(row.num_opened for row in rows),
        "reads_per_batch": mean_of(row.num_reads for row in rows),
        "read_bytes_per_batch": mean_of(row.read_bytes for row in rows),
        "disk_bytes_per_batch": mean_of(row.disk_bytes for row in rows),
        "disk_kind": disk_kind(Path(last)) if last else None,
        "draws_random": any(drawn) if drawn else None,
        "trim_share": mean_of(row.padding[1] for row in looked if row.padding),
        "sort_share": mean_of(row.padding[0] for row in looked if row.padding),
    }


def disk_kind(file: Path) -> str | None:
    """`network`, `memory`, `rotational` or `ssd`: where a file lies; None where the system does not tell."""
    from flatout.store.file_system import file_system_of, is_remote

    kind = file_system_of(file.parent)
    if is_remote(kind):
        return "network"
    if kind in ("tmpfs", "ramfs"):
        return "memory"
    turns = _is_rotational(file)
    return None if turns is None else "rotational" if turns else "ssd"


def _is_rotational(file: Path) -> bool | None:
    try:
        device = file.stat().st_dev
        place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        for folder in (place, place.parent):
            if (folder / "queue" / "rotational").is_file():
                return (folder / "queue" / "rotational").read_text().strip() == "1"
    except OSError:
        return None
    return None


def _short(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{Path(file).name}:{line}" if file else ""


def overhead_of(trace: Trace, steps: Steps) -> float | None:
    """Share of the observed time that watching took: rows at what one costs, the sampler, the meters."""
    seconds = steps.end - steps.start
    if seconds <= 0:
        return None
    rows = [span for span in trace.spans if span.phase != "own" and steps.start <= span.start < steps.end]
    num_rows = len(rows) + len([each for each in trace.nexts if steps.start <= each.start < steps.end])
    all_s = (trace.observed_until or trace.nexts[-1].end) - trace.nexts[0].start
    return (num_rows * float(trace.facts.get("row_s", 0.0))) / seconds + trace.watching_s / max(all_s, 1e-9)


def only_training(samples: Sequence[Sequence[Any]]) -> list[Sampled]:
    """What the sampler saw of the training thread outside of making batches."""
    return [Sampled(*row) for row in samples if row[0] != "make"]
