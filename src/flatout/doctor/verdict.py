"""The verdict: which of the things that slow a training down costs most, in one word and one sentence.

Everything here compares one part of a step with another: a machine ten times as fast gives the same word.
"""

from __future__ import annotations

from collections.abc import Mapping

from flatout.doctor.record import Verdict
from flatout.doctor.rules.case import Case
from flatout.doctor.rules.compute import BUSY, advise_once, advise_precision, advise_threads, utilisation
from flatout.doctor.rules.loop import advise_less_padding
from flatout.doctor.rules.making import (
    has_small_files,
    is_augmentation,
    is_cold,
    stage_share,
)
from flatout.doctor.rules.workers import gain_of_workers, most_workers, wanted_workers
from flatout.doctor.steps.cut import MIN_STEPS
from flatout.doctor.verdict_sentences import NOTICED, SENTENCES

MIN_LOSS = 0.1
"""Part of a step that must be to be won before anything is called a disease."""
LONG_WAIT = 0.3
"""Part of a step that nobody waits by chance."""
WIDE = 1.5
"""A perfect loader may gain so much, as far as was measured: then a wait is not called harmless."""
BESIDE = 0.3
"""Part of a step that workers which are in time may take from it, by being beside it and by what they send."""
DISEASES = (
    "healthy", "compute", "too_few_workers", "too_many_workers", "worker_restart", "slow_iterable",
    "slow_sample", "small_files", "cold_disk", "augmentation", "slow_decode", "huge_collate", "hand_over",
    "evaluation", "logging", "padding", "copies", "unsure",
    "unknown",
)  # fmt: skip


def name_disease(case: Case) -> str:
    """The one word; `healthy` if less than a tenth of a step is to be won."""
    if len(case.record.steps) < MIN_STEPS or case.step_s <= 0:
        return "unknown"
    found = losses(case)
    worst = max(found, key=lambda name: found[name])
    if found[worst] >= MIN_LOSS * case.step_s:
        return name_data_disease(case) if worst == "data" else worst
    if computes_badly(case):
        return "compute"
    return "unsure" if may_be_noise(case) else "healthy"


def may_be_noise(case: Case) -> bool:
    """What was measured allows for a gain, and for none."""
    ceiling = case.record.ceiling
    if ceiling is None or ceiling.low > 1.0:
        return False
    return ceiling.gain > NOTICED or (ceiling.high > WIDE and case.share_of("wait") >= MIN_LOSS)


def losses(case: Case) -> Mapping[str, float]:
    """Seconds of a step that each cause takes and a cure would give back."""
    once, padding = advise_once(case), advise_less_padding(case)
    return {
        "data": case.step_s * (1 - 1 / case.ceiling) if is_the_loaders_fault(case) else 0.0,
        "evaluation": case.seconds["evaluate"],
        "logging": case.seconds["log"],
        "padding": _saved_s(case, padding.predicted_gain if padding else None),
        "compute": _saved_s(case, once.predicted_gain if once else None),
        "copies": case.seconds["copy"] if case.is_on_gpu else 0.0,
    }


def is_the_loaders_fault(case: Case) -> bool:
    """There is something to be won beyond noise, and what the loader does explains it.

    Batches that are made in time and come late nevertheless were kept from their core by other programs.
    """
    ceiling = case.record.ceiling
    if ceiling is not None and ceiling.low <= 1.0 and case.share_of("wait") < LONG_WAIT:
        return False
    best_s = case.compute_s + case.extra_s
    is_late = case.in_time_s * (1 - MIN_LOSS) >= best_s or case.explained_s * (1 - BESIDE) >= best_s
    return is_late or case.loader.num_workers > most_workers(case)


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
    if number > current and current < case.machine.num_cores and won >= 0.4:
        return "too_few_workers"
    return name_making(case)


def name_making(case: Case) -> str:
    """Which part of a batch's making takes longest."""
    # Without workers the way from one was only tried out: no batch of this training goes it.
    if case.loader.num_workers and case.hand_over_s / 2 > case.stages_s:
        if case.loader.num_workers > most_workers(case):
            return "too_many_workers"
        # Both were seen; a step pays for half of the way, the workers' side goes on beside it.
        return "worker_restart" if case.restart_s > case.hand_over_s / 2 else "hand_over"
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
