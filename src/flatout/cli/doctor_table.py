"""What `flatout doctor` prints: one sentence, where a step goes, then the remedies."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from flatout.cli.output import console, say, say_error
from flatout.cli.words import count_text
from flatout.doctor.record import Ceiling, DoctorRecord, Remedy, Trial
from flatout.doctor.rules.case import CROWDED
from flatout.doctor.rules.means import long_run_seconds
from flatout.doctor.rules.words import count, duration, share, times

UNSEEN = 0.02
"""Part of a step from which it is said that waits were added which no measured step shows."""
WORDS = {"optimiser": "optimiser", "sync": "device sync", "log": "logging", "evaluate": "evaluation"}


def show(record: DoctorRecord) -> None:
    """Print a record."""
    if record.exit.code:
        say_error(_ending(record))
    if record.verdict is not None and (record.steps or not record.exit.code):
        console().print(Text(record.verdict.sentence, style="bold"))
    if record.steps:
        console().print(_numbers(record))
    if record.remedies:
        console().print()
        console().print(_remedies(record), soft_wrap=False)
        for number, remedy in enumerate(record.remedies, 1):
            console().print(f"{number}. {remedy.name}: {remedy.how}", markup=False)
            if remedy.trial is not None and remedy.trial.note:
                console().print(f"   {remedy.trial.note}", markup=False)
    for warning in record.warnings:
        say(warning)


def _ending(record: DoctorRecord) -> str:
    number = count_text(len(record.steps) + record.num_warmup if record.steps else 0, "step")
    last = (record.exit.error or "").strip().splitlines()
    why = f": {last[-1]}" if last else ""
    return f"the script itself ended with exit code {record.exit.code} after {number}{why}"


def _numbers(record: DoctorRecord) -> Table:
    mean = long_run_seconds(record)
    step_s = sum(mean.values())
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("step", f"{duration(step_s)}, the mean of {len(record.steps):,}: {_split(mean, step_s)}")
    if starts := _starts(record):
        table.add_row("epochs", starts)
    for loader in record.loaders[:1]:
        stages = {stage: seconds for stage, seconds in loader.seconds.items() if seconds > 0}
        where = count_text(loader.num_workers, "worker") if loader.num_workers else "the training thread"
        if stages:
            made_s = sum(stages.values())
            where += _crowded(record, made_s)
            table.add_row("batch", f"{duration(made_s)} in {where}: {_split(stages, made_s)}")
    if record.ceiling is not None:
        table.add_row("ceiling", _ceiling(record.ceiling))
    if record.overhead is not None:
        table.add_row("overhead", f"{100 * record.overhead:.1f} % of a step for watching")
    return table


def _crowded(record: DoctorRecord, made_s: float) -> str:
    """What a batch waited for a core: without it the row contradicts what the verdict says a batch takes."""
    # By another clock than the batch itself: of short ones it may be more.
    waited_s = min(record.facts.get("loader_cpu_wait_s") or 0.0, made_s)
    return f", {duration(waited_s)} of it waiting for a core" if waited_s >= CROWDED * made_s else ""


def _starts(record: DoctorRecord) -> str:
    """What workers take to start, where the measured steps show it too seldom, or too often."""
    start_s, length = (record.facts.get(name) for name in ("epoch_start_s", "steps_per_epoch"))
    unseen_s = record.facts.get("unseen_start_s") or 0.0
    if not start_s or not length or abs(unseen_s) < UNSEEN * sum(long_run_seconds(record).values()):
        return ""
    return f"workers start for each, {duration(start_s)} every {count(length, 'step')}: counted in above"


def _split(seconds: Mapping[str, float], total: float) -> str:
    """The larger parts, in order of size."""
    parts = sorted(
        ((s, phase) for phase, s in seconds.items() if total > 0 and s / total >= 0.005), reverse=True
    )
    return ", ".join(f"{WORDS.get(phase, phase.replace('_', ' '))} {share(s / total)}" for s, phase in parts)


def _ceiling(ceiling: Ceiling) -> str:
    alone = (
        f"; the loader alone takes {duration(ceiling.loader_batch_s)} a batch" if ceiling.loader_batch_s else ""
    )
    gain, told = ceiling.known_gain, f"something between {times(ceiling.low)} and {times(ceiling.high)}"
    if gain is not None:
        told = f"{times(gain)} ({ceiling.low:.2f} to {ceiling.high:.2f})"
    return f"{told} is the most that any better data path could give{alone}"


def _remedies(record: DoctorRecord) -> Table:
    has_trials = any(remedy.trial is not None for remedy in record.remedies)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "remedy", "predicted", *(["measured"] if has_trials else []), "because", "cost"):
        table.add_column(name, overflow="fold", no_wrap=name in ("#", "remedy", "predicted"))
    for number, remedy in enumerate(record.remedies, 1):
        measured = [Text(_measured(remedy.trial))] if has_trials else []
        cells = [Text(remedy.evidence), Text(remedy.cost + _doubt(remedy))]
        table.add_row(str(number), remedy.name, _predicted(remedy), *measured, *cells)
    return table


def _predicted(remedy: Remedy) -> str:
    return times(remedy.predicted_gain) if remedy.predicted_gain is not None else "?"


def _measured(trial: Trial | None) -> str:
    if trial is None:
        return "not tried"
    if trial.low == trial.high:
        return "not possible"
    kept = "kept" if trial.is_kept else "left"
    return f"{times(trial.gain)} ({trial.low:.2f} to {trial.high:.2f}), {kept}"


def _doubt(remedy: Remedy) -> str:
    return "; changes results" if remedy.changes_results else ""
