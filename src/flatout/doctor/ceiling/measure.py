"""The ceiling: blocks of steps with and without a loader in, the most that better data could gain out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from flatout.doctor.record import Ceiling
from flatout.doctor.steps.cut import Steps
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
    return replayed(trace, steps, phases, alone_s) or from_waits(steps, alone_s)


def replayed(trace: Trace, steps: Steps, phases: Phases, alone_s: float | None) -> Ceiling | None:
    """Steps with the loader against steps with resident batches, round by round.

    Evaluations fall into some blocks and not into others, so each block counts without its own, and all with
    the mean that was observed.
    """
    extra_s = fmean(step.seconds["evaluate"] for step in steps.steps)
    base = block_seconds(trace.blocks, "base", phases, extra_s)
    resident = block_seconds(trace.blocks, "resident", phases, extra_s)
    rounds = sorted(base.keys() & resident.keys())
    if len(rounds) < REPLAYED_ROUNDS:
        return None
    ratio = spread_of([base[number] / resident[number] for number in rounds])
    step_s = fmean(base[number] for number in rounds)
    return Ceiling(
        step_s, step_s / ratio.middle, alone_s, min(ratio.low, ratio.middle), max(ratio.high, ratio.middle)
    )


def is_replayed(trace: Trace) -> bool:
    """Whether enough rounds with resident batches were run before the script ended."""
    rounds = [{row.round for row in trace.blocks if row.name == name} for name in ("base", "resident")]
    return len(set.intersection(*rounds)) >= REPLAYED_ROUNDS


def block_seconds(blocks: Sequence[BlockRow], name: str, phases: Phases, extra_s: float) -> dict[int, float]:
    """Mean step of each round's block, with `extra_s` instead of its own evaluations."""
    found: dict[int, float] = {}
    for block in blocks:
        if block.name == name and block.round not in found:
            seconds = phases.seconds(block.start, block.end)
            found[block.round] = extra_s + (sum(seconds.values()) - seconds["evaluate"]) / block.num_steps
    return found


def from_waits(steps: Steps, alone_s: float | None) -> Ceiling:
    """What the steps would take without their waits: for scripts that end too early to replay anything."""
    size = max(1, math.ceil(len(steps.steps) / NUM_PARTS))
    ratios = []
    for at in range(0, len(steps.steps), size):
        part = steps.steps[at : at + size]
        total, waited = (sum(_seconds(step.seconds, kind) for step in part) for kind in ("all", "wait"))
        ratios.append(total / max(total - waited, 1e-9))
    step_s = fmean(sum(step.seconds.values()) for step in steps.steps)
    wait_s = fmean(step.seconds["wait"] for step in steps.steps)
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
    alone, beside = (block_seconds(trace.blocks, name, phases, 0.0) for name in ("resident", "beside"))
    alone_cpu, beside_cpu = (_cpu_seconds(trace.blocks, name) for name in ("resident", "beside"))
    rounds = sorted(alone.keys() & beside.keys())
    if len(rounds) < LEAST_ROUNDS:
        return None
    if 0 < fmean(alone_cpu[number] / alone[number] for number in rounds) <= ONE_THREAD:
        alone, beside = alone_cpu, beside_cpu
    ratio = spread_of([beside[number] / alone[number] for number in rounds]).middle
    return min(max(0.0, ratio - 1.0), 1.0)


def sent_of(trace: Trace, phases: Phases) -> float | None:
    """Seconds that a step takes more if its batches come ready from a worker; None: not known."""
    alone, sent = (block_seconds(trace.blocks, name, phases, 0.0) for name in ("resident", "sent"))
    rounds = sorted(alone.keys() & sent.keys())
    return max(0.0, median(sent[r] - alone[r] for r in rounds)) if len(rounds) >= LEAST_ROUNDS else None


def _cpu_seconds(blocks: Sequence[BlockRow], name: str) -> dict[int, float]:
    return {block.round: block.cpu_s / block.num_steps for block in blocks if block.name == name}
