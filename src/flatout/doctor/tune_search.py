"""The search: one thing after the other, each by a race; then what was found against what stood before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from flatout.doctor.tune_choose import choose, gain_of
from flatout.doctor.tune_interval import Interval
from flatout.doctor.tune_model import predict_batch_s
from flatout.doctor.tune_race import LEAST_ROUNDS, Entry, Failed, Slice, race
from flatout.doctor.tune_setting import AS_IT_IS, Setting
from flatout.doctor.tune_space import Space
from flatout.errors import FlatoutError

STAGE_SHARE = 0.4
"""Part of the time that is left which one stage may take."""
PROOF_SHARE = 0.2
"""Part of the whole budget that is kept for the last race."""
PROOF = "proof"
PROOF_ROUNDS = 7
LEAST_WAIT = 0.02
"""Part of the time that a training must wait before more batches ahead can help."""
RESTART_SHARE = 0.02
"""Part of an epoch that starting workers may take before they are kept."""


class TakesTrials(Protocol):
    """Where a setting is measured."""

    def __call__(self, setting: Setting, *, on_sample: bool) -> Slice | Failed:
        """One slice; `on_sample`: of a small copy of the store, which every encoding has."""


@dataclass
class Stage:
    """One race: what was changed, what was measured, what was taken and why."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    taken: Setting | None = None
    reason: str = ""


@dataclass
class Found:
    """What a search has come to."""

    setting: Setting
    stages: list[Stage]
    gain: Interval | None
    """How many times as fast as at the start; None: they were not compared."""
    is_complete: bool
    keeps_workers: bool = False
    """Starting worker processes anew took too much of an epoch."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What was left alone on the way, and why."""


class Search:
    """Looks for the best setting within a time.

    Args:
        trial: measures one.
        budget_s: seconds for all of it.
        say: takes a line on each stage.
    """

    def __init__(
        self,
        space: Space,
        trial: TakesTrials,
        *,
        budget_s: float,
        cpu_budget: float,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._space = space
        self._trial = trial
        self._cpu_budget = cpu_budget
        self._say = say
        self._clock = clock
        self._end_s = clock() + budget_s
        self._proof_s = PROOF_SHARE * budget_s
        self._start = self._now = space.facts.start
        self.stages: list[Stage] = []
        self.skipped: dict[str, str] = {}
        """What was left alone on the way, and why."""

    def run(self) -> Found:
        """Search; after Ctrl-C, the best so far.

        Raises:
            FlatoutError: what stands now cannot be measured.
        """
        space = self._space
        try:
            self._stage("cache", space.cache)
            self._stage("num_workers", space.workers)
            self._stage("prefetch_factor", self._prefetch)
            self._stage("order", space.order)
            self._stage("encoding", space.encoding)
            self._stage("batch_size", space.batch_size)
            self._prove()
        except KeyboardInterrupt:
            self._take_what_is_known()
            return self._found(is_complete=False)
        return self._found(is_complete=True)

    def _stage(self, name: str, candidates: Callable[[Setting], list[Setting]]) -> None:
        settings = candidates(self._now)
        left_s = self._end_s - self._proof_s - self._clock()
        if len(settings) < 2 or (left_s <= 0 and self.stages):
            return
        stage = Stage(name)
        self.stages.append(stage)
        on_sample = name == "encoding" or self._now.encoding != AS_IT_IS
        race(
            settings,
            partial(self._trial, on_sample=on_sample),
            deadline_s=self._clock() + STAGE_SHARE * left_s,
            end_s=self._clock() + left_s,
            clock=self._clock,
            entries=stage.entries,
            cpu_budget=self._cpu_budget,
        )
        self._decide(stage)

    def _prefetch(self, now: Setting) -> list[Setting]:
        """Other depths, where they can matter."""
        facts = self._space.facts
        measured = [e for stage in self.stages for e in stage.entries if e.setting == now and e.slices]
        if facts.consumer == "nothing" and facts.is_fast and now.prefetch_factor > 1:
            self.skipped["prefetch_factor"] = "who only loads takes batches as they are made, however far ahead"
            return [now]
        if facts.consumer != "nothing" and measured and measured[-1].wait_share < LEAST_WAIT:
            self.skipped["prefetch_factor"] = f"the training waits less than {LEAST_WAIT:.0%} of its time"
            return [now]
        return self._space.prefetch(now)

    def _decide(self, stage: Stage) -> None:
        choice = choose(stage.entries, self._now, self._cpu_budget)
        failed = next((e.failure for e in stage.entries if e.setting == self._start and e.failure), None)
        if failed is not None and stage is self.stages[0]:
            raise FlatoutError(f"the settings as they are cannot be measured: {failed}")
        if choice is None:
            return
        before, self._now = self._now, choice.entry.setting
        stage.taken, stage.reason = self._now, choice.reason
        changes = _words(before, self._now) or "as it is"
        self._say(f"{stage.name}: {changes} ({choice.entry.rate:,.0f} samples/s; {choice.reason})")

    def _prove(self) -> None:
        """What was found against what stood before, and back to that if it is not better beyond noise."""
        if self._now == self._start:
            return
        stage = Stage(PROOF)
        self.stages.append(stage)
        race(
            [self._start, self._now],
            partial(self._trial, on_sample=self._now.encoding != AS_IT_IS),
            deadline_s=max(self._end_s, self._clock() + self._proof_s),
            end_s=max(self._end_s, self._clock() + 2 * self._proof_s),
            most_rounds=PROOF_ROUNDS,
            clock=self._clock,
            entries=stage.entries,
            leaves_out=False,
        )
        choice = choose(stage.entries, self._start, self._cpu_budget)
        if choice is None:
            self._now, stage.reason = self._start, "neither could be measured again, so nothing is changed"
        else:
            self._now = choice.entry.setting
            stage.taken, stage.reason = self._now, choice.reason
        self._say(f"{PROOF}: {stage.reason}")

    def _take_what_is_known(self) -> None:
        """The race that was interrupted has its say, too, if it got far enough."""
        stage = self.stages[-1] if self.stages else None
        if stage is not None and stage.taken is None:
            is_early = any(len(entry.slices) < LEAST_ROUNDS for entry in stage.entries)
            if stage.name == PROOF and is_early:  # what the races before it found stands
                return
            base = self._start if stage.name == PROOF else self._now
            choice = choose(stage.entries, base, self._cpu_budget)
            if choice is not None:
                self._now = stage.taken = choice.entry.setting
                stage.reason = f"{choice.reason}, as far as it was measured"

    def _found(self, *, is_complete: bool) -> Found:
        gains = (gain_of(stage.entries, self._now, self._start) for stage in reversed(self.stages))
        gain = next((each for each in gains if each is not None), None)
        if self._now == self._start:
            gain = Interval(1.0, 1.0, 1.0)
        return Found(self._now, self.stages, gain, is_complete, self._keeps_workers(), self.skipped)

    def _keeps_workers(self) -> bool:
        """Whether worker processes should outlive an epoch and do not."""
        facts = self._space.facts
        slices = [s for stage in self.stages for e in stage.entries if e.setting == self._now for s in e.slices]
        if facts.is_fast or facts.is_persistent or not self._now.num_workers or not slices:
            return False
        first_s = min(each.first_batch_s for each in slices)
        epoch_s = facts.num_samples / slices[-1].samples_per_s
        return first_s > RESTART_SHARE * epoch_s

    def predicted(self, setting: Setting) -> float | None:
        """Samples a second by the model, where it knows: it was measured for one batch size, without caches."""
        service = self._space.service
        if setting.batch_size != service.batch_size or setting.cache != "none" or setting.encoding != AS_IT_IS:
            return None
        return setting.batch_size / predict_batch_s(service, setting.num_workers)


def _words(before: Setting, after: Setting) -> str:
    """What changed, as people read it."""
    old, new = before.to_json(), after.to_json()
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in new if old[name] != new[name])
