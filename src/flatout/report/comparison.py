"""Compare: two records of one kind in; where they differ in settings, speed, metrics and machine out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flatout.doctor.record import DoctorRecord, LoaderFacts
from flatout.doctor.rules.means import long_run_seconds, samples_per_s_of, wait_share_of
from flatout.errors import RecordError
from flatout.report.quantity import BYTES, CORES, PLAIN, RATE, SECONDS, SHARE, TIMES, Quantity, number_text
from flatout.report.run import RunRecord
from flatout.report.run_page import how_lost
from flatout.report.settings import Difference, differences, value_text
from flatout.report.source import Record, read_source
from flatout.report.stack import name_of
from flatout.report.steps import StepTable

SLIGHT = 0.02
"""Speeds closer than that are called the same: runs differ as much by themselves."""
FEW_STEPS = 20
"""A speed of fewer steps says little, and the verdict says so."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells count it."""
UNFINISHED = {
    "running": "is still running",
    "failed": "failed",
    "interrupted": "was interrupted",
}
_LOADER_SETTINGS = (
    "num_workers",
    "batch_size",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "start_method",
    "dataset",
)


@dataclass(frozen=True)
class Measure:
    """One number of both records."""

    name: str
    first: float | None
    second: float | None
    quantity: Quantity
    more_is_better: bool | None = None

    @property
    def ratio(self) -> float | None:
        """The second in firsts."""
        if not self.first or self.second is None or self.first <= 0 or self.second < 0:
            return None
        return self.second / self.first

    @property
    def is_better(self) -> bool | None:
        """Whether the second is; None where that cannot be said, or they are about the same."""
        if self.ratio is None or self.more_is_better is None or abs(self.ratio - 1) < SLIGHT:
            return None
        return (self.ratio > 1) == self.more_is_better

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "first": self.first, "second": self.second, "ratio": self.ratio}


@dataclass(frozen=True)
class Comparison:
    """What two records differ in."""

    kind: str
    """`run` or `doctor`."""
    names: tuple[str, str]
    records: tuple[Record, Record]
    verdict: str
    settings: tuple[Difference, ...]
    speed: tuple[Measure, ...]
    metrics: tuple[Measure, ...]
    machine: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the records themselves."""
        return {
            "kind": f"flatout.comparison.{self.kind}",
            "first": self.names[0],
            "second": self.names[1],
            "verdict": self.verdict,
            "settings": [vars(each) for each in self.settings],
            "speed": [each.to_json() for each in self.speed],
            "metrics": [each.to_json() for each in self.metrics],
            "machine": [vars(each) for each in self.machine],
        }


def compare(first: str | Path | Record, second: str | Path | Record, now: datetime | None = None) -> Comparison:
    """Two runs, or two records of the doctor, in; their differences out.

    Args:
        now: what a run that no longer writes is told by; absent: the clock's.

    Raises:
        RecordError: one cannot be read, or they are of different kinds.
    """
    one, other = read_source(first), read_source(second)
    if isinstance(one, RunRecord) and isinstance(other, RunRecord):
        return _compare_runs(one, other, now or datetime.now(UTC))
    if isinstance(one, DoctorRecord) and isinstance(other, DoctorRecord):
        return _compare_doctors(one, other)
    raise RecordError("one is the record of a run, the other the doctor's; two of a kind were wanted")


def _compare_runs(first: RunRecord, second: RunRecord, now: datetime) -> Comparison:
    names = _names(first.name, second.name, first.folder, second.folder)
    speed = _both(_run_speed(first), _run_speed(second))
    machine = tuple(differences(_run_machine(first), _run_machine(second)))
    one, other = first.last_metrics, second.last_metrics
    metrics = [
        Measure(name, one.get(name), other.get(name), PLAIN)
        for name in [*one, *(n for n in other if n not in one)]
    ]
    return Comparison(
        kind="run",
        names=names,
        records=(first, second),
        verdict=_verdict(
            names,
            speed[0],
            is_same_machine=not _differ(first.machine, second.machine),
            num_steps=(first.speed.num_steps, second.speed.num_steps),
            cautions=_run_cautions(names, first, second, now),
        ),
        settings=tuple(
            each for each in differences(first.config, second.config) if not _is_place_of_code(each)
        ),
        speed=speed,
        metrics=tuple(metrics),
        machine=machine,
    )


def _compare_doctors(first: DoctorRecord, second: DoctorRecord) -> Comparison:
    names = _names(first.script, second.script, first.script, second.script)
    speed = _both(_doctor_speed(first), _doctor_speed(second))
    return Comparison(
        kind="doctor",
        names=names,
        records=(first, second),
        verdict=_verdict(
            names,
            speed[0],
            is_same_machine=not _differ(first.machine, second.machine),
            num_steps=(len(first.steps), len(second.steps)),
            cautions=_doctor_cautions(names, first, second),
        ),
        settings=tuple(differences(_doctor_settings(first), _doctor_settings(second))),
        speed=speed,
        metrics=(),
        machine=tuple(differences(first.machine, second.machine)),
    )


def _is_place_of_code(difference: Difference) -> bool:
    """`code_dir` where only one has it: a run that goes on, or begins with the config of another, is told where
    its task lay; nobody has set it."""
    return difference.name == "code_dir" and None in (difference.first, difference.second)


def _run_speed(run: RunRecord) -> list[Measure]:
    speed = run.speed
    step_s = None if speed.step_ms is None else speed.step_ms / 1000
    slow_s = None if speed.step_p95_ms is None else speed.step_p95_ms / 1000
    train_s, first_s = (speed.train_s, speed.first_step_s) if speed.num_steps else (None, None)
    return [
        Measure("speed", speed.samples_per_s, None, RATE, True),
        Measure("median step", step_s, None, SECONDS, False),
        Measure("95 % of the steps below", slow_s, None, SECONDS, False),
        Measure("waiting for data", speed.data_wait_share, None, SHARE, False),
        Measure("training", train_s, None, SECONDS),
        Measure("first step", first_s, None, SECONDS, False),
        Measure("steps", speed.num_steps, None, PLAIN),
        Measure("busy cores", speed.cpu_share, None, CORES),
        Measure("peak memory", speed.peak_rss_bytes, None, BYTES, False),
    ]


def _doctor_speed(record: DoctorRecord) -> list[Measure]:
    ceiling, steps = record.ceiling, StepTable.of(record.steps)
    found = [
        Measure("speed", samples_per_s_of(record), None, RATE, True),
        Measure("median step", steps.median_s(), None, SECONDS, False),
        Measure("waiting for data", wait_share_of(record), None, SHARE, False),
        Measure("step, data in memory", ceiling.resident_step_s if ceiling else None, None, SECONDS, False),
        Measure("loader alone, a batch", ceiling.loader_batch_s if ceiling else None, None, SECONDS, False),
        Measure("most to win", ceiling.known_gain if ceiling else None, None, TIMES),
    ]
    means = steps.means()
    if "wait" in means:
        means["wait"] = long_run_seconds(record)["wait"]
    phases = means.items()
    return [
        *found,
        *(Measure(f"of a step: {name_of(name)}", value, None, SECONDS, False) for name, value in phases),
    ]


def _both(first: Iterable[Measure], second: Iterable[Measure]) -> tuple[Measure, ...]:
    """Each measure with both values; those that neither has are left out."""
    one, other = ({each.name: each for each in side} for side in (first, second))
    found = []
    for name, sample in {**other, **one}.items():
        values = [side[name].first if name in side else None for side in (one, other)]
        found.append(Measure(name, values[0], values[1], sample.quantity, sample.more_is_better))
    found.sort(key=lambda each: each.name not in ("speed", "median step"))
    return tuple(each for at, each in enumerate(found) if at == 0 or (each.first, each.second) != (None, None))


def _verdict(
    names: tuple[str, str],
    speed: Measure,
    *,
    is_same_machine: bool,
    num_steps: tuple[int, int],
    cautions: Sequence[str],
) -> str:
    told, ratio = f"{names[1]} against {names[0]}: ", speed.ratio
    few = [
        f"{name} has only {_steps(number)}: that says little."
        for name, number in zip(names, num_steps, strict=True)
        if number < FEW_STEPS
    ]
    if not ratio:
        return " ".join([f"{told}one of them measured no speed.", *few, *cautions])
    if abs(ratio - 1) < SLIGHT:
        told += "as fast, within 2 %"
    else:
        told += f"{number_text(ratio)} times as fast" if ratio > 1 else f"{number_text(1 / ratio)} times slower"
    told += f" ({speed.quantity.text(speed.first)}, then {speed.quantity.text(speed.second)})."
    differ = [] if is_same_machine else ["Their machines differ: that is not the settings' doing alone."]
    return " ".join([told, *few, *cautions, *differ])


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


def _run_cautions(names: tuple[str, str], first: RunRecord, second: RunRecord, now: datetime) -> list[str]:
    """What must be known before two runs are held against each other."""
    found = []
    for name, run in zip(names, (first, second), strict=True):
        after = f"after {_steps(run.speed.num_steps)}"
        if (lost := how_lost(run, now)) is not None:
            found.append(f"{name} {lost[0]}, {after}: {lost[1]}.")
        elif run.status in UNFINISHED:
            found.append(f"{name} {UNFINISHED[run.status]}, {after}.")
    return [*found, *_unlike_batches(_run_batch(first), _run_batch(second))]


def _doctor_cautions(names: tuple[str, str], first: DoctorRecord, second: DoctorRecord) -> list[str]:
    found = []
    for name, record in zip(names, (first, second), strict=True):
        code = record.exit.code
        if code and not record.exit.was_stopped:
            how = "was interrupted" if code == INTERRUPTED else f"failed with exit code {code}"
            found.append(f"{name} {how}, after {len(record.steps):,} measured steps.")
    return [*found, *_unlike_batches(_doctor_batch(first), _doctor_batch(second))]


def _unlike_batches(first: object, second: object) -> list[str]:
    if first is None or second is None or first == second:
        return []
    return [f"Their batch sizes differ ({first}, then {second}): compare samples a second, not steps."]


def _run_batch(run: RunRecord) -> object:
    own = run.config.get("train_ds")
    return (own.get("batch_size") if isinstance(own, Mapping) else None) or run.config.get("batch_size")


def _doctor_batch(record: DoctorRecord) -> object:
    return next((loader.batch_size for loader in record.loaders if loader.name == "train"), None)


def _names(first: str, second: str, first_long: str, second_long: str) -> tuple[str, str]:
    if first != second:
        return first, second
    return (first_long, second_long) if first_long != second_long else (f"{first} (A)", f"{second} (B)")


def _run_machine(run: RunRecord) -> dict[str, Any]:
    given = {"device": run.device, "num_devices": run.num_devices, "precision": run.precision}
    return {**run.machine, **given, "versions": dict(run.versions)}


def _differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Free memory and the like change from minute to minute; what a machine is does not."""
    changing = ("free", "shared", "load", "date", "time")
    found = differences(first, second)
    return any(not any(word in each.name for word in changing) for each in found)


def _doctor_settings(record: DoctorRecord) -> dict[str, Any]:
    loaders: dict[str, LoaderFacts] = {}
    for loader in record.loaders:
        loaders.setdefault(loader.name, loader)
    found: dict[str, Any] = {
        name: {setting: getattr(loader, setting) for setting in _LOADER_SETTINGS}
        for name, loader in loaders.items()
    }
    return {"script": record.script, "arguments": list(record.arguments), **found}


def difference_texts(difference: Difference) -> tuple[str, str]:
    """Both values as they are shown."""
    return value_text(difference.first), value_text(difference.second)
