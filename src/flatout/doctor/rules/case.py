"""Case: a record as the rules look at it: what was seen, the work of a step for the model, and gains by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flatout.doctor.predict import PACKED, Work, clipped
from flatout.doctor.record import DoctorRecord, LoaderFacts
from flatout.doctor.rules.facts import read_facts
from flatout.doctor.rules.machine import machine_of, part_of
from flatout.doctor.rules.seen import Seen
from flatout.lazy import cached_property

CROWDED = 0.2
"""Waiting for a core, against running on one, from which the cores are what there is too little of."""
SATURATED = 0.7
"""Part of their time that workers are busy, from which they wait for nobody but the cores."""
SLOW_SAMPLES = 1 / 3
"""Part of all making that the slowest hundredth of the samples takes, from which they are the trouble."""
NO_LOADER = LoaderFacts(
    "train", 0, None, None, False, False, None, False, None, "", None, {}, None, None, None, 0
)


@dataclass(frozen=True)
class Case(Seen):
    """What was seen, and what would follow from changes."""

    @cached_property
    def slow_share(self) -> float:
        """Part of the reading and preparing that the slowest hundredth of the samples takes."""
        slowest = self.loader.slowest or 1.0
        return 0.01 * slowest / (0.01 * slowest + 0.99)

    @cached_property
    def has_slow_samples(self) -> bool:
        """They take a third of the making, and that explains most of the waiting.

        Without the latter any sample of a few microseconds would be slow that had to wait for a core. Where
        makers often wait for one, that is told only by twice the share.
        """
        made_s = self.loader.seconds.get("fetch", 0.0) + self.loader.seconds.get("prepare", 0.0)
        least = SLOW_SAMPLES if (self.facts.loader_cpu_wait_s or 0.0) < self.seen_cpu_s else 2 * SLOW_SAMPLES
        return self.slow_share >= least and self.slow_share * made_s >= 0.5 * self.seconds["wait"]

    @cached_property
    def stall_s(self) -> float:
        """Seconds a step that everybody waits for single slow samples: what the model does not explain."""
        return max(0.0, self.step_s - self._even_work.step_s()) if self.has_slow_samples else 0.0

    @cached_property
    def work(self) -> Work:
        """The step as it is, for the model."""
        return replace(self._even_work, uneven_s=self.restart_s + self.stall_s)

    @cached_property
    def _even_work(self) -> Work:
        return Work(
            compute_s=self.compute_s,
            compute_cpu_s=self.compute_cpu_s,
            make_s=self.make_s,
            make_cpu_s=self.make_cpu_s,
            here_s=self.here_s,
            hand_over_s=self.hand_over_s,
            uneven_s=self.restart_s,
            extra_s=self.extra_s,
            num_workers=self.loader.num_workers,
            num_cores=self.num_cores,
            slowdown=self.slowdown,
        )

    @cached_property
    def here_s(self) -> float:
        """Seconds to make a batch in the training thread itself.

        A worker's seconds do not tell them: torch's own collate function asks for shared memory there, and a
        crowd slows all down. Only slow samples come too seldom for the few batches that were made here.
        """
        items_s, collate_s = self.facts.items_here_s, self.facts.collate_here_s
        if not self.loader.num_workers or items_s is None or collate_s is None:
            return self.make_s
        return self.make_s if self.has_slow_samples else items_s + collate_s

    @property
    def is_crowded(self) -> bool:
        """Others compute on this machine: this training's own thread has to wait for its core."""
        waited_s = self.facts.loader_cpu_wait_s or 0.0
        is_idle = self.compute_cpu_s < (1 - CROWDED) * self.compute_s
        return is_idle or (self.loader.num_workers == 0 and waited_s > CROWDED * self.seen_cpu_s)

    @cached_property
    def num_others(self) -> float:
        """Busy programs beside a training without workers: each process more leaves less of a core for all."""
        busy_s, waited_s = self.seen_cpu_s, self.facts.loader_cpu_wait_s or 0.0
        if self.loader.num_workers or waited_s < CROWDED / 2 * busy_s:
            return 0.0
        return max(0.0, self.machine.num_cores * (busy_s + waited_s) / max(busy_s, 1e-9) - 1)

    @cached_property
    def num_cores(self) -> float:
        """Cores that the training gets: fewer than there are, where others take them."""
        there, waited_s = self.machine.num_cores, self.facts.loader_cpu_wait_s or 0.0
        workers_s = self.loader.num_workers * self.step_s
        # Idle workers leave cores idle: what was used tells nothing of what there was.
        if waited_s < CROWDED * self.seen_cpu_s or self.stages_s < SATURATED * workers_s or not workers_s:
            return there
        alone_s = self.compute_cpu_s + self.make_cpu_s + self.hand_over_s
        used = alone_s * (1 + self.slowdown * (there - 1)) / (PACKED * self.step_s)
        return min(max(1.0, used), there)

    def gain_of(self, **changes: float) -> float:
        """How many times as fast with these parts of the work changed: between 1 and the ceiling.

        The model is compared with itself, because what it does not know is there before and after. That its
        workers had to wait for cores it does know.
        """
        return self._gain(min(self.step_s, self.explained_s), changes)

    @cached_property
    def explained_s(self) -> float:
        """A step by the model, or by what the workers took as they were, core or no core: the longer."""
        return max(self.work.step_s(), self._as_seen_s)

    @cached_property
    def in_time_s(self) -> float:
        """The same, if workers took nothing from the training but the time to wait for them."""
        return max(replace(self.work, slowdown=0.0, hand_over_s=0.0).step_s(), self._as_seen_s)

    @property
    def _as_seen_s(self) -> float:
        workers = self.loader.num_workers
        return self.stages_s / workers + self.extra_s + self.work.uneven_s if workers else 0.0

    def gain_in_model(self, **changes: float) -> float:
        """The same in the model alone: for changes that leave the work as it is and only share it otherwise."""
        return self._gain(min(self.step_s, self.work.step_s()), changes)

    def gain_over_step(self, **changes: float) -> float:
        """The same against the step as it was: for changes that take away what the model does not know."""
        return self._gain(self.step_s, changes)

    def _gain(self, before_s: float, changes: Mapping[str, float]) -> float:
        changed_s = replace(self.work, **changes).step_s()  # type: ignore[arg-type]
        if self.loader.num_workers == 0 and (added := changes.get("num_workers", 0)):
            changed_s *= (self.num_others + 1 + added) / (self.num_others + 1) if self.num_others else 1.0
        return clipped(before_s / changed_s if changed_s > 0 else self.ceiling, self.ceiling)

    def gain_without(self, saved_s: float) -> float:
        """How many times as fast if so many seconds of the training thread's own step were saved."""
        left_s = self.step_s - min(saved_s, 0.98 * self.step_s)
        return max(1.0, self.step_s / left_s) if left_s > 0 else 1.0


def look_at(record: DoctorRecord) -> Case:
    """A record as a case for the rules."""
    train = [each for each in record.loaders if each.name == "train"]
    facts = read_facts(record.facts)
    machine = part_of(machine_of(record.machine), facts.num_processes or 1)
    return Case(record, train[0] if train else NO_LOADER, facts, machine)
