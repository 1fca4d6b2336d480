"""The verdict: which of the things that slow a training down costs most, in one word and one sentence.

Everything here compares one part of a step with another: a machine ten times as fast gives the same word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.doctor.record import Verdict
from flatout.doctor.rules_case import Case
from flatout.doctor.rules_compute import BUSY, advise_once, advise_precision, advise_threads, utilisation
from flatout.doctor.rules_loop import advise_less_padding
from flatout.doctor.rules_making import (
    costliest,
    files_per_sample,
    has_small_files,
    is_augmentation,
    is_cold,
    stage_share,
)
from flatout.doctor.rules_words import count, duration, share, times
from flatout.doctor.rules_workers import gain_of_workers, most_workers, wanted_workers

MIN_LOSS = 0.1
"""Part of a step that must be to be won before anything is called a disease."""
MIN_STEPS = 3
"""Steps without which there is nothing to say."""
LONG_WAIT = 0.3
"""Part of a step that nobody waits by chance."""
DISEASES = (
    "healthy", "compute", "too_few_workers", "too_many_workers", "worker_restart", "slow_iterable",
    "slow_sample", "small_files", "cold_disk", "augmentation", "slow_decode", "huge_collate", "hand_over",
    "evaluation", "logging", "padding", "copies", "unknown",
)  # fmt: skip


def name_disease(case: Case) -> str:
    """The one word; `healthy` if less than a tenth of a step is to be won."""
    if len(case.record.steps) < MIN_STEPS or case.step_s <= 0:
        return "unknown"
    found = losses(case)
    worst = max(found, key=lambda name: found[name])
    if found[worst] >= MIN_LOSS * case.step_s:
        return name_data_disease(case) if worst == "data" else worst
    return "compute" if computes_badly(case) else "healthy"


def losses(case: Case) -> Mapping[str, float]:
    """Seconds of a step that each cause takes and a cure would give back."""
    once, padding = advise_once(case), advise_less_padding(case)
    return {
        "data": case.step_s * (1 - 1 / case.ceiling) if is_sure_of_ceiling(case) else 0.0,
        "evaluation": case.seconds["evaluate"],
        "logging": case.seconds["log"],
        "padding": _saved_s(case, padding.predicted_gain if padding else None),
        "compute": _saved_s(case, once.predicted_gain if once else None),
        "copies": case.seconds["copy"] if case.is_on_gpu else 0.0,
    }


def is_sure_of_ceiling(case: Case) -> bool:
    """Batches from memory made a difference beyond noise, or the waiting is too long to be noise."""
    ceiling = case.record.ceiling
    return ceiling is None or ceiling.low > 1.0 or case.share_of("wait") >= LONG_WAIT


def name_data_disease(case: Case) -> str:
    """Why batches come late."""
    loss = 1 - 1 / case.ceiling
    if case.restart_s >= 0.4 * loss * case.step_s:
        return "worker_restart"
    if case.loader.is_iterable:
        return "slow_iterable"
    if case.has_slow_samples:
        return "slow_sample"
    number, current = wanted_workers(case), case.loader.num_workers
    won = (1 - 1 / gain_of_workers(case, number)) / loss if loss > 0 else 0.0
    if number < current and current > most_workers(case) and won >= 0.4:
        return "too_many_workers"
    if number > current and current < case.machine.num_cores and won >= 0.5:
        return "too_few_workers"
    return name_making(case)


def name_making(case: Case) -> str:
    """Which part of a batch's making takes longest."""
    if case.hand_over_s > case.stages_s:
        return "too_many_workers" if case.loader.num_workers > most_workers(case) else "hand_over"
    if stage_share(case, "collate") >= 0.4 and not case.has_default_collate:
        return "huge_collate"
    if stage_share(case, "fetch") >= 0.3:
        if has_small_files(case):
            return "small_files"
        if is_cold(case):
            return "cold_disk"
    return "augmentation" if is_augmentation(case) else "slow_decode"


def computes_badly(case: Case) -> bool:
    """There is something to be won in the computation itself."""
    gains = [
        found.predicted_gain
        for rule in (advise_once, advise_threads, advise_precision)
        if (found := rule(case)) and found.predicted_gain
    ]
    facts = case.facts
    if max(gains, default=1.0) * (1 - MIN_LOSS) >= 1.0 or facts.detects_anomalies:
        return True
    return case.is_on_gpu and (bool(facts.is_deterministic) or utilisation(case) < BUSY)


def give_verdict(case: Case) -> Verdict:
    """The word and the sentence."""
    disease = name_disease(case)
    return Verdict(disease, SENTENCES[disease](case))


def _saved_s(case: Case, gain: float | None) -> float:
    return case.step_s * (1 - 1 / gain) if gain else 0.0


def _waiting(case: Case) -> str:
    return f"Training waits for data {share(case.share_of('wait'))} of the time"


def _at_most(case: Case) -> str:
    return f"; with a perfect loader it would be {times(case.ceiling)} as fast"


def _data(reason: Callable[[Case], str]) -> Callable[[Case], str]:
    return lambda case: f"{_waiting(case)}: {reason(case)}{_at_most(case)}."


def _too_few(case: Case) -> str:
    workers = case.loader.num_workers
    who = f"only {count(workers, 'worker')} makes" if workers == 1 else f"only {workers} workers make"
    made = f"the batches ({duration(case.make_s)} each)"
    return f"{who} {made}" if workers else f"no worker makes {made} while the model trains"


def _too_many(case: Case) -> str:
    return (
        f"{count(case.loader.num_workers, 'worker')} crowd {count(case.machine.num_cores, 'core')} for batches "
        f"that take {duration(case.make_s)} to make"
    )


def _slow_decode(case: Case) -> str:
    found = costliest(case)
    what = f", {found.name} most of it" if found else ""
    return f"a batch takes {duration(case.make_s)} to read and decode{what}"


def _compute(case: Case) -> str:
    return (
        f"Compute-bound: {share(case.compute_s / case.step_s)} of a step is computation, and no change of the "
        f"data path could gain more than {times(case.ceiling)}; what is to be won is in the model's own work."
    )


def _healthy(case: Case) -> str:
    return (
        f"Healthy, and compute-bound: {share(case.compute_s / case.step_s)} of a step is computation, and a "
        f"perfect loader would make it {times(case.ceiling)} as fast{_within_noise(case)}; leave it as it is."
    )


def _within_noise(case: Case) -> str:
    ceiling = case.record.ceiling
    is_noise = ceiling is not None and ceiling.low <= 1.0 < ceiling.gain
    return f" ({times(ceiling.low)} to {times(ceiling.high)}: noise)" if ceiling and is_noise else ""


def _unknown(case: Case) -> str:
    if case.record.exit.error is not None:
        return "The script failed before there was anything to measure: see its own traceback."
    return f"Only {count(len(case.record.steps), 'training step')} could be measured: too few to say anything."


def _part(phase: str, what: str) -> Callable[[Case], str]:
    return lambda case: (
        f"{what} {share(case.share_of(phase))} of the time, {duration(case.seconds[phase])} of each step of "
        f"{duration(case.step_s)}."
    )


SENTENCES: Mapping[str, Callable[[Case], str]] = {
    "healthy": _healthy,
    "compute": _compute,
    "unknown": _unknown,
    "too_few_workers": _data(_too_few),
    "too_many_workers": _data(_too_many),
    "worker_restart": _data(
        lambda case: (
            f"the {case.loader.num_workers} workers are started anew for each epoch, "
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
