"""Charts of what the doctor saw: a step in its parts, and the machine meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flatout.doctor.record import STAGES, DoctorRecord, LoaderFacts, Look
from flatout.report.lines import Line, line_chart
from flatout.report.page import Chart
from flatout.report.quantity import BYTES, CORES, RATE, SECONDS, SHARE
from flatout.report.stack import Bar, band_chart, bar_chart
from flatout.report.steps import StepTable
from flatout.report.text import NAME_LENGTH, clipped

MOST_LOADERS = 4


def timeline_chart(record: DoctorRecord, steps: StepTable) -> Chart | None:
    """One step, the same with resident batches, and what making a batch takes, on one axis."""
    bars = [Bar("one step", tuple(steps.means().items()))]
    if record.ceiling is not None and math.isfinite(record.ceiling.resident_step_s):
        bars.append(Bar("one step, data in memory", (("work", record.ceiling.resident_step_s),)))
    bars += _batch_bars([loader for loader in record.loaders if loader.name != "evaluate"])
    note = (
        "Mean of the measured steps. Batches are made beside the training where there are workers: then the "
        "batch's time, divided by the workers, is what counts."
    )
    return bar_chart("A step and a batch", bars, note)


def _batch_bars(loaders: Sequence[LoaderFacts]) -> list[Bar]:
    """One for each that differs from the others: a loader that is made anew for every epoch is one."""
    kinds: dict[tuple[Any, ...], LoaderFacts] = {}
    for loader in loaders:
        kinds.setdefault((loader.dataset, loader.batch_size, loader.num_samples, loader.num_workers), loader)
    is_only = len({kind[:-1] for kind in kinds}) == 1
    return [_batch_bar(loader, is_only) for loader in list(kinds.values())[:MOST_LOADERS]]


def _batch_bar(loader: LoaderFacts, is_only: bool) -> Bar:
    what = "one batch" if is_only else f"one batch of {loader.batch_size} from {loader.dataset}"
    workers = "its worker" if loader.num_workers == 1 else f"one of {loader.num_workers} workers"
    where = f"in {workers}" if loader.num_workers else "in the training thread"
    known = [stage for stage in STAGES if loader.seconds.get(stage, 0.0) > 0]
    others = sorted(stage for stage in loader.seconds if stage not in STAGES and loader.seconds[stage] > 0)
    return Bar(f"{what}, {where}", tuple((stage, loader.seconds[stage]) for stage in [*known, *others]))


def steps_chart(steps: StepTable) -> Chart | None:
    """Every step in its phases, over the run."""
    return band_chart("Steps in their parts", steps.seconds, "step")


def wait_chart(steps: StepTable) -> Chart | None:
    """Share of waiting, over steps."""
    line = Line("waiting for data", steps.waits(), "k0")
    return line_chart("Waiting for data", [line], SHARE, "step", least_top=0.1)


def throughput_chart(record: DoctorRecord, steps: StepTable) -> Chart | None:
    """Samples a second, and those with batches that are in memory already."""
    points = steps.speeds()
    lines, ceiling = [Line("measured", points, "k0")], record.ceiling
    if ceiling is not None and ceiling.resident_step_s > 0 and points:
        most = sum(steps.sizes) / sum(size > 0 for size in steps.sizes) / ceiling.resident_step_s
        lines.append(Line("data in memory", [(points[0][0], most), (points[-1][0], most)], "k1", True))
    return line_chart("Throughput against its ceiling", lines, RATE, "step")


def utilisation_chart(record: DoctorRecord, steps: StepTable) -> Chart | None:
    """The device's counter, or the share of time not spent waiting, named so."""
    device = _over_time(record.looks, lambda look: look.device_utilisation)
    if device:
        line = Line("device", device, "k0")
        return line_chart("Utilisation", [line], SHARE, "time", x_quantity=SECONDS, least_top=1.0)
    line = Line("not waiting for data", [(step, 1 - share) for step, share in steps.waits()], "k0")
    return line_chart("Utilisation", [line], SHARE, "step", least_top=1.0)


def cores_chart(record: DoctorRecord) -> Chart | None:
    """Busy cores of the script and its workers."""
    line = Line("busy cores", _over_time(record.looks, lambda look: look.cpu_share), "k0")
    return line_chart("Processor", [line], CORES, "time", x_quantity=SECONDS, least_top=1.0)


def memory_chart(record: DoctorRecord) -> Chart | None:
    """Main memory and the device's."""
    lines = [
        Line("main memory", _over_time(record.looks, lambda look: look.rss_bytes), "k0"),
        Line("device", _over_time(record.looks, lambda look: look.device_bytes), "k1"),
    ]
    return line_chart("Memory", lines, BYTES, "time", x_quantity=SECONDS)


def loader_title(loader: LoaderFacts) -> str:
    """The loader by its role and dataset."""
    return f"{clipped(loader.name, 40)}: {clipped(loader.dataset, NAME_LENGTH)}"


def _over_time(looks: Sequence[Look], value_of: Callable[[Look], float | None]) -> list[tuple[float, float]]:
    start_s = min((look.at_s for look in looks if math.isfinite(look.at_s)), default=0.0)
    given = ((look.at_s - start_s, value_of(look)) for look in looks)
    return [(at_s, value) for at_s, value in given if value is not None]
