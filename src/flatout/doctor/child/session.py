"""Session: everything that happens at `iter(loader)` and `next(iterator)` in the training thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter, process_time
from typing import Any

import torch
from torch.utils.data import DataLoader

from flatout.doctor.ceiling.batches import num_samples_of
from flatout.doctor.ceiling.plan import Block, is_distributed, unevenness
from flatout.doctor.ceiling.sources import LoaderSource
from flatout.doctor.child.exit import own_rank
from flatout.doctor.child.loaders import SeenLoader, key_of
from flatout.doctor.child.primary import Primary
from flatout.doctor.child.unread import PATIENCE, Unread
from flatout.doctor.child.watch import WATCH, Own
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.patches.files import FILES
from flatout.doctor.patches.frames import users_place
from flatout.doctor.patches.modules import CALLS, COUNTED_STEPS
from flatout.doctor.progress import Progress, write_progress
from flatout.doctor.stopping import EnoughSeen

SHORT_STEPS = 20
"""A script whose second epoch ends after so many steps may end itself next: observation ends there."""
MAX_CAUGHT = 100
"""A script that catches even SystemExit, and asks for a batch again, so often, is ended without asking."""

Plan = Generator[Block, None, None]


class Session:
    """The loaders of this process, the steps of its training, and the plan for them."""

    def __init__(self) -> None:
        self.settings = ObserveSettings()
        self.loaders: dict[tuple[Any, ...], SeenLoader] = {}
        self._primary = Primary()
        self._unread = Unread()
        self._larger: tuple[int, int] | None = None
        """Samples of the loader that is trained on, and of a larger one that waited when it was last asked."""
        self.base: LoaderSource | None = None
        self.num_steps = 0
        self.mean_step_s = 0.0
        self.unevenness = 0.0
        """Of the observed steps."""
        self._step_starts: deque[float] = deque(maxlen=1000)
        self._num_caught = 0
        self.optimiser: Any = None
        self._num_optimised = 0
        """Steps of optimisers, while no loader is known to be trained on."""
        self.evaluate_batches: int | None = None
        """Trials may end evaluations early."""
        self.on_first_step: Callable[[], None] = _nothing
        self.on_later_epoch: Callable[[], None] = _nothing
        self.on_observed: Callable[[], None] = _nothing
        self.make_plan: Callable[[Session], Plan] | None = None
        self._plan: Plan | None = None
        self.block: Block | None = None
        self._block_steps = 0
        self._block_start = (0.0, 0.0)
        self._started_at = perf_counter()
        self._measured_from = (0, 0.0, 0.0)
        """Step, time and own seconds at the end of the warm-up."""
        self.torch_advance: Callable[[Any], Any] = next
        self.torch_iterate: Callable[[Any], Any] = iter

    def begin(
        self, settings: ObserveSettings, advance: Callable[[Any], Any], iterate: Callable[[Any], Any]
    ) -> None:
        """Take torch's own `__next__` and `__iter__`."""
        self.settings, self.torch_advance, self.torch_iterate = settings, advance, iterate

    @property
    def primary(self) -> SeenLoader | None:
        """The loader whose batches count as steps."""
        return self._primary.loader

    # ---- what the patches call

    def iterate(self, loader: DataLoader[Any]) -> Any:
        """`iter(loader)` in the training thread."""
        seen = self._seen(loader)
        seen.begin_epoch()
        if seen.num_epochs > 1:
            self.on_later_epoch()
        if seen is self.primary and self.block is not None:
            return Held(self, seen)
        WATCH.stack.append("wait")
        start = perf_counter()
        try:
            iterator = self.torch_iterate(loader)
        finally:
            WATCH.add(("iter", start, perf_counter(), seen.number))
            WATCH.stack.pop()
        attach(iterator, seen)
        return iterator

    def adopt(self, iterator: Any, loader: DataLoader[Any]) -> SeenLoader:
        """An iterator that was made before anybody knew that this thread trains."""
        seen = self._seen(loader)
        seen.begin_epoch()
        attach(iterator, seen)
        return seen

    def next(self, iterator: Any, seen: SeenLoader) -> Any:
        """`next(iterator)` in the training thread: a step of training, or of an evaluation."""
        if WATCH.was_stopped:
            self._insist()
        seen.count_group()
        for other in self.loaders.values():
            if other is not seen:
                other.drop_group()
        is_step = self._is_step(seen)
        if is_step:
            self._enter_step(iterator)
        elif self._ends_early(seen):
            raise StopIteration
        seen.is_pending = False
        WATCH.stack[:] = ["wait"]  # spans that an exception left open end here
        start, outcome = perf_counter(), 0
        try:
            batch = self.block.source.next() if is_step and self.block else self.torch_advance(iterator)
            outcome = num_samples_of(batch) or 1
            seen.hand_out(batch, torch.is_grad_enabled())
            return batch
        except StopIteration:
            seen.drop_group()
            if is_step and self._may_end(seen):
                return self._go_on(seen)
            raise
        finally:
            WATCH.add(("next", start, perf_counter(), seen.number, outcome))
            WATCH.stack.clear()

    def note_backward(self) -> None:
        """A backward: who gave the last batches is trained on. The first one tells which thread trains."""
        if not WATCH.is_collecting:
            WATCH.collect()
        if not self.loaders:
            WATCH.thread = threading.get_ident()
        for seen in self.loaders.values():
            seen.note_backward()

    def note_optimiser(self, optimiser: Any) -> None:
        """The first one tells device and precision.

        Raises:
            EnoughSeen: the script has trained for as long as was wanted, and not on batches of a loader.
        """
        if self.optimiser is None:
            self.optimiser = optimiser
        if self.primary is None and not self.settings.is_full:
            if WATCH.was_stopped:
                self._insist()
            self._num_optimised += 1
            if self._num_optimised > self.settings.num_steps + self.settings.num_warmup:
                self.stop()

    # ---- steps and blocks

    def _is_step(self, seen: SeenLoader) -> bool:
        if self._primary.is_elected(seen, is_open=self._plan is None):
            self._count_anew()
        return seen is self.primary

    def _count_anew(self) -> None:
        """The batches of another loader are the steps from here on; there is room for their rows."""
        WATCH.collect()
        self._unread.forget()
        self._larger = None
        if self._primary.counts_anew:
            self.num_steps = 0
            self._step_starts.clear()
            CALLS.forget()

    def _enter_step(self, iterator: Any) -> None:
        if self.block is None:
            self._enter_observed(iterator)
        else:
            self._enter_block_step()

    def _enter_observed(self, iterator: Any) -> None:
        self.num_steps += 1
        if self.num_steps == 1:
            self._started_at = perf_counter()
            self.on_first_step()
        now = perf_counter()
        self._step_starts.append(now)
        if self.num_steps <= self.settings.num_warmup:
            self._measured_from = (self.num_steps, now, WATCH.own_s)
            self._step_starts.clear()
        CALLS.end_step()
        CALLS.is_counting = self.num_steps in COUNTED_STEPS
        if WATCH.is_due():
            with Own(WATCH):
                self._describe_loaders()
                WATCH.flush()
                self._write_progress(is_enough=False)
        if self._plan is None and self._has_seen_enough():
            self._begin_plan(iterator)

    def _write_progress(self, *, is_enough: bool) -> None:
        settings, seconds = self.settings, perf_counter() - self._started_at
        wanted = None if settings.is_full else settings.num_steps + settings.num_warmup
        done = max(0, self.num_steps - 1)  # the last one has only begun
        progress = Progress(done, wanted, seconds, settings.time_limit_s, is_enough, own_rank())
        write_progress(WATCH.log.folder, progress)

    def _has_seen_enough(self) -> bool:
        settings = self.settings
        if settings.is_full:
            return False
        if self.num_steps > settings.num_steps + settings.num_warmup and not self._is_warming_up():
            return True
        is_late = perf_counter() - self._started_at > settings.time_limit_s
        return is_late and self.num_steps > 10 and not is_distributed()

    def _may_end(self, seen: SeenLoader) -> bool:
        """An epoch ended; whether the script may be about to end as well, and enough of it was seen."""
        seen.epoch_steps = seen.position
        if self.block is not None or self.settings.is_full:
            return False
        enough = max(SHORT_STEPS, 2 * self.settings.num_steps // 3)
        return seen.num_epochs >= 2 and self.num_steps >= enough and not self._is_warming_up()

    def _is_warming_up(self) -> bool:
        """Whether a larger loader waits to be read: the training may begin with it. Not for ever."""
        settings, seen = self.settings, self.primary
        if seen is None or is_distributed() or settings.is_bare:
            return False
        if self.num_steps > PATIENCE * (settings.num_steps + settings.num_warmup):
            return False
        self._larger = self._larger_unread(seen)
        return self._unread.is_waited_for(seen, self.loaders)

    def _larger_unread(self, seen: SeenLoader) -> tuple[int, int] | None:
        with Own(WATCH):
            return self._unread.larger(seen, self.loaders)

    def _go_on(self, seen: SeenLoader) -> Any:
        self._begin_plan(None)
        batch = self.block.source.next() if self.block else None
        seen.hand_out(batch, torch.is_grad_enabled())
        return batch

    def _begin_plan(self, iterator: Any) -> None:
        seen = self.primary
        if seen is None:
            return
        self._larger = self._larger_unread(seen)
        now = perf_counter()
        WATCH.add(("observed", now, self.num_steps))
        steps, since, own_s = self._measured_from
        self.mean_step_s = max(1e-6, (now - since - WATCH.own_s + own_s) / max(1, self.num_steps - steps))
        self.unevenness = unevenness(self._step_starts)
        with Own(WATCH):
            _safely(self.on_observed)
            self._describe_loaders()
            WATCH.flush()  # a script that is killed while batches are replayed has its steps in the record
            self._write_progress(is_enough=True)
        self.base = LoaderSource("base", lambda: self.torch_iterate(seen.loader), self.torch_advance, iterator)
        if self.make_plan is not None and not WATCH.log.is_lost:  # nobody could read what it measures
            self._plan = self.make_plan(self)
        self._next_block()
        _safely(FILES.begin_late)

    def _enter_block_step(self) -> None:
        block = self.block
        if block is None:
            return
        self._block_steps += 1
        if self._block_steps == block.num_skipped:
            self._block_start = _now()
        elif self._block_steps == block.num_skipped + block.num_steps:
            now, cpu = _now()
            start, cpu_start = self._block_start
            name, number = block.source.name, block.num_steps
            WATCH.add(("block", name, block.round, start, now, number, cpu - cpu_start))
            self._next_block()

    def _next_block(self) -> None:
        with Own(WATCH):
            if WATCH.is_due():
                WATCH.flush()
            self.block = self._planned()
            if self.block is None:
                self.stop()
            self._block_steps = 0
        if self.block is not None and not self.block.num_skipped:
            self._block_start = _now()

    def _planned(self) -> Block | None:
        try:
            return next(self._plan, None) if self._plan is not None else None
        except Exception as error:  # whatever goes wrong in a measurement is not the script's fault
            WATCH.add(("failed", f"{type(error).__name__}: {error}"))
            return None

    def stop(self) -> None:
        """Enough: end the script.

        Raises:
            EnoughSeen: always.
        """
        WATCH.add(("stopped", perf_counter()))
        self.finish()
        WATCH.was_stopped = True
        raise EnoughSeen

    def _insist(self) -> None:
        """The script caught what should have ended it."""
        self._num_caught += 1
        if self._num_caught > MAX_CAUGHT:
            os._exit(0)
        raise EnoughSeen

    def finish(self) -> None:
        """Write down what is only known at the end; twice does no harm."""
        if not WATCH.is_on:
            return
        for part in (self._describe_loaders, self._describe_process, self.on_observed):
            _safely(part)
        WATCH.flush()

    def _describe_process(self) -> None:
        from flatout.doctor.child.facts import gather_facts

        WATCH.add(("facts", gather_facts(self)))

    def _describe_loaders(self) -> None:
        known = self.loaders.values()
        WATCH.add(("loaders", [seen.describe() | {"is_primary": seen is self.primary} for seen in known]))
        WATCH.add(("unread", self._larger))

    def _ends_early(self, seen: SeenLoader) -> bool:
        return self.evaluate_batches is not None and seen.position >= self.evaluate_batches

    def _seen(self, loader: DataLoader[Any]) -> SeenLoader:
        key = key_of(loader)
        if key not in self.loaders:
            if not WATCH.is_collecting:
                WATCH.collect()
            made = SeenLoader(len(self.loaders), loader, *users_place(3))
            before = next((k for k, seen in self.loaders.items() if seen.is_followed_by(made)), None)
            self.loaders[key] = made if before is None else self.loaders.pop(before)
        seen = self.loaders[key]
        seen.loader = loader
        return seen


def _nothing() -> None:
    pass


def _safely(part: Callable[[], None]) -> None:
    try:
        part()
    except Exception as error:  # a record with holes is better than a script that ends with our error
        WATCH.add(("failed", f"{type(error).__name__}: {error}"))


def _now() -> tuple[float, float]:
    """Time, and CPU seconds of everything but the doctor."""
    return perf_counter(), process_time() - WATCH.own_cpu_s


class Held:
    """What the script gets for `iter(loader)` while its batches come from elsewhere."""

    def __init__(self, session: Session, seen: SeenLoader) -> None:
        self._session = session
        self._seen = seen

    def __iter__(self) -> Held:
        return self

    def __next__(self) -> Any:
        return self._session.next(self, self._seen)


def attach(iterator: Any, seen: SeenLoader) -> None:
    """Tell an iterator of torch whose it is, and its workers, or its own fetcher, likewise."""
    is_new = getattr(iterator, "_flatout_seen", None) is None
    iterator._flatout_seen = seen
    if is_new and (workers := getattr(iterator, "_workers", None)):
        WATCH.add(("workers", seen.number, [worker.pid for worker in workers]))
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None and (meter := getattr(fetcher, "_flatout_meter", None)) is not None:
        meter.number = seen.number


SESSION = Session()
