"""Case: a record as the rules look at it: means of a step, the training's loader, the machine, the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flatout.doctor.predict import Work, clipped
from flatout.doctor.record import DoctorRecord, LoaderFacts
from flatout.doctor.rules_facts import Facts, read_facts
from flatout.doctor.rules_machine import machine_of
from flatout.doctor.rules_means import mean_seconds, outlying_s
from flatout.lazy import cached_property
from flatout.loader.machine import Machine

EXTRA = ("evaluate", "log")
"""Phases that are neither waiting for data nor training."""
CROWDED = 0.2
"""Waiting for a core, against running on one, from which the cores are what there is too little of."""
SLOW_SAMPLES = 1 / 3
"""Part of all making that the slowest hundredth of the samples takes, from which they are the trouble."""
NO_LOADER = LoaderFacts(
    "train", 0, None, None, False, False, None, False, None, "", None, {}, None, None, None, 0
)


@dataclass(frozen=True)
class Case:
    """One record, with what follows from it; every time is the mean of a step or of a batch."""

    record: DoctorRecord
    loader: LoaderFacts
    facts: Facts
    machine: Machine

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """Seconds a step by phase."""
        return mean_seconds(self.record.steps)

    @cached_property
    def step_s(self) -> float:
        return sum(self.seconds.values())

    def share_of(self, *phases: str) -> float:
        """Part of a step, 0 to 1."""
        return sum(self.seconds[phase] for phase in phases) / self.step_s if self.step_s > 0 else 0.0

    @cached_property
    def extra_s(self) -> float:
        return sum(self.seconds[phase] for phase in EXTRA)

    @cached_property
    def compute_s(self) -> float:
        """The training thread's own seconds, measured with resident batches where that could be."""
        found = [max(0.0, self.step_s - self.seconds["wait"] - self.extra_s)]
        if self.facts.resident_seconds is not None:
            own = (s for phase, s in self.facts.resident_seconds.items() if phase not in (*EXTRA, "wait"))
            found.append(sum(own))
        if self.record.ceiling is not None and self.record.ceiling.resident_step_s > self.extra_s:
            found.append(self.record.ceiling.resident_step_s - self.extra_s)
        return min(found)

    @cached_property
    def ceiling(self) -> float:
        """The most that any better data path could gain."""
        if self.record.ceiling is not None:
            return max(1.0, self.record.ceiling.gain)
        best_s = self.compute_s + self.extra_s
        return max(1.0, self.step_s / best_s) if best_s > 0 else 1.0

    @cached_property
    def make_s(self) -> float:
        """Seconds to make a batch in one process that nobody disturbs."""
        return self.make_cpu_s + self.io_s

    @cached_property
    def stages_s(self) -> float:
        """Seconds a batch in the process that made it, as they were."""
        seen = sum(s for stage, s in self.loader.seconds.items() if stage != "hand_over")
        if seen > 0:
            return seen
        if self.loader.num_workers == 0:
            return self.seconds["wait"]
        alone = self.record.ceiling.loader_batch_s if self.record.ceiling else None
        return (alone or 0.0) * self.loader.num_workers

    @cached_property
    def make_cpu_s(self) -> float:
        """Core seconds of a batch; without workers as long as they were: only others stood in the way."""
        return self.stages_s - self.io_s if self.loader.num_workers == 0 else self._seen_cpu_s

    @cached_property
    def _seen_cpu_s(self) -> float:
        known = self.loader.cpu_seconds
        return self.stages_s if known is None else min(known, self.stages_s)

    @cached_property
    def io_s(self) -> float:
        """Seconds a batch that its maker waits for a disk or a network, not for a core."""
        waited_s = self.stages_s - self._seen_cpu_s
        if self.facts.loader_cpu_wait_s is not None:
            return max(0.0, waited_s - self.facts.loader_cpu_wait_s)
        if self.loader.num_workers + 1 > self.machine.num_cores and self.record.ceiling is not None:
            alone = self.record.ceiling.loader_batch_s
            if alone is not None and alone <= 1.2 * self._seen_cpu_s / self.machine.num_cores:
                return 0.0
        return max(0.0, waited_s)

    @cached_property
    def hand_over_s(self) -> float:
        """Both sides of a batch's way from a worker, as if there were cores for everybody."""
        if self.loader.num_workers == 0:
            return self.facts.hand_over_s or 0.0
        return self.loader.seconds.get("hand_over", 0.0) * self.undisturbed

    @cached_property
    def undisturbed(self) -> float:
        """What seconds of a worker would have been with a core for everybody, of what they were."""
        busy_s, waited_s = self._seen_cpu_s, self.facts.loader_cpu_wait_s or 0.0
        return busy_s / (busy_s + waited_s) if busy_s > 0 and self.loader.num_workers else 1.0

    @cached_property
    def restart_s(self) -> float:
        """Seconds a step that workers take to start at the beginning of each epoch."""
        workers, starts = self.loader.num_workers, self.loader.worker_starts
        if not workers or self.loader.persistent_workers or starts <= workers:
            return 0.0
        waits = [step.seconds.get("wait", 0.0) for step in self.record.steps]
        started_s, length = self.facts.epoch_start_s or 0.0, self.facts.steps_per_epoch
        if not length:
            return outlying_s(waits, starts // workers)
        # Old workers end before new ones start, which only the step in between shows.
        longest_s = outlying_s(waits, round(len(waits) / length))
        return min(max(started_s / length, longest_s), self.seconds["wait"])

    @cached_property
    def compute_cpu_s(self) -> float:
        if self.facts.compute_cpu_s is not None:
            return min(self.facts.compute_cpu_s, self.compute_s * self.machine.num_cores)
        return self.compute_s * min(self.facts.num_threads or 1, self.machine.num_cores)

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
        least = SLOW_SAMPLES if (self.facts.loader_cpu_wait_s or 0.0) < self._seen_cpu_s else 2 * SLOW_SAMPLES
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
            hand_over_s=self.hand_over_s,
            uneven_s=self.restart_s,
            extra_s=self.extra_s,
            num_workers=self.loader.num_workers,
            num_cores=self.num_cores,
        )

    @property
    def is_crowded(self) -> bool:
        """Others compute on this machine: this training's own thread has to wait for its core."""
        waited_s = self.facts.loader_cpu_wait_s or 0.0
        is_idle = self.compute_cpu_s < (1 - CROWDED) * self.compute_s
        return is_idle or (self.loader.num_workers == 0 and waited_s > CROWDED * self._seen_cpu_s)

    @cached_property
    def num_cores(self) -> float:
        """Cores that the training gets: fewer than there are, where others take them."""
        there, waited_s = self.machine.num_cores, self.facts.loader_cpu_wait_s or 0.0
        if self.loader.num_workers == 0 or waited_s < CROWDED * self._seen_cpu_s or self.step_s <= 0:
            return there
        used = (self.compute_cpu_s + self.make_cpu_s + self.hand_over_s) / self.step_s
        return min(max(1.0, used), there)

    def gain_of(self, **changes: float) -> float:
        """How many times as fast with these parts of the work changed: between 1 and the ceiling.

        The model is compared with itself, because what it does not know is there before and after. That its
        workers had to wait for cores it does know.
        """
        return self._gain(min(self.step_s, max(self.work.step_s(), self._crowded_step_s)), changes)

    @cached_property
    def _crowded_step_s(self) -> float:
        """A step by what the workers took as they were, core or no core."""
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
        return clipped(before_s / changed_s if changed_s > 0 else self.ceiling, self.ceiling)

    def gain_without(self, saved_s: float) -> float:
        """How many times as fast if so many seconds of the training thread's own step were saved."""
        left_s = self.step_s - min(saved_s, 0.98 * self.step_s)
        return max(1.0, self.step_s / left_s) if left_s > 0 else 1.0

    @cached_property
    def sample_bytes(self) -> int | None:
        loader = self.loader
        return loader.batch_bytes // loader.batch_size if loader.batch_bytes and loader.batch_size else None

    @cached_property
    def dataset_bytes(self) -> int | None:
        """What all samples take as the training gets them."""
        number = self.loader.num_samples
        return None if self.sample_bytes is None or number is None else self.sample_bytes * number

    @property
    def is_on_gpu(self) -> bool:
        return self.machine.has_cuda if self.facts.device is None else self.facts.device.startswith("cuda")


def look_at(record: DoctorRecord) -> Case:
    """A record as a case for the rules."""
    train = [each for each in record.loaders if each.name == "train"]
    return Case(record, train[0] if train else NO_LOADER, read_facts(record.facts), machine_of(record.machine))
