"""The search: one thing after the other, each by a race; then what was found against what stood before.

What decides how much work a sample is (cache, order, encoding, batch size) comes before who does it (workers,
batches ahead): an encoding that is cheaper to read and dearer to restore wants another number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from flatout.doctor.tune.choose import choose, gain_of, is_better, seems_better
from flatout.doctor.tune.duel import LOOKS, duel, is_likely, is_proven
from flatout.doctor.tune.interval import Interval
from flatout.doctor.tune.model import predict_batch_s
from flatout.doctor.tune.options import RESULTS
from flatout.doctor.tune.race import MOST_ROUNDS, Entry, Failed, Slice, race
from flatout.doctor.tune.setting import AS_IT_IS, Setting
from flatout.doctor.tune.space import Space
from flatout.doctor.tune.stage import Found, Stage
from flatout.errors import FlatoutError

STAGE_SHARE = 0.4
"""Part of the time that is left which one stage may take."""
PROOF_SHARE = 0.2
"""Part of the whole budget that is kept for the last race."""
PROOF = "proof"
LIKELY_ROUNDS = 4
"""Rounds of a race whose likely best is taken: the proof comes later."""
MOST_CLIMBS = 3
"""Races with still more or fewer workers, while the most or the fewest that were tried are the best."""
LEAST_WAIT = 0.02
"""Part of the time that a training must wait before more batches ahead can help."""
MADE_ONCE = ("cache", "encoding")
"""Stages whose settings need something made before their first stretch: a filled cache, a copy of the store."""
READY_SHARE = 0.5
"""Part of the time that is left which that may take, in all."""
RESTART_SHARE = 0.02
"""Part of an epoch that starting workers may take before they are kept."""


class TakesTrials(Protocol):
    """Where a setting is measured."""

    def __call__(self, setting: Setting, *, on_sample: bool) -> Slice | Failed:
        """One slice; `on_sample`: of a small copy of the store, which every encoding has."""


class GetsReady(Protocol):
    """Makes what trials of a setting need."""

    def __call__(self, setting: Setting, *, on_sample: bool) -> None:
        """If it cannot be made, its trial says why."""


def _nothing_to_make(setting: Setting, *, on_sample: bool) -> None:
    """Where trials need no copies and caches."""


class Search:
    """Looks for the best setting within a time.

    Args:
        trial: measures one.
        get_ready: makes what the first trial of one needs, and later ones find made.
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
        get_ready: GetsReady = _nothing_to_make,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._space = space
        self._get_ready = get_ready
        self._measure = trial
        self._num_trials, self._trials_s = 0, 0.0
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
            self._stage("cache", space.cache(self._now))
            self._stage("order", space.order(self._now))
            self._stage("encoding", space.encoding(self._now))
            self._stage("batch_size", space.batch_size(self._now))
            self._stage("num_workers", space.workers(self._now))
            self._climb()
            self._stage("prefetch_factor", self._prefetch(self._now))
            self._prove()
        except KeyboardInterrupt:
            self._take_what_is_known()
            return self._found(is_complete=False)
        return self._found(is_complete=True)

    def _stage(self, name: str, settings: list[Setting]) -> None:
        left_s = self._end_s - self._proof_s - self._clock()
        if len(settings) < 2:
            return
        first_s = len(settings) * self._trials_s / max(1, self._num_trials)
        if left_s <= first_s and self.stages:
            self._skip(name)
            return
        on_sample = name == "encoding" or self._now.encoding != AS_IT_IS
        if name in MADE_ONCE:
            until_s = self._clock() + READY_SHARE * left_s
            settings = self._made_ready(name, settings, until_s, on_sample=on_sample)
            left_s = self._end_s - self._proof_s - self._clock()
        stage = Stage(name)
        self.stages.append(stage)
        race(
            settings,
            partial(self._trial, on_sample=on_sample),
            deadline_s=self._clock() + STAGE_SHARE * left_s,
            end_s=self._clock() + left_s,
            most_rounds=MOST_ROUNDS if name in RESULTS else LIKELY_ROUNDS,
            clock=self._clock,
            entries=stage.entries,
            cpu_budget=self._cpu_budget,
        )
        self._decide(stage)

    def _skip(self, name: str) -> None:
        """Tell that there was no time; further numbers of what was raced already are not worth a word."""
        if all(stage.name != name for stage in self.stages):
            self.skipped[name] = "the time was up"

    def _made_ready(
        self, name: str, settings: list[Setting], until_s: float, *, on_sample: bool
    ) -> list[Setting]:
        """Those whose copies and caches could be made in time, which no stretch has to count, then.

        The first two, which a race has at the least, have whatever time is left.
        """
        longest_s = 0.0
        for number, setting in enumerate(settings):
            started_s = self._clock()
            if number >= 2 and started_s + longest_s > until_s:
                left_out = ", ".join(getattr(each, name) for each in settings[number:])
                self.skipped[name] = f"no time for the copies of {left_out}"
                return settings[:number]
            self._get_ready(setting, on_sample=on_sample)
            longest_s = max(longest_s, self._clock() - started_s)
        return settings

    def _trial(self, setting: Setting, *, on_sample: bool) -> Slice | Failed:
        """One stretch, its seconds counted: a race whose first round would not end in time is not begun."""
        started_s = self._clock()
        found = self._measure(setting, on_sample=on_sample)
        self._num_trials, self._trials_s = self._num_trials + 1, self._trials_s + self._clock() - started_s
        return found

    def _climb(self) -> None:
        """More workers while the most that were tried are the best, and fewer likewise."""
        for _ in range(MOST_CLIMBS):
            stages = (stage for stage in self.stages if stage.name == "num_workers")
            tried = {entry.setting.num_workers for stage in stages for entry in stage.entries}
            further = self._space.further(self._now, tried)
            if len(further) < 2:
                return
            self._stage("num_workers", further)

    def _prefetch(self, now: Setting) -> list[Setting]:
        """Other depths, where they can matter."""
        facts = self._space.facts
        measured = [entry for entry in self._entries() if entry.setting == now and entry.slices]
        if facts.consumer == "nothing" and facts.is_fast and now.prefetch_factor > 1:
            self.skipped["prefetch_factor"] = "who only loads takes batches as they are made, however far ahead"
            return [now]
        if facts.consumer != "nothing" and measured and measured[-1].wait_share < LEAST_WAIT:
            self.skipped["prefetch_factor"] = f"the training waits less than {LEAST_WAIT:.0%} of its time"
            return [now]
        return self._space.prefetch(now)

    def _decide(self, stage: Stage) -> None:
        choice = choose(stage.entries, self._now, self._cpu_budget, _faster_in(stage))
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
        duel(
            self._start,
            self._now,
            partial(self._trial, on_sample=self._now.encoding != AS_IT_IS),
            deadline_s=self._end_s,
            clock=self._clock,
            entries=stage.entries,
        )
        choice = choose(stage.entries, self._start, self._cpu_budget, is_proven)
        if choice is None or any(entry.failure is not None for entry in stage.entries):
            self._now = stage.taken = self._start
            stage.reason = "they could not be measured again, so nothing is changed"
        elif choice.entry.setting == self._start and self._may_be_taken(stage.entries):
            stage.taken, stage.reason = self._now, "likely the fastest, though not beyond noise"
        else:
            self._now = choice.entry.setting
            stage.taken, stage.reason = self._now, choice.reason
        self._say(f"{PROOF}: {stage.reason}")

    def _may_be_taken(self, both: list[Entry]) -> bool:
        """Whether what was found leaves results as they are, is within the budget, and is likely faster."""
        is_neutral = all(getattr(self._now, name) == getattr(self._start, name) for name in RESULTS)
        return is_neutral and both[1].cpu_share <= self._cpu_budget and is_likely(both)

    def _take_what_is_known(self) -> None:
        """The race that was interrupted has its say, too, if it got far enough."""
        stage = self.stages[-1] if self.stages else None
        if stage is not None and stage.taken is None:
            is_early = any(len(entry.slices) < min(LOOKS) for entry in stage.entries)
            if stage.name == PROOF and is_early:  # what the races before it found stands
                return
            base = self._start if stage.name == PROOF else self._now
            choice = choose(stage.entries, base, self._cpu_budget, _faster_in(stage))
            if choice is not None:
                self._now = stage.taken = choice.entry.setting
                stage.reason = f"{choice.reason}, as far as it was measured"

    def _entries(self) -> list[Entry]:
        return [entry for stage in self.stages for entry in stage.entries]

    def _found(self, *, is_complete: bool) -> Found:
        gains = (gain_of(stage.entries, self._now, self._start) for stage in reversed(self.stages))
        gain = next((each for each in gains if each is not None), None)
        if self._now == self._start:
            gain = Interval(1.0, 1.0, 1.0)
        return Found(self._now, self.stages, gain, is_complete, self._keeps_workers(), self.skipped)

    def _keeps_workers(self) -> bool:
        """Whether worker processes should outlive an epoch and do not."""
        facts = self._space.facts
        slices = [each for entry in self._entries() if entry.setting == self._now for each in entry.slices]
        if facts.is_fast or facts.is_persistent or not self._now.num_workers or not slices:
            return False
        first_s = min(each.first_batch_s for each in slices)
        epoch_s = facts.num_samples / slices[-1].samples_per_s
        return first_s > RESTART_SHARE * epoch_s

    def predicted(self, setting: Setting) -> float | None:
        """Samples a second by the model, where it knows."""
        if not self._space.is_modelled(setting):
            return None
        return setting.batch_size / predict_batch_s(self._space.service, setting.num_workers)


def _faster_in(stage: Stage) -> Callable[[Entry, Entry], bool]:
    """How sure one must be there that a setting is faster: what leaves results as they are is proven later."""
    if stage.name == PROOF:
        return is_proven
    return is_better if stage.name in RESULTS else seems_better


def _words(before: Setting, after: Setting) -> str:
    """What changed, as people read it."""
    old, new = before.to_json(), after.to_json()
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in new if old[name] != new[name])
