"""diagnose: a record of what was seen in, the same with verdict and remedies out. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatout.doctor.record import DoctorRecord, Remedy
from flatout.doctor.rules.case import Case, look_at
from flatout.doctor.rules.compute import COMPUTE_RULES
from flatout.doctor.rules.data import DATA_RULES
from flatout.doctor.rules.loop import LOOP_RULES
from flatout.doctor.rules.warnings import WARNINGS
from flatout.doctor.rules.workers import WORKER_RULES, why_no_more
from flatout.doctor.verdict import give_verdict

MIN_GAIN = 1.05
"""A remedy that is predicted to give less is not worth a line."""
CERTAINTY = {
    "workers": 1.0,
    "persistent": 1.0,
    "evaluate_less": 1.0,
    "log_less": 1.0,
    "forward_once": 1.0,
    "cache": 0.8,
    "collate": 0.9,
    "padding": 0.9,
    "shard": 0.8,
    "preload": 1.0,
    "batch_augment": 0.8,
    "prefetch": 0.7,
}
"""How far a prediction is trusted when remedies are put in order; 0.6 for the others."""


CURE = {
    "too_few_workers": ("workers",),
    "too_many_workers": ("workers",),
    "worker_restart": ("persistent",),
    "slow_iterable": ("workers",),
    "slow_sample": ("cache", "preload"),
    "small_files": ("cache", "preload"),
    "cold_disk": ("cache", "preload"),
    "slow_decode": ("cache", "preload"),
    "augmentation": ("batch_augment",),
    "huge_collate": ("collate",),
    "hand_over": ("workers",),
    "evaluation": ("evaluate_less",),
    "logging": ("log_less",),
    "padding": ("padding",),
    "copies": ("pin_memory",),
}
"""The remedies that take away what the verdict names: one of them stands first, if it is not left behind."""
MADE_SLOWLY = ("slow_decode", "small_files", "cold_disk", "augmentation", "huge_collate")
"""Where more workers are what everybody asks for first."""
LEFT_BEHIND = 1.5
"""A cure does not stand before a remedy of which so many times as much is expected. Each prediction is right
to a quarter, so that two of them which are closer than that are as good as each other."""


def diagnose(record: DoctorRecord) -> DoctorRecord:
    """The record with verdict, remedies (the most promising first) and warnings filled in; pure."""
    case = look_at(record)
    verdict = give_verdict(case)
    is_ill = verdict.disease not in ("healthy", "unsure", "unknown")
    remedies = tuple(_remedies(case, verdict.disease)) if is_ill else ()
    warnings = [text for rule in WARNINGS for text in rule(case) if text not in record.warnings]
    if verdict.disease in MADE_SLOWLY and (why := why_no_more(case)):
        warnings.append(why)
    return replace(record, verdict=verdict, remedies=remedies, warnings=(*record.warnings, *warnings))


def order_of(remedy: Remedy) -> float:
    """What is to be expected of a remedy: its predicted gain, as far as the prediction is to be trusted."""
    if remedy.predicted_gain is None:
        return 1.0
    return 1.0 + (remedy.predicted_gain - 1.0) * CERTAINTY.get(remedy.name, 0.6)


def _remedies(case: Case, disease: str) -> list[Remedy]:
    """The cure of what is named, unless another leaves it behind; then by what is to be expected of them.

    Those whose gain nobody can tell are given only where it is the computation that rules.
    """
    found = [remedy for remedy in _all(case) if (remedy.predicted_gain or MIN_GAIN) >= MIN_GAIN]
    if disease != "compute":
        found = [remedy for remedy in found if remedy.predicted_gain is not None]
    enough = max(map(order_of, found), default=1.0) / LEFT_BEHIND
    cures = [each.name for each in found if each.name in CURE.get(disease, ()) and order_of(each) >= enough]
    return sorted(found, key=lambda remedy: (remedy.name in cures, order_of(remedy)), reverse=True)


def _all(case: Case) -> Iterator[Remedy]:
    for rule in (*WORKER_RULES, *DATA_RULES, *LOOP_RULES, *COMPUTE_RULES):
        if (remedy := rule(case)) is not None:
            yield remedy
