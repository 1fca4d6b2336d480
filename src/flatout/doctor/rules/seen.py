"""Seen: a record by its means: what a step takes by phase, what a batch takes to make, and where it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flatout.doctor.record import DoctorRecord, LoaderFacts
from flatout.doctor.rules.facts import Facts
from flatout.doctor.rules.means import long_run_seconds, outlying_s
from flatout.doctor.rules.words import count
from flatout.lazy import cached_property
from flatout.loader.machine import Machine

EXTRA = ("evaluate", "log")
"""Phases that are neither waiting for data nor training."""
DEFAULTS = ("default_collate", "default_convert")


@dataclass(frozen=True)
class Seen:
    """One record by its means: every time is that of a step or of a batch."""

    record: DoctorRecord
    loader: LoaderFacts
    facts: Facts
    machine: Machine
    """What this training may take; of several ranks on one machine each has its part."""

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """Seconds a step by phase, in the long run: starts of workers that no measured step shows are in it."""
        return long_run_seconds(self.record)

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
        """The training thread's own seconds, by steps with resident batches where there were any.

        Those were run in turns with steps as they are: the ratio holds even where others come and go.
        """
        seen_s = max(0.0, self.step_s - self.seconds["wait"] - self.extra_s)
        if self.record.ceiling is None or self.record.ceiling.gain <= 0:
            return seen_s
        return min(seen_s, max(0.0, self.step_s / self.record.ceiling.gain - self.extra_s))

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
        return self.stages_s - self.io_s if self.loader.num_workers == 0 else self.seen_cpu_s / self.hindrance

    @property
    def slowdown(self) -> float:
        """What a busy process takes from one on another core; 0 where that was not measured."""
        return self.facts.slowdown or 0.0

    @cached_property
    def hindrance(self) -> float:
        """What a worker's core seconds were, against those of a worker with nobody on the other cores."""
        workers = self.loader.num_workers
        if not workers or self.step_s <= 0:
            return 1.0
        makes = min(1.0, self.stages_s / (workers * self.step_s))
        beside = (workers - 1) * makes + 1.0 - self.share_of("wait")
        return 1.0 + self.slowdown * min(beside, self.machine.num_cores - 1)

    @cached_property
    def seen_cpu_s(self) -> float:
        known = self.loader.cpu_seconds
        return self.stages_s if known is None else min(known, self.stages_s)

    @cached_property
    def io_s(self) -> float:
        """Seconds a batch that its maker waits for a disk or a network, not for a core."""
        waited_s = self.stages_s - self.seen_cpu_s
        if self.facts.loader_cpu_wait_s is not None:
            return max(0.0, waited_s - self.facts.loader_cpu_wait_s)
        if self.loader.num_workers + 1 > self.machine.num_cores and self.record.ceiling is not None:
            alone = self.record.ceiling.loader_batch_s
            if alone is not None and alone <= 1.2 * self.seen_cpu_s / self.machine.num_cores:
                return 0.0
        return max(0.0, waited_s)

    @cached_property
    def hand_over_s(self) -> float:
        """Both sides of a batch's way from a worker, as if there were cores for everybody.

        A step takes half of it more where batches come ready from a worker; the other half goes on beside it.
        """
        if self.facts.sent_s is not None:
            return 2 * self.facts.sent_s / (1 + self.slowdown)
        if self.loader.num_workers == 0:
            return self.facts.hand_over_s or 0.0
        seen_s, stacked_s = (self.loader.seconds.get(stage, 0.0) for stage in ("hand_over", "collate"))
        # A worker that holds the interpreter keeps its own sending thread waiting; the copy itself takes about
        # as long as stacking does, which is known where torch's own function stacks.
        most_s = 2 * stacked_s if self.has_default_collate and stacked_s > 0 else seen_s
        return min(seen_s, most_s) * self.undisturbed

    @cached_property
    def has_default_collate(self) -> bool:
        """Torch's own collate function was seen at work."""
        return any(f.name.rpartition(".")[2] in DEFAULTS for f in self.loader.functions)

    @cached_property
    def undisturbed(self) -> float:
        """What seconds of a worker would have been with nobody in its way, of what they were."""
        busy_s, waited_s = self.seen_cpu_s, self.facts.loader_cpu_wait_s or 0.0
        if busy_s <= 0 or not self.loader.num_workers:
            return 1.0
        return busy_s / (busy_s + waited_s) / self.hindrance

    @cached_property
    def restart_s(self) -> float:
        """Seconds a step that workers take to start at the beginning of each epoch."""
        workers, starts = self.loader.num_workers, self.loader.worker_starts
        started_s, length = self.facts.epoch_start_s or 0.0, self.facts.steps_per_epoch
        if not workers or self.loader.persistent_workers:
            return 0.0
        if self.facts.unseen_start_s is not None and length:
            return min(started_s / length, self.seconds["wait"])
        if starts <= workers:
            return 0.0
        waits = [step.seconds.get("wait", 0.0) for step in self.record.steps]
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
    def sample_bytes(self) -> int | None:
        loader = self.loader
        return loader.batch_bytes // loader.batch_size if loader.batch_bytes and loader.batch_size else None

    @cached_property
    def dataset_bytes(self) -> int | None:
        """What all samples take as the training gets them."""
        number = self.loader.num_samples
        return None if self.sample_bytes is None or number is None else self.sample_bytes * number

    @property
    def num_ranks(self) -> int:
        """Processes that train together on this machine, each with loader and workers of its own."""
        return self.facts.num_processes or 1

    @property
    def cores_text(self) -> str:
        """`4 cores`; of several ranks `2 cores for each of 4 ranks`."""
        ranks = f" for each of {self.num_ranks} ranks" if self.num_ranks > 1 else ""
        return f"{count(self.machine.num_cores, 'core')}{ranks}"

    @property
    def is_on_gpu(self) -> bool:
        return self.machine.has_cuda if self.facts.device is None else self.facts.device.startswith("cuda")
