"""The loose facts of the doctor's record as tables: each with a name and a unit that need no explanation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flatout.report.machine import fact_name, fact_text
from flatout.report.page import Cell, Table, code, number
from flatout.report.quantity import BYTES, PLAIN, SECONDS, SHARE
from flatout.report.settings import flattened
from flatout.report.stack import name_of
from flatout.report.text import NAME_LENGTH, clipped

Words = Callable[[Any], str]


def _every(often: float) -> str:
    if not often:
        return "none"
    return f"{PLAIN.text(often)} a step" if often >= 1 else f"one every {PLAIN.text(1 / often)} steps"


def _repeated(found: Mapping[str, Any]) -> str:
    name = found.get("module") or "the model"
    return clipped(f"{name}, {PLAIN.text(found.get('calls_per_step'))} times a step")


def _unseen(seconds: float) -> str:
    return SECONDS.text(seconds) if seconds > 0 else "none"


def _of_whole(ratio: float) -> str:
    return f"{SHARE.text(ratio)} of a whole batch"


def _longer(part: float) -> str:
    return f"{SHARE.text(part)} longer"


def _faster(times: float) -> str:
    return f"{PLAIN.text(times)} times as fast" if times > 1 else "not faster beyond noise"


def _plain(value: Any) -> str:
    return fact_text("", value)


TRAINING: Mapping[str, tuple[str, Words]] = {
    "device": ("device", _plain),
    "precision": ("precision", _plain),
    "torch": ("torch", _plain),
    "num_threads": ("threads that torch computes with", _plain),
    "num_processes": ("ranks on this machine", _plain),
    "is_compiled": ("compiled model", _plain),
    "has_attention": ("attention in the model", _plain),
    "allows_tf32": ("TF32 allowed", _plain),
    "cudnn_benchmark": ("cuDNN looks for its fastest way", _plain),
    "is_deterministic": ("deterministic algorithms only", _plain),
    "detects_anomalies": ("anomaly detection", _plain),
    "device_bytes": ("most memory of the device", BYTES.text),
    "repeated_forward": ("runs forward more than once", _repeated),
    "num_epochs": ("epochs begun while observed", _plain),
    "steps_per_epoch": ("steps an epoch", PLAIN.text),
    "epoch_start_s": ("from an epoch's end to the next one's first batch", SECONDS.text),
    "unseen_start_s": ("starts of workers that no measured step shows, a step", _unseen),
    "evaluations": ("evaluations", _every),
    "evaluate_place": ("evaluated in", _plain),
    "log_calls": ("calls that log", _every),
    "log_place": ("most logging in", _plain),
}
READING: Mapping[str, tuple[str, Words]] = {
    "opens_per_batch": ("files opened", PLAIN.text),
    "reads_per_batch": ("read calls", PLAIN.text),
    "read_bytes_per_batch": ("bytes read", BYTES.text),
    "disk_bytes_per_batch": ("of them from the disk itself", BYTES.text),
    "disk_kind": ("kind of disk", _plain),
    "loader_cpu_wait_s": ("its maker waited for a core", SECONDS.text),
    "draws_random": ("random numbers drawn for its samples", _plain),
    "sort_share": ("padding", SHARE.text),
    "trim_share": ("padding beyond its longest sample", SHARE.text),
}
ALONE: Mapping[str, tuple[str, Words]] = {
    "ceiling": ("the most to win was told", lambda how: {"replayed": "by replayed batches"}.get(how, str(how))),
    "compute_cpu_s": ("CPU of a step, data in memory", SECONDS.text),
    "slowdown": ("a step beside a busy process", _longer),
    "one_thread_gain": ("a step computed by one thread", _faster),
    "sent_s": ("a step whose batch comes from a worker: more", SECONDS.text),
    "items_here_s": ("samples of a batch, made in the training thread", SECONDS.text),
    "collate_here_s": ("their collation there", SECONDS.text),
    "stack_here_s": ("plain stacking of them", SECONDS.text),
    "hand_over_s": ("a copy of a batch into shared memory", SECONDS.text),
    "augment_here_s": ("a usual augmentation of a whole batch", SECONDS.text),
    "trimmed_ratio": ("computing on batches cut to their longest sample", _of_whole),
    "sorted_ratio": ("computing on batches of like lengths", _of_whole),
}
ELSEWHERE = ("other_lines", "overwritten", "resident_seconds")
"""Facts with a place of their own: a table, the warnings, the table of measurements."""
ONLY_ON_GPU = ("allows_tf32", "cudnn_benchmark", "is_deterministic")


def doctor_facts(facts: Mapping[str, Any]) -> list[Table]:
    """The training, what a batch reads, what was measured on its own, and lines that no phase explains."""
    named = {*TRAINING, *READING, *ALONE, *ELSEWHERE}
    is_on_gpu = facts.get("device") == "cuda"
    shown = {name: value for name, value in facts.items() if is_on_gpu or name not in ONLY_ON_GPU}
    measured = _rows(shown, ALONE) + _resident(facts.get("resident_seconds"))
    others = [(name, value) for name, value in flattened(facts) if name.partition(".")[0] not in named]
    rest = [[Cell(fact_name(name)), Cell(fact_text(name, value))] for name, value in others if _is_known(value)]
    return [
        Table.of(["", ""], _rows(shown, TRAINING), "The training"),
        Table.of(["", ""], _rows(shown, READING), "A batch reads and draws"),
        Table.of(["", ""], measured, "Measured on its own"),
        Table.of(["", ""], rest, "More"),
    ]


def other_lines(facts: Mapping[str, Any]) -> Table:
    """Lines of the loop whose time belongs to no phase, the costliest first."""
    given = facts.get("other_lines")
    lines = [each for each in given if isinstance(each, Mapping)] if isinstance(given, list | tuple) else []
    rows = [
        [
            code(clipped(f"{Path(str(each.get('file'))).name}:{each.get('line')}")),
            code(clipped(each.get("call") or "", NAME_LENGTH)),
            number(SECONDS.text(_number(each.get("seconds_per_step")))),
        ]
        for each in lines
    ]
    return Table.of(["line", "call", "costs a step"], rows, "Lines of the loop that belong to no phase")


def _rows(facts: Mapping[str, Any], names: Mapping[str, tuple[str, Words]]) -> list[list[Cell]]:
    known = [(name, *names[name]) for name in names if _is_known(facts.get(name))]
    return [[Cell(label), Cell(_told(name, facts[name], words))] for name, label, words in known]


def _told(name: str, value: Any, words: Words) -> str:
    try:
        return words(value)
    except (TypeError, ValueError, AttributeError):  # a record from elsewhere may hold anything
        return fact_text(name, value)


def _resident(seconds: Any) -> list[list[Cell]]:
    if not isinstance(seconds, Mapping):
        return []
    parts = [(phase, value) for phase, found in seconds.items() if (value := _number(found)) is not None]
    told = [f"{name_of(phase)} {SECONDS.text(value)}" for phase, value in parts if value >= 1e-6]
    return [[Cell("a step, data in memory"), Cell(clipped(", ".join(told)))]] if told else []


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _is_known(value: Any) -> bool:
    return value is not None and value not in ("", {}, [], ())
