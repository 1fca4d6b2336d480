"""`flatout bench clinic`: scripts with one known disease each: does the doctor name it, foretell its cure?"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.bench import machine
from flatout.bench.clinic_examine import examine
from flatout.bench.clinic_patients import CLINIC, PATIENTS, choose_patients
from flatout.bench.clinic_runs import measure_cure
from flatout.doctor.record import DoctorRecord, Remedy

WITHIN = 0.25
"""How far a prediction may be from what was measured, as a part of that."""
ALONE = (
    *("slowdown", "items_here_s", "collate_here_s", "stack_here_s", "augment_here_s", "hand_over_s", "sent_s"),
    *("trim_share", "trimmed_ratio", "sort_share", "sorted_ratio"),
)
"""What was measured part by part, for the rows."""


@dataclass(frozen=True)
class ClinicBench:
    """Which scripts, and from which seed their rates and sizes are drawn."""

    scripts: tuple[str, ...] = ()
    """All, if none is named."""
    seed: int | None = None
    """None: another one each time."""
    num_steps: int = 60
    rounds: int = 3
    """Rounds of ill and cured, where the cure is a change of the script."""
    folder: Path = CLINIC


def bench_clinic(options: ClinicBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Examine each script and try its first remedy; a document of plain numbers out.

    Raises:
        ConfigError: there is no such script.
        FlatoutError: the clinic is not there, or a script failed.
    """
    chosen = choose_patients(options.scripts, options.folder)
    seed = random.SystemRandom().randrange(1, 1 << 31) if options.seed is None else options.seed
    watch = machine.CpuWatch()
    rows = []
    for name, script in chosen.items():
        rows.append(_row(name, script, seed, options))
        say(_said(rows[-1]))
    return {**score(rows), "rows": rows, "seed": seed, "machine": machine.describe(), "others": watch.others()}


def score(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many were named and foretold, how many of the healthy were left alone, and what the looking cost."""
    ill = [row for row in rows if row["disease"] != "healthy"]
    well = [row for row in rows if row["disease"] == "healthy"]
    overheads = [row["overhead"] for row in rows if row["overhead"] is not None]
    return {
        "scripts": len(ill),
        "named_first": sum(row["is_named"] for row in ill),
        "gain_within_25pct": sum(row["is_foretold"] for row in ill),
        "healthy": len(well),
        "healthy_clean": sum(row["is_named"] and not row["remedies"] for row in well),
        "overhead": statistics.median(overheads) if overheads else None,
    }


def is_foretold(predicted: float | None, measured: float | None) -> bool:
    """Whether a prediction was right to a quarter of what was measured."""
    return bool(predicted and measured) and abs(predicted / measured - 1) <= WITHIN  # type: ignore[operator]


def _row(name: str, script: Path, seed: int, options: ClinicBench) -> dict[str, Any]:
    record = examine(script, seed, options.num_steps)
    first = record.remedies[0] if record.remedies else None
    predicted = first.predicted_gain if first else None
    measured = _measured(script, seed, options.rounds, first) if first and PATIENTS[name] != "healthy" else {}
    return {
        "script": name,
        "disease": PATIENTS[name],
        "named": record.verdict.disease if record.verdict else None,
        "is_named": record.verdict is not None and record.verdict.disease == PATIENTS[name],
        "sentence": record.verdict.sentence if record.verdict else "",
        "remedy": first.name if first else None,
        "predicted": predicted,
        **measured,
        "is_foretold": is_foretold(predicted, measured.get("measured")),
        "ceiling": record.ceiling.gain if record.ceiling else None,
        "overhead": record.overhead,
        "remedies": [_brief(remedy) for remedy in record.remedies],
        "seen": _seen(record),
    }


def _measured(script: Path, seed: int, rounds: int, remedy: Remedy) -> dict[str, Any]:
    """What the remedy gave: tried in the script's own run, or by the script's own switch."""
    if remedy.trial is not None:
        trial = remedy.trial
        return {"measured": trial.gain, "interval": [trial.low, trial.high], "measured_by": "try"}
    if remedy.settings:
        return {"measured": None, "measured_by": "try failed"}
    cured = measure_cure(script, seed, rounds)
    return {"measured": cured.gain, "interval": [min(cured.rounds), max(cured.rounds)], "measured_by": "cured"}


def _brief(remedy: Remedy) -> dict[str, Any]:
    found = {"name": remedy.name, "predicted": remedy.predicted_gain, "evidence": remedy.evidence}
    return found | ({"measured": remedy.trial.gain} if remedy.trial else {})


def _seen(record: DoctorRecord) -> dict[str, Any]:
    """The figures that the verdict rests on."""
    from flatout.doctor.rules.case import look_at

    case = look_at(record)
    seconds = {phase: round(value, 6) for phase, value in case.seconds.items() if value}
    alone = {name: case.record.facts[name] for name in ALONE if case.record.facts.get(name) is not None}
    return {
        "seconds": seconds,
        "stages": dict(case.loader.seconds),
        "alone": alone,
        "work": dict(case.work.__dict__),
    }


def _said(row: dict[str, Any]) -> str:
    mark = "" if row["is_named"] else f" (it is {row['disease']})"
    if row["predicted"] is None:
        return f"{row['script']}: {row['named']}{mark}"
    measured = row.get("measured")
    was = f"{measured:.2f}" if measured else "not measured"
    return f"{row['script']}: {row['named']}{mark}; {row['remedy']} foretold {row['predicted']:.2f}, was {was}"
