"""The page of the doctor's record: the verdict, the evidence, the remedies and their proof."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import flatout
from flatout.doctor.record import Ceiling, DoctorRecord, LoaderFacts, Remedy
from flatout.doctor.rules.means import samples_per_s_of, wait_share_of
from flatout.doctor.trial.together import settings_kept
from flatout.report.doctor_charts import (
    cores_chart,
    loader_title,
    memory_chart,
    steps_chart,
    throughput_chart,
    timeline_chart,
    utilisation_chart,
    wait_chart,
)
from flatout.report.doctor_facts import doctor_facts, other_lines
from flatout.report.gains import gain_chart, outcome_text, times_text
from flatout.report.machine import fact_table
from flatout.report.page import Cell, Chart, Fact, Page, Table, Tone, Words, code, facts, number, section
from flatout.report.quantity import ABSENT, BYTES, PLAIN, RATE, SECONDS, SHARE
from flatout.report.stack import name_of
from flatout.report.steps import StepTable
from flatout.report.text import NAME_LENGTH, clipped, clipped_end

MOST_LOADERS, MOST_FUNCTIONS, MOST_REMEDIES, MOST_LINES = 8, 10, 30, 30
HEALTHY = ("healthy", "compute")
TORCH_DEFAULTS = {
    "num_workers": 0,
    "batch_size": 1,
    "prefetch_factor": None,
    "persistent_workers": False,
    "pin_memory": False,
    "start_method": None,
}
"""What a DataLoader has unless it is told otherwise."""


def doctor_page(record: DoctorRecord) -> Page:
    """The doctor's record in, its page out."""
    gain = record.ceiling.known_gain if record.ceiling else None
    steps = StepTable.of(record.steps)
    sections = [
        section("Warnings", [Words(tuple(clipped(text, 2000) for text in record.warnings[:MOST_LINES]))]),
        section("What to do", [_remedies(record.remedies)]),
        section(_gains_title(record.remedies), [gain_chart(record.remedies, gain), _kept(record)]),
        section("A step", [timeline_chart(record, steps), steps_chart(steps)]),
        section("Where the time goes", [wait_chart(steps), throughput_chart(record, steps)]),
        section("The machine at work", [utilisation_chart(record, steps), *_looks(record)]),
        section("Loaders", [_settings(record.loaders), *map(_loader, record.loaders[:MOST_LOADERS])]),
        section("Lines that wait for the device", [_sync_points(record)]),
        section("Other lines of the loop", [other_lines(record.facts)]),
        section("Facts", doctor_facts(record.facts)),
        section("Machine", [fact_table("", record.machine)]),
        section("The script's own error", [_error(record)]),
    ]
    return Page(
        title=f"Doctor: {clipped(record.script, NAME_LENGTH)}",
        subtitle=clipped(shlex.join([*_words(record.script), *record.arguments])),
        state=_state(record),
        tone=_tone(record),
        verdict=doctor_verdict(record),
        alarm=_alarm(record),
        facts=_facts(record, steps),
        sections=tuple(part for part in sections if part is not None),
        made_by=f"flatout {flatout.__version__}",
    )


def _words(script: str) -> list[str]:
    """`-m package.module` are two words of the command, whatever a path holds is one."""
    return script.split(" ", 1) if script.startswith("-m ") else [script]


def doctor_verdict(record: DoctorRecord) -> str:
    """The doctor's own sentence; without one, what was measured."""
    if record.verdict is not None:
        return clipped(record.verdict.sentence, 2000)
    share = wait_share_of(record)
    if share is None:
        return "No step was measured: there is nothing to judge."
    return f"No verdict; of each step {SHARE.text(share)} was spent waiting for data."


def _looks(record: DoctorRecord) -> list[Chart | None]:
    return [cores_chart(record), memory_chart(record)]


def _state(record: DoctorRecord) -> str:
    if record.verdict is not None:
        return clipped(record.verdict.disease.replace("_", " "), 40)
    return "failed" if record.exit.error else "observed"


def _tone(record: DoctorRecord) -> Tone:
    if record.exit.error:
        return "bad"
    if record.verdict is None:
        return "plain"
    return "good" if record.verdict.disease in HEALTHY else "warn"


def _alarm(record: DoctorRecord) -> str:
    if record.exit.error:
        last = record.exit.error.strip().splitlines()[-1:] or [""]
        return f"The script ended with its own error (exit code {record.exit.code}): {clipped(last[0])}"
    return "" if record.exit.code == 0 or record.exit.was_stopped else f"Exit code {record.exit.code}."


def _facts(record: DoctorRecord, steps: StepTable) -> tuple[Fact, ...]:
    ceiling = record.ceiling
    return facts(
        [
            ("most to win", *_most(ceiling)),
            ("waiting for data", SHARE.text(wait_share_of(record)), "of a step"),
            ("median step", SECONDS.text(steps.median_s()), f"{len(record.steps):,} steps"),
            ("speed", RATE.text(samples_per_s_of(record)), ""),
            ("data in memory", SECONDS.text(ceiling.resident_step_s if ceiling else None), "a step"),
            ("loader alone", SECONDS.text(ceiling.loader_batch_s if ceiling else None), "a batch"),
            ("observing cost", SHARE.text(record.overhead), "of a step"),
        ]
    )


def _most(ceiling: Ceiling | None) -> tuple[str, str]:
    """The gain and its interval; where that is too wide for one number, both ends and no middle."""
    if ceiling is None:
        return ABSENT, ""
    ends = f"{times_text(ceiling.low)} to {times_text(ceiling.high)}"
    gain = ceiling.known_gain
    return (ends, "varied too much to say it closer") if gain is None else (times_text(gain), ends)


def _remedies(remedies: Sequence[Remedy]) -> Table:
    rows = [
        [
            Cell(clipped(remedy.name, NAME_LENGTH)),
            Cell(clipped(remedy.evidence, 1500)),
            number(times_text(remedy.predicted_gain)),
            Cell(_measured(remedy), tone="good" if remedy.trial and remedy.trial.is_kept else "plain"),
            Cell(_cost(remedy)),
            code(clipped(remedy.how, 3000)),
        ]
        for remedy in remedies
    ]
    headings = ["remedy", "evidence", "predicted", "measured", "costs", "how"]
    return Table.of(headings, rows, most=MOST_REMEDIES)


def _gains_title(remedies: Sequence[Remedy]) -> str:
    """What was tried is proven; everything else is foretold."""
    tried = [remedy.trial for remedy in remedies if remedy.trial is not None]
    return "Proof" if any(trial.low != trial.high for trial in tried) else "What is to be won"


def _kept(record: DoctorRecord) -> Table:
    """The settings that trials have shown to be better, and that go together, beside those of the script."""
    trained = next((loader for loader in record.loaders if loader.name == "train"), None)
    rows = [
        [
            code(clipped(name, NAME_LENGTH)),
            code(_python(getattr(trained, name))) if name in TORCH_DEFAULTS and trained else Cell(ABSENT),
            code(_python(value)),
        ]
        for name, value in settings_kept(record.remedies).items()
    ]
    return Table.of(["setting", "in the script", "kept"], rows, "What was changed", MOST_REMEDIES)


def _python(value: object) -> str:
    """A setting as it stands in a script."""
    return clipped(repr(value))


def _measured(remedy: Remedy) -> str:
    trial = remedy.trial
    return ABSENT if trial is None else f"{times_text(trial.gain)}, {outcome_text(remedy)}"


def _cost(remedy: Remedy) -> str:
    told = [clipped(remedy.cost, 600)] if remedy.cost else []
    return "; ".join([*told, *(["changes results"] if remedy.changes_results else [])]) or ABSENT


def _settings(loaders: Sequence[LoaderFacts]) -> Table:
    """What differs from a DataLoader that was told nothing."""
    rows: list[list[Cell]] = []
    for loader in loaders[:MOST_LOADERS]:
        for name, default in TORCH_DEFAULTS.items():
            here = getattr(loader, name)
            if here != default:
                rows.append(
                    [Cell(loader_title(loader)), code(name), code(_python(here)), code(_python(default))]
                )
    return Table.of(["loader", "setting", "here", "default"], rows, "Settings other than the defaults")


def _loader(loader: LoaderFacts) -> Table:
    """The numbers of a loader, then its dearest functions."""
    stages = [(f"{name_of(name)}, a batch", SECONDS.text(value)) for name, value in loader.seconds.items()]
    known = [
        ("samples", PLAIN.text(loader.num_samples) if loader.num_samples is not None else "unknown"),
        ("batch", BYTES.text(loader.batch_bytes)),
        *stages,
        ("CPU a batch", SECONDS.text(loader.cpu_seconds)),
        ("slowest hundredth of the samples", _medians(loader.slowest)),
        ("padding", SHARE.text(loader.padding_share)),
        ("worker starts", PLAIN.text(loader.worker_starts)),
    ]
    rows = [[Cell(name), number(text)] for name, text in known if text != ABSENT]
    dearest = sorted(loader.functions, key=lambda cost: -cost.seconds_per_batch)[:MOST_FUNCTIONS]
    for cost in dearest:
        file, line = cost.users_line
        place = f"{cost.name} ({file}:{line})"
        told = f"{SECONDS.text(cost.seconds_per_batch)} a batch"
        if cost.calls_per_batch > 0:
            told += f", {PLAIN.text(cost.calls_per_batch)} calls"
        rows.append([code(clipped(place)), number(told)])
    return Table.of(["", ""], rows, loader_title(loader))


def _medians(slowest: float | None) -> str:
    return ABSENT if slowest is None else f"{PLAIN.text(slowest)} times the median"


def _sync_points(record: DoctorRecord) -> Table:
    rows = [
        [
            code(clipped(f"{point.file}:{point.line}")),
            code(clipped(point.call, NAME_LENGTH)),
            number(PLAIN.text(point.per_step)),
            number(SECONDS.text(point.seconds_per_step)),
        ]
        for point in sorted(record.sync_points, key=lambda point: -point.seconds_per_step)
    ]
    return Table.of(["line", "call", "a step", "costs a step"], rows, most=MOST_LINES)


def _error(record: DoctorRecord) -> Words | None:
    return Words((clipped_end(record.exit.error),), is_code=True) if record.exit.error else None
