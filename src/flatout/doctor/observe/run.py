"""observe: somebody's unmodified training script in, a record of what it does with its time out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flatout.doctor.ceiling.measure import ceiling_of, is_replayed
from flatout.doctor.child.log import read_rows
from flatout.doctor.launch.run import Ended, Script, launch
from flatout.doctor.observe.ending import exit_of, read_exits
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.record import DoctorRecord
from flatout.doctor.rules.words import count, duration
from flatout.doctor.steps.cut import MIN_STEPS, Steps, steps_of, sync_points_of, with_logging
from flatout.doctor.steps.facts import facts_of, log_share, only_training, overhead_of
from flatout.doctor.steps.loaders import Made, loader_facts, made_by
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import Trace, read_trace

NOT_ENDED = Ended(0, 0, (), 0.0, False)
"""For a record of a script that still runs."""


def observe(
    script: Path | None,
    module: str | None,
    arguments: Sequence[str],
    settings: ObserveSettings,
    *,
    stdout: Any = None,
    on_poll: Callable[[Path], None] = lambda folder: None,
) -> DoctorRecord:
    """Run a script under observation and say what was seen, without a verdict.

    Args:
        script: the file; or
        module: the module that `python -m` would run.
        arguments: its own.
        stdout: where it prints; absent: where this process does.
        on_poll: called with the folder of the observation now and then while the script runs.

    Raises:
        ConfigError: there is no such file.
    """
    what = Script(script, module, tuple(arguments))
    with tempfile.TemporaryDirectory(prefix="flatout-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ended = launch(what, settings, folder, stdout=stdout, on_poll=lambda: on_poll(folder))
        return record_of(what, settings, folder, ended)


def record_of(script: Script, settings: ObserveSettings, folder: Path, ended: Ended) -> DoctorRecord:
    """The record that the files of an observation make; of a script that still runs, so far."""
    traces = [read_trace(pid, rows) for pid, rows in read_rows(folder, "events").items()]
    exits = read_exits(folder)
    trace = _training(traces, exits)
    phases = Phases(trace)
    samples = only_training(read_rows(folder, "samples").get(trace.pid, ()))
    steps = steps_of(trace, phases, settings.num_warmup)
    steps = with_logging(steps, log_share(samples))
    loaders = _made_of_all(trace, folder)
    train = trace.train_number
    facts = facts_of(trace, steps, phases, loaders.get(train) if train is not None else None, samples)
    facts["num_processes"] = max(1, sum(_overlaps(trace, each) for each in traces))
    return DoctorRecord(
        script=script.name,
        arguments=script.arguments,
        exit=exit_of(ended, exits, traces),
        steps=steps.steps,
        num_warmup=steps.num_warmup,
        loaders=tuple(loader_facts(trace, known, loaders[known["number"]]) for known in _in_order(trace)),
        ceiling=ceiling_of(trace, steps, phases) if len(steps.steps) >= MIN_STEPS else None,
        sync_points=sync_points_of(trace, steps, phases),
        looks=ended.looks,
        warnings=tuple(_warnings(trace, steps, ended, settings)),
        overhead=overhead_of(trace, steps),
        facts=facts,
        machine=_machine(),
    )


def _training(traces: Sequence[Trace], exits: Mapping[int, Mapping[str, Any]]) -> Trace:
    """The process that trains; of several ranks the first."""
    trained = [trace for trace in traces if trace.train_number is not None]
    ranked = sorted(trained, key=lambda trace: exits.get(trace.pid, {}).get("rank", 0))
    return ranked[0] if ranked else (traces[0] if traces else Trace(0))


def _overlaps(trace: Trace, other: Trace) -> bool:
    """Whether another process trained at the same time: folds one after the other are no ranks."""
    if other.train_number is None or not (trace.nexts and other.nexts):
        return False
    return other.nexts[0].start <= trace.nexts[-1].end and trace.nexts[0].start <= other.nexts[-1].end


def _made_of_all(trace: Trace, folder: Path) -> dict[int, Made]:
    rows = [read_rows(folder, kind) for kind in ("batches", "samples", "calls")]
    return {known["number"]: made_by(trace, known["number"], *rows) for known in trace.loaders}


def _in_order(trace: Trace) -> list[Mapping[str, Any]]:
    """Those that were read from; the one trained on first."""
    read = [known for known in trace.loaders if known["num_batches"]]
    return sorted(read, key=lambda known: (known["number"] != trace.train_number, not known["is_train"]))


def _warnings(trace: Trace, steps: Steps, ended: Ended, settings: ObserveSettings) -> list[str]:
    found = [
        f"the script wrote over {path} while it was observed" for path in trace.facts.get("overwritten") or ()
    ]
    found += [
        f"{path} was written while batches were replayed: its weights and losses are no results, do not use it"
        for path in trace.facts.get("late_files") or ()
    ]
    found += [
        f"{path} went on being written while batches were replayed: what it holds since then is no result"
        for path in _gone_on(trace)
    ]
    found += [f"a measurement after the observed steps failed: {why}" for why in trace.failures]
    if trace.unread is not None:
        found.append(_why_unsure(trace, *trace.unread))
    if ended.code and not ended.was_interrupted and not steps.steps:
        return found  # its own error is the news
    if not trace.nexts:
        found.append(_why_unread(trace))
    elif trace.train_number is None:
        found.append(_why_untrained(trace))
    elif len(steps.steps) < MIN_STEPS:
        return found  # the verdict says that they are too few
    elif trace.observed_until is None and not settings.is_full:
        found.append(
            f"the script ended after {len(steps.steps) + steps.num_warmup} steps, before resident batches "
            "could be replayed; the ceiling is told from its waits"
        )
    elif trace.observed_until is not None and steps.steps and not is_replayed(trace) and not trace.failures:
        found.append(
            "the script ended before enough resident batches were replayed; the ceiling is told from its waits"
        )
    return found


def _gone_on(trace: Trace) -> list[str]:
    """Files that were open when the replay began, and are of another size now."""
    late, known = trace.facts.get("late_files") or (), trace.facts.get("open_files") or {}
    return [path for path, size in known.items() if path not in late and _size_of(Path(path)) != size]


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _why_unsure(trace: Trace, own: int, larger: int) -> str:
    """A larger loader waited while the steps were looked at, or is waiting still."""
    told = f"the steps are those of a loader with {own:,} samples; one with {larger:,} was made and not read"
    if trace.observed_until is not None:
        return (
            f"{told} from yet. If that is the training, what was looked at is its warm-up: shorten it by the "
            "script's arguments, or look longer with --steps"
        )
    return (
        f"{told} from yet: they may have been its warm-up, and it was waited for. If they are the training, "
        "look again with fewer --steps: the more are wanted, the longer such a loader is waited for"
    )


def _why_unread(trace: Trace) -> str:
    """No batch came: from another source than a loader, or because nothing was trained here at all."""
    if not any(span.phase in ("backward", "optimiser") for span in trace.spans):
        return (
            "nothing was seen: the script read no batch of a torch.utils.data.DataLoader, ran no backward "
            "and no optimiser. Next: give the script that trains; one that trains in a forked child is not seen"
        )
    return (
        "no batch of a torch.utils.data.DataLoader was read where the script trains; those are what the "
        "doctor watches. Next: let the loop take its batches from one and look again; a training with "
        "flatout's own loader keeps its times itself: flatout report RUN"
    )


def _why_untrained(trace: Trace) -> str:
    """Batches were read and none of them was followed by a backward."""
    read = [each for each in trace.nexts if each.num_samples]
    first_s = min((span.start for span in trace.spans if span.phase == "backward"), default=None)
    if first_s is None:
        return (
            f"{count(len(read), 'batch', 'batches')} came and no backward followed: nothing was trained while "
            "it was observed. If training begins later, give the script arguments that begin it sooner"
        )
    if any(each.end > first_s for each in trace.nexts):
        return (
            f"it cannot be told what the script trains on: of {count(len(read), 'batch', 'batches')} few were "
            "followed by a backward before the next one. Several batches for each backward look like this, and "
            "training data from elsewhere than a DataLoader"
        )
    taken_s = sum(each.end - each.start for each in trace.nexts)
    return (
        f"the script trains on batches that it had read before, as list(loader) does ({len(read):,} in "
        f"{duration(taken_s)}), or on others than a DataLoader's. To have its loader measured, let the loop "
        "run over the loader itself"
    )


def _machine() -> dict[str, Any]:
    from flatout.loader.machine import describe_machine

    return asdict(describe_machine())
