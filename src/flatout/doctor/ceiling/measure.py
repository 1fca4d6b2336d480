"""The ceiling: blocks of steps with and without a loader in, the most that better data could gain out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from flatout.doctor.record import Ceiling
from flatout.doctor.steps.cut import Steps
from flatout.doctor.steps.epochs import Epochs, epochs_of, restarted_s, starts_workers
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import BlockRow, Trace
from flatout.doctor.tune.interval import spread_of

LEAST_ROUNDS = 2
REPLAYED_ROUNDS = 3
"""Rounds that a ceiling needs: the interval of two goes from nothing to a thousand times."""
ONE_THREAD = 1.2
"""CPU seconds a second up to which one thread computes."""
NUM_PARTS = 8
"""Parts of the observed steps that an interval without replay rests on."""


def ceiling_of(trace: Trace, steps: Steps, phases: Phases) -> Ceiling | None:
    """From replayed blocks where there are any, otherwise from the waits; None without steps."""
    if not steps.steps:
        return None
    alone_s = trace.alone[0] / trace.alone[1] if trace.alone and trace.alone[1] else None
    epochs = epochs_of(trace, steps)
    return replayed(trace, steps, phases, epochs, alone_s) or from_waits(steps, alone_s, epochs.unseen_s)


def replayed(
    trace: Trace, steps: Steps, phases: Phases, epochs: Epochs, alone_s: float | None
) -> Ceiling | None:
    """Steps with the loader against steps with resident batches, round by round.

    Evaluations, and workers that start for another epoch, fall into some blocks and not into others, so each
    block counts without its own, and all with the mean of those.
    """
    extra_s = fmean(step.seconds["evaluate"] for step in steps.steps)
    base = block_seconds(trace, "base", phases, extra_s, base_starts_s(trace, epochs))
    resident = block_seconds(trace, "resident", phases, extra_s)
    rounds = sorted(base.keys() & resident.keys())
    if len(rounds) < REPLAYED_ROUNDS:
        return None
    ratio = spread_of([base[number] / resident[number] for number in rounds])
    step_s = fmean(base[number] for number in rounds)
    low, high = min(ratio.low, ratio.middle), max(ratio.high, ratio.middle)
    return Ceiling(step_s, step_s / ratio.middle, alone_s, max(1.0, low), max(1.0, high))


def is_replayed(trace: Trace) -> bool:
    """Whether enough rounds with resident batches were run before the script ended."""
    rounds = [{row.round for row in trace.blocks if row.name == name} for name in ("base", "resident")]
    return len(set.intersection(*rounds)) >= REPLAYED_ROUNDS


def base_starts_s(trace: Trace, epochs: Epochs) -> float | None:
    """Seconds a step of workers that start for each epoch of the script's loader; None: it has none such."""
    known = trace.loader(trace.train_number) if trace.train_number is not None else None
    if known is None or not starts_workers(known) or epochs.start_s is None or not epochs.length:
        return None
    return epochs.a_step_s


def block_seconds(
    trace: Trace, name: str, phases: Phases, extra_s: float, starts_s: float | None = None
) -> dict[int, float]:
    """Mean step of each round's block, with `extra_s` instead of its own evaluations.

    Args:
        starts_s: seconds a step that count instead of its own starts of epochs; absent: its own count.
    """
    found: dict[int, float] = {}
    for block in trace.blocks:
        if block.name == name and block.round not in found:
            seconds = phases.seconds(block.start, block.end)
            own_s = seconds["evaluate"] + (0.0 if starts_s is None else restarted_s(trace, block))
            found[block.round] = extra_s + (starts_s or 0.0) + (sum(seconds.values()) - own_s) / block.num_steps
    return found


def from_waits(steps: Steps, alone_s: float | None, unseen_s: float = 0.0) -> Ceiling:
    """What the steps would take without their waits: for scripts that end too early to replay anything.

    Args:
        unseen_s: what a mean step waits longer than these did.
    """
    size = max(1, math.ceil(len(steps.steps) / NUM_PARTS))
    ratios = []
    for at in range(0, len(steps.steps), size):
        part = steps.steps[at : at + size]
        total, waited = (sum(_seconds(step.seconds, kind) for step in part) for kind in ("all", "wait"))
        busy = total - waited
        ratios.append((busy + max(0.0, waited + len(part) * unseen_s)) / max(busy, 1e-9))
    wait_s = max(0.0, fmean(step.seconds["wait"] for step in steps.steps) + unseen_s)
    step_s = fmean(sum(step.seconds.values()) - step.seconds["wait"] for step in steps.steps) + wait_s
    gain = step_s / max(step_s - wait_s, 1e-9)
    spread = spread_of(ratios)
    high = spread.high if math.isfinite(spread.high) else gain
    return Ceiling(step_s, step_s / gain, alone_s, min(max(spread.low, 1.0), gain), max(high, gain))


def _seconds(seconds: Mapping[str, float], kind: str) -> float:
    return sum(seconds.values()) if kind == "all" else seconds[kind]


def resident_seconds(trace: Trace, phases: Phases) -> tuple[dict[str, float], float] | None:
    """Mean seconds by phase, and CPU seconds, of a step with resident batches; None: none was replayed."""
    blocks = [block for block in trace.blocks if block.name == "resident"]
    num_steps = sum(block.num_steps for block in blocks)
    if not num_steps:
        return None
    total: dict[str, float] = {}
    for block in blocks:
        for phase, seconds in phases.seconds(block.start, block.end).items():
            total[phase] = total.get(phase, 0.0) + seconds
    mean = {phase: seconds / num_steps for phase, seconds in total.items() if phase != "evaluate"}
    return mean, sum(block.cpu_s for block in blocks) / num_steps


def slowdown_of(trace: Trace, phases: Phases) -> float | None:
    """What a busy process beside it adds to a step with resident batches, as a part of it; None: not known.

    Where one thread computes, its CPU seconds tell: they do not grow if it has to wait for a core. To be beside
    somebody is never worse than to take turns with him.
    """
    alone, beside = (block_seconds(trace, name, phases, 0.0) for name in ("resident", "beside"))
    alone_cpu, beside_cpu = (_cpu_seconds(trace.blocks, name) for name in ("resident", "beside"))
    rounds = sorted(alone.keys() & beside.keys())
    if len(rounds) < LEAST_ROUNDS:
        return None
    if 0 < fmean(alone_cpu[number] / alone[number] for number in rounds) <= ONE_THREAD:
        alone, beside = alone_cpu, beside_cpu
    ratio = spread_of([beside[number] / alone[number] for number in rounds]).middle
    return min(max(0.0, ratio - 1.0), 1.0)


def one_thread_of(trace: Trace, phases: Phases) -> float | None:
    """How many times as fast one thread computes a step, 1 unless it was faster in each round; None: not known.

    Threads that wait for each other are slow by chance, 2 to 300 times: no interval of a mean tells it.
    """
    many, one = (block_seconds(trace, name, phases, 0.0) for name in ("resident", "one_thread"))
    rounds = sorted(many.keys() & one.keys())
    if len(rounds) < REPLAYED_ROUNDS:
        return None
    ratios = [many[number] / one[number] for number in rounds]
    return spread_of(ratios).middle if min(ratios) > 1.0 else 1.0


def sent_of(trace: Trace, phases: Phases) -> float | None:
    """Seconds that a step takes more if its batches come ready from a worker; None: not known."""
    alone, sent = (block_seconds(trace, name, phases, 0.0) for name in ("resident", "sent"))
    rounds = sorted(alone.keys() & sent.keys())
    return max(0.0, median(sent[r] - alone[r] for r in rounds)) if len(rounds) >= LEAST_ROUNDS else None


def _cpu_seconds(blocks: Sequence[BlockRow], name: str) -> dict[int, float]:
    return {block.round: block.cpu_s / block.num_steps for block in blocks if block.name == name}
