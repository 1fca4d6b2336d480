"""The page of a run: what held it up, its charts, its settings, its machine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import flatout
from flatout.config import Config
from flatout.report.columns import column_charts
from flatout.report.machine import fact_table
from flatout.report.page import Fact, Page, Part, Section, Table, Tone, Words, code, facts, section
from flatout.report.quantity import BYTES, CORES, RATE, SECONDS, SHARE, number_text
from flatout.report.run import RunRecord
from flatout.report.run_charts import (
    cores_chart,
    memory_chart,
    metric_charts,
    speed_chart,
    step_chart,
    utilisation_chart,
    wait_chart,
)
from flatout.report.settings import UNSET, differences, value_text
from flatout.report.text import NAME_LENGTH, clipped, clipped_end

SLIGHT_WAIT = 0.05
"""Share of waiting below which there is nothing to win."""
STALE_S = 120.0
"""A run under way writes every few seconds, though not during a long step."""
MOST_NOTES = 50
MOST_REPORTS = 10
MOST_METRICS = 24
OFF: tuple[Any, ...] = ("none", {}, [])
"""What says nothing where the defaults have no such name: parameters of a field that were left alone."""
TONES: dict[str, Tone] = {
    "running": "plain",
    "finished": "good",
    "failed": "bad",
    "killed": "bad",
    "interrupted": "warn",
}


def run_page(run: RunRecord, now: datetime | None = None) -> Page:
    """A run's record in, its page out.

    Args:
        now: what a record that no longer grows is told by; absent: it is not looked for.
    """
    named = [("", run)]
    sections = [
        section("Where the time goes", [make(named) for make in (step_chart, wait_chart, speed_chart)]),
        section(
            "The machine at work",
            [*(make(named) for make in (utilisation_chart, cores_chart, memory_chart)), _no_looks(run)],
        ),
        section("Losses and metrics", metric_charts(named), "Over epochs."),
        section("Settings other than the defaults", [_settings(run)]),
        section("Machine", [_machine(run), fact_table("Versions", run.versions)]),
        section("Notes", [Words(tuple(clipped(note, 2000) for note in run.notes[:MOST_NOTES]))]),
        _reports(run),
    ]
    state = "killed" if now is not None and run.is_killed else clipped(run.status, 20)
    return Page(
        title=f"Run {clipped(run.name, NAME_LENGTH)}",
        subtitle=_subtitle(run),
        state=state,
        tone=TONES.get(state, "plain"),
        verdict=run_verdict(run),
        alarm=_alarm(run, now),
        facts=_facts(run),
        sections=tuple(part for part in sections if part is not None),
        made_by=f"flatout {flatout.__version__}",
    )


def run_verdict(run: RunRecord) -> str:
    """One sentence: was training held up by data, and how much is there to win?"""
    share = run.speed.data_wait_share
    if share is None:
        return "No step was measured yet." if run.is_running else "No step was measured."
    word = "is" if run.is_running else "was"
    if share < SLIGHT_WAIT:
        return f"Training {word} not held up by data: it waited {SHARE.text(share)} of the time."
    gain = number_text(1 / (1 - share)) if share < 1 else "many"
    most = " at most, because the device works on while its host waits" if _is_cuda(run) else ""
    told = f"Training waited for data {SHARE.text(share)} of the time; without that it would be {gain} times "
    return f"{told}as fast{most}. {_cure(run)}"


def silent_s(run: RunRecord, now: datetime) -> float | None:
    """Seconds that a run under way has not written for; None: not so many that it may have been killed."""
    written = written_at(run)
    if written is None or not run.is_running:
        return None
    seconds = (now - written).total_seconds()
    return seconds if seconds > STALE_S else None


def how_lost(run: RunRecord, now: datetime) -> tuple[str, str] | None:
    """What has become of a run that says it is running, and how one knows; None: it runs, or has ended."""
    if run.is_killed:
        return "was killed", f"its process {run.process.get('pid')} is gone"
    silent = silent_s(run, now)
    return (
        None if silent is None else ("may have been killed", f"nothing was written for {SECONDS.text(silent)}")
    )


def written_at(run: RunRecord) -> datetime | None:
    """When the record was written; None where it does not say so in a way that can be read."""
    try:
        found = datetime.fromisoformat(run.written_at or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _cure(run: RunRecord) -> str:
    if run.is_fast is False:
        return "Its batches came from raw files: 'flatout prepare' makes a store that is read at memory speed."
    return "num_workers and prefetch_factor say how far the loader reads ahead."


def _is_cuda(run: RunRecord) -> bool:
    return bool(run.device and run.device.startswith("cuda"))


def _alarm(run: RunRecord, now: datetime | None) -> str:
    if run.error:
        return clipped_end(run.error)
    lost = None if now is None else how_lost(run, now)
    return "" if lost is None else f"The run {': '.join(lost)}; --resume goes on from its last checkpoint."


def _subtitle(run: RunRecord) -> str:
    parts = [clipped(run.task, NAME_LENGTH), clipped(run.folder)]
    parts += [f"resumed from {clipped(run.resumed_from)}"] if run.resumed_from else []
    if (written := written_at(run)) is not None:
        parts.append(f"as of {written.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    return " · ".join(part for part in parts if part)


def _facts(run: RunRecord) -> tuple[Fact, ...]:
    speed = run.speed
    step_s = None if speed.step_ms is None else speed.step_ms / 1000
    slow_s = None if speed.step_p95_ms is None else speed.step_p95_ms / 1000
    data = {True: "from the store", False: "from raw files", None: ""}[run.is_fast]
    found = facts(
        [
            ("speed", RATE.text(speed.samples_per_s), data),
            ("waiting for data", SHARE.text(speed.data_wait_share), SECONDS.text(speed.data_wait_s)),
            ("median step", SECONDS.text(step_s), f"95 % below {SECONDS.text(slow_s)}"),
            ("training", SECONDS.text(speed.train_s or None), f"{speed.num_steps:,} steps"),
            ("first step", SECONDS.text(speed.first_step_s or None), "warms up, does not count"),
            ("busy cores", CORES.text(speed.cpu_share), ""),
            ("peak memory", BYTES.text(speed.peak_rss_bytes), ""),
        ]
    )
    epochs = f"{run.epochs[-1].epoch + 1:,} of {run.epochs[-1].num_epochs:,}" if run.epochs else ""
    metrics = tuple(
        Fact(clipped(name, 40), number_text(value))
        for name, value in list(run.last_metrics.items())[:MOST_METRICS]
    )
    return (*found, *((Fact("epochs", epochs),) if epochs else ()), *metrics)


def _settings(run: RunRecord) -> Table:
    defaults = Config().model_dump(mode="json")
    rows = [
        [code(clipped(each.name, NAME_LENGTH)), code(value_text(each.second)), code(value_text(each.first))]
        for each in differences(defaults, run.config)
        if each.second != UNSET and not (each.first == UNSET and _is_off(each.second))
    ]
    return Table.of(["setting", "here", "default"], rows)


def _machine(run: RunRecord) -> Table:
    facts_of_run = {"device": run.device, "num_devices": run.num_devices, "precision": run.precision}
    return fact_table("", {**run.machine, **facts_of_run})


def _no_looks(run: RunRecord) -> Words:
    """What stands in place of the charts that are drawn from looks."""
    monitor = run.config.get("monitor")
    every = monitor.get("update_frequency") if isinstance(monitor, dict) else None
    if run.looks or every is None:
        return Words(())
    if run.config.get("disable_metrics_monitoring"):
        return Words(("Processor and memory were not looked at: disable_metrics_monitoring is true.",))
    often = f"every {every} steps (monitor.update_frequency)"
    so_far = " so far" if run.is_running else ""
    steps = "" if run.global_step is None else f"; this run had {run.global_step:,}{so_far}"
    return Words((f"Processor and memory are looked at {often}, and drawn from then on{steps}.",))


def _reports(run: RunRecord) -> Section | None:
    parts: list[Part] = []
    for name, found in list(run.reports.items())[:MOST_REPORTS]:
        charts, rest = column_charts(found if isinstance(found, dict) else {"said": found})
        parts += [fact_table(clipped(name, NAME_LENGTH), rest), *charts]
    return section("What callbacks reported", parts)


def _is_off(value: Any) -> bool:
    """Whether a setting says that nothing is done; 0 is a number, though it equals False."""
    return value is None or value is False or value in OFF
