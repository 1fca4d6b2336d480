"""The sentence of each verdict, with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.doctor.rules.case import Case
from flatout.doctor.rules.making import costliest, files_per_sample, stage_share
from flatout.doctor.rules.seen import EXTRA
from flatout.doctor.rules.words import count, duration, share, times

NOTICED = 1.1
"""A gain that a healthy training should not have, without a word about it."""
DIFFERS = 1.5
"""Seconds of a step beside its wait, against those with batches from memory, from which the wait alone does not
explain the gain: 62 % of waiting were 2.6x, and 159x was told, where workers took the cores of a tiny model."""


def _waiting(case: Case) -> str:
    return f"Training waits for data {share(case.share_of('wait'))} of the time"


def _at_most(case: Case) -> str:
    ceiling = case.record.ceiling
    if ceiling is not None and ceiling.is_vague:
        return (
            f"; with a perfect loader it would be between {times(ceiling.low)} and {times(ceiling.high)} "
            "as fast: what was measured varies too much to say it closer, look again when the machine is quiet"
        )
    return f"; with a perfect loader it would be {times(case.ceiling)} as fast{_why_so_much(case)}"


def _why_so_much(case: Case) -> str:
    """Where the wait alone does not explain the gain: what becomes of the rest of a step."""
    wait_s, best_s = case.seconds["wait"], case.step_s / case.ceiling
    rest_s = case.step_s - wait_s
    if rest_s >= DIFFERS * best_s:
        who = "nobody makes batches beside it" if case.loader.num_workers else "no batch is made in between"
        return (
            f": of a step of {duration(case.step_s)} the {duration(wait_s)} of waiting would go, and the other "
            f"{duration(rest_s)} would become {duration(best_s)}, which is what they take when {who}"
        )
    if case.is_on_gpu and best_s >= DIFFERS * rest_s:
        return f": the device computes during the wait, and needs {duration(best_s)} for a step all the same"
    return ""


def _data(reason: Callable[[Case], str]) -> Callable[[Case], str]:
    return lambda case: f"{_waiting(case)}: {reason(case)}{_at_most(case)}."


def _too_few(case: Case) -> str:
    workers = case.loader.num_workers
    who = f"only {count(workers, 'worker')} makes" if workers == 1 else f"only {workers} workers make"
    made = f"the batches ({duration(case.make_s)} each)"
    return f"{who} {made}" if workers else f"no worker makes {made} while the model trains"


def _too_many(case: Case) -> str:
    return (
        f"{count(case.loader.num_workers, 'worker')} crowd {case.cores_text} for batches "
        f"that take {duration(case.make_s)} to make"
    )


def _slow_decode(case: Case) -> str:
    found = costliest(case) if case.stages_s > 0 else None
    what = f", {found.name} {share(min(1.0, found.seconds_per_batch / case.stages_s))} of it" if found else ""
    return f"a batch takes {duration(case.make_s)} to read and decode{what}"


def _compute(case: Case) -> str:
    ceiling = case.record.ceiling
    if ceiling is not None and ceiling.is_vague:
        seen = 1 - case.share_of("wait", *EXTRA)
        return (
            f"Compute-bound: {share(seen)} of a step is computation, and something is to be won in it; what "
            f"the data path could gain varied too much to say it, between {times(ceiling.low)} and "
            f"{times(ceiling.high)}: look again when the machine is quiet."
        )
    return (
        f"Compute-bound: {share(case.compute_s / case.step_s)} of a step is computation, and no change of the "
        f"data path could gain more than {times(case.ceiling)}; what is to be won is in the model's own work."
    )


def _unsure(case: Case) -> str:
    ceiling = case.record.ceiling
    assert ceiling is not None
    return (
        f"Nothing is sure: training waits for data {share(case.share_of('wait'))} of the time, and a "
        f"perfect loader would make it between {times(ceiling.low)} and {times(ceiling.high)} as fast, "
        "which may be noise; look again when the machine is quiet, or with more steps."
    )


def _healthy(case: Case) -> str:
    if case.record.exit.error is not None:
        seen = count(len(case.record.steps), "training step")
        return f"The script failed, see its own traceback; in the {seen} until then nothing held it up."
    return (
        f"Healthy, and compute-bound: {share(case.compute_s / case.step_s)} of a step is computation, and a "
        f"perfect loader would make it {times(case.ceiling)} as fast{_within_noise(case)}; leave it as it is."
    )


def _within_noise(case: Case) -> str:
    """Why a gain that stands there is none of the loader's."""
    ceiling = case.record.ceiling
    if ceiling is None or ceiling.gain <= 1.0:
        return ""
    if ceiling.low <= 1.0:
        return f" ({times(ceiling.low)} to {times(ceiling.high)}: noise)"
    return (
        " (batches are made in time, but whoever else is busy takes from the cores)"
        if ceiling.gain > NOTICED
        else ""
    )


def _unknown(case: Case) -> str:
    if case.record.exit.error is not None and not case.record.steps:
        return "The script failed before there was anything to measure: see its own traceback."
    if not case.record.steps:
        return "No training step could be measured, so there is nothing to say about it."
    if case.record.exit.error is not None:
        seen = count(len(case.record.steps), "training step")
        return f"The script failed, see its own traceback; only {seen} could be measured: too few to say more."
    return f"Only {count(len(case.record.steps), 'training step')} could be measured: too few to say anything."


def _part(phase: str, what: str) -> Callable[[Case], str]:
    return lambda case: (
        f"{what} {share(case.share_of(phase))} of the time, {duration(case.seconds[phase])} of each step of "
        f"{duration(case.step_s)}."
    )


SENTENCES: Mapping[str, Callable[[Case], str]] = {
    "healthy": _healthy,
    "compute": _compute,
    "unsure": _unsure,
    "unknown": _unknown,
    "too_few_workers": _data(_too_few),
    "too_many_workers": _data(_too_many),
    "worker_restart": _data(
        lambda case: (
            f"{count(case.loader.num_workers, 'worker')} started anew for each epoch, "
            f"{share(case.restart_s / case.step_s)} of all time"
        )
    ),
    "slow_iterable": _data(
        lambda case: (
            f"the iterable dataset takes {duration(case.make_s)} for a batch, "
            f"{count(case.loader.num_workers, 'worker') if case.loader.num_workers else 'no worker'} runs ahead"
        )
    ),
    "slow_sample": _data(
        lambda case: (
            f"one sample in a hundred takes {case.loader.slowest or 1:.0f} times as long as the others, "
            f"{share(case.slow_share)} of all making, and everybody waits for it"
        )
    ),
    "small_files": _data(
        lambda case: (
            f"{files_per_sample(case):.0f} small files are opened for every sample, "
            f"{duration(case.loader.seconds.get('fetch', 0.0))} a batch"
        )
    ),
    "cold_disk": _data(
        lambda case: (
            f"workers wait {duration(case.io_s)} for the disk in the {duration(case.make_s)} of a batch"
        )
    ),
    "augmentation": _data(
        lambda case: (
            f"samples are augmented one by one on the CPU, most of the {duration(case.make_s)} of a batch"
        )
    ),
    "slow_decode": _data(_slow_decode),
    "huge_collate": _data(
        lambda case: (
            f"stacking a batch takes {duration(case.loader.seconds.get('collate', 0.0))}, "
            f"{share(stage_share(case, 'collate'))} of its making"
        )
    ),
    "hand_over": _data(
        lambda case: (
            f"a batch's way from its worker takes {duration(case.hand_over_s)}, its making "
            f"{duration(case.make_s)}"
        )
    ),
    "evaluation": _part("evaluate", "Evaluation takes"),
    "logging": _part("log", "Logging takes"),
    "copies": _part("copy", "Copies to the device take"),
    "padding": lambda case: (
        f"{share(case.loader.padding_share or 0.0)} of every batch is padding, which is computed like the rest."
    ),
}
"""What the verdict says, by disease."""
