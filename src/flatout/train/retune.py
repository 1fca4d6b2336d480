"""Retune: when training begins to wait for data, more is prefetched or more threads work on the same batches.

Each change is judged by the steps after it and taken back where it did not help. What did not help is not tried
again, so that nothing swings to and fro.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Literal, Protocol

from lightning.pytorch import Callback, LightningModule, Trainer

from flatout.loader import FastDataLoader
from flatout.loader.fetch import UNIT_BYTES
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.memory import BatchesAhead
from flatout.loader.platform import AUTO_SHARE, MOST_STANDARD
from flatout.train.drift import MARGIN, Drift, DriftDetector
from flatout.train.loaders import dataset_of
from flatout.train.ordinary import ResumableLoader
from flatout.train.task import Batch
from flatout.train.waits import RunLoader, Waits

MOST_AHEAD = 64
"""Batches ahead of each worker at the most."""
MOST_THREADS = 8
"""Producer threads at the most: more than cores pay where they wait for a disk."""
SETTLE_STEPS = 16
"""Steps after a change that are not judged: batches that were made before it are used up."""
JUDGED_STEPS = 64
"""Long enough for two waits where these are rare."""
LEAST_HELP = 0.25
"""Part of the rise that a change must take away to be kept. The rise is that of the seconds waited, not of
their share: beside a tenant of the disk a wait of 98 % is half as long at 96 %, and the run twice as fast;
and workers that only slow the computing down lower the share, too."""

Kind = Literal["prefetch_factor", "num_workers"]
PLACES: dict[Kind, int] = {"prefetch_factor": 1, "num_workers": 0}
"""What is tried, in this order (batches ahead cost only memory), and its place in a loader's `prefetching`."""


class Adjustable(Protocol):
    """A loader whose prefetching can be changed while it runs."""

    @property
    def prefetching(self) -> tuple[int, int]:
        """Workers, and batches ahead of each."""

    def adjust(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> None:
        """Change it; the batches stay the same."""


@dataclass
class _Trial:
    """A change under judgement."""

    kind: Kind
    before: tuple[int, int]
    drift: Drift
    steps: list[tuple[float, float]]


class Retuner:
    """Answers a drift of the waits. Steps in, what was changed and why out.

    Args:
        is_fast: workers are threads, not processes.
        machine: what it must fit into, looked at before each change.
    """

    def __init__(
        self, loader: Adjustable, *, is_fast: bool, machine: Callable[[], Machine] = describe_machine
    ) -> None:
        self._loader = loader
        self._is_fast = is_fast
        self._machine = machine
        self._detector = DriftDetector()
        self._trial: _Trial | None = None
        self._useless: set[Kind] = set()
        self._is_done = False

    def add(self, wait_s: float, step_s: float, batch_bytes: int) -> str | None:
        """One more step; a sentence if something was changed."""
        if self._trial is not None:
            return self._judge(self._trial, (wait_s, step_s), batch_bytes)
        drift = self._detector.add(wait_s, step_s)
        return None if drift is None else self._answer(drift, batch_bytes)

    def _answer(self, drift: Drift, batch_bytes: int) -> str | None:
        """Change the next thing that may help. That nothing is left is said once."""
        rise = f"the wait for data is {drift.now:.0%} of a step, before the rise {drift.usual:.0%}"
        before = self._loader.prefetching
        for kind, at in PLACES.items():
            wanted = None if kind in self._useless else self._more(kind, before, batch_bytes)
            if wanted is not None:
                self._set(wanted)
                self._trial = _Trial(kind, before, drift, [])
                return f"{rise}: {kind} {before[at]} -> {wanted[at]}"
        self._detector.start_anew()
        was_said, self._is_done = self._is_done, True
        return None if was_said else f"{rise}; nothing more can be changed while it runs: see 'flatout tune'"

    def _judge(self, trial: _Trial, step: tuple[float, float], batch_bytes: int) -> str | None:
        trial.steps.append(step)
        if len(trial.steps) < SETTLE_STEPS + JUDGED_STEPS:
            return None
        before, self._trial = trial.drift, None
        after = Drift.of(before.usual, trial.steps[SETTLE_STEPS:])
        if after.wait_s <= before.wait_s - LEAST_HELP * (before.wait_s - before.usual_wait_s):
            kept = (
                f"the wait for data fell from {before.now:.0%} to {after.now:.0%} of a step, "
                f"to {after.wait_s / before.wait_s:.0%} of its length: {trial.kind} is kept"
            )
            if after.now > before.usual + 2 * MARGIN:  # so much is left that more of it may help
                return self._joined(kept, self._answer(after, batch_bytes))
            self._detector.start_anew()
            return kept
        self._set(trial.before)
        self._useless.add(trial.kind)
        told = f"the wait for data is {after.now:.0%} of a step, after {before.now:.0%}"
        return self._joined(f"{trial.kind} is as it was: {told}", self._answer(after, batch_bytes))

    @staticmethod
    def _joined(done: str, tried: str | None) -> str:
        return done if tried is None else f"{done}. {tried[0].upper()}{tried[1:]}"

    def _set(self, wanted: tuple[int, int]) -> None:
        self._loader.adjust(num_workers=wanted[0], prefetch_factor=wanted[1])

    def _more(self, kind: Kind, now: tuple[int, int], batch_bytes: int) -> tuple[int, int] | None:
        """Twice as many ahead, or a half more workers; None where that is too much."""
        num_workers, depth = now
        machine = self._machine()
        if kind == "prefetch_factor":
            wanted, is_allowed = (num_workers, 2 * depth), 2 * depth <= MOST_AHEAD
        else:
            wanted = (num_workers + max(1, num_workers // 2), depth)
            is_allowed = wanted[0] <= (MOST_THREADS if self._is_fast else min(machine.num_cores, MOST_STANDARD))
        return wanted if is_allowed and self._fits(wanted, machine, batch_bytes) else None

    def _fits(self, wanted: tuple[int, int], machine: Machine, batch_bytes: int) -> bool:
        room = machine.free_bytes
        if not self._is_fast and machine.shared_bytes is not None:
            room = min(room, machine.shared_bytes)
        if self._is_fast:  # small ones are made many at once
            batch_bytes = max(batch_bytes, UNIT_BYTES)
        return BatchesAhead(*wanted, 1, batch_bytes).num_bytes <= room * AUTO_SHARE


class Retune(Callback):
    """Tells a Retuner of each step. Time in validation does not count.

    Args:
        waits: what the train loader counts.
        note: takes what was changed and why.
    """

    def __init__(self, retuner: Retuner, waits: Waits, note: Callable[[str], None]) -> None:
        self._retuner = retuner
        self._waits = waits
        self._note = note
        self._last: tuple[int, int] | None = None
        """Clock and waited time at the end of the last step."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Add the step up, unless a validation came between."""
        last, self._last = self._last, (perf_counter_ns(), self._waits.total_ns)
        if last is not None:
            step_s, wait_s = ((now - then) / 1e9 for now, then in zip(self._last, last, strict=True))
            said = self._retuner.add(wait_s, step_s, _bytes_of(batch))
            if said is not None:
                self._note(f"step {trainer.global_step}: {said}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training stands still."""
        self._last = None


def make_retune(loader: RunLoader, note: Callable[[str], None]) -> Retune | None:
    """The callback for a train loader; None where nothing can be changed without changing batches.

    That is where there are no workers, where worker processes draw what a per-sample transform does, and where
    they are slow to start.
    """
    found = loader.loader
    if not isinstance(found, FastDataLoader | ResumableLoader) or not can_adjust(found):
        return None
    is_fast = isinstance(found, FastDataLoader)
    retuner = Retuner(found, is_fast=is_fast, machine=lambda: describe_machine(look_for_gpu=False))
    return Retune(retuner, loader.waits, note)


def can_adjust(loader: FastDataLoader | ResumableLoader) -> bool:
    """Whether its prefetching can be changed while it runs, with the same batches before and after."""
    if loader.prefetching[0] == 0 or isinstance(loader, FastDataLoader):
        return loader.prefetching[0] > 0
    start: Any = loader.loader.multiprocessing_context
    return dataset_of(loader.loader).transform is None and start.get_start_method() == "fork"


def _bytes_of(batch: Mapping[str, Any]) -> int:
    return sum(int(getattr(value, "nbytes", 0)) for value in batch.values())
