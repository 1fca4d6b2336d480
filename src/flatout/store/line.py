"""Line: tasks to one worker, receipts back; a row that kills or hangs the worker is found and barred.

When a worker dies, the row it was at is tried alone in a fresh process. If that dies too the row is
barred, and the shard is made again without it: one bad file never costs more than its own sample. A death
that was nobody's fault (a worker killed from outside) costs only the time to make the shard again.

While shards go to disk their worker makes the next one: to wait for fsync took 5 to 15 % of the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flatout.errors import PrepareError
from flatout.store.process import WorkerDiedError, WorkerProcess
from flatout.store.receipt import BadRow, Receipt
from flatout.store.task import Task, TaskSetup
from flatout.types import Row, RowBlock

IN_FLIGHT = 4
"""Requests a worker holds at once, so that it never waits for the next."""
REQUEST_S = 0.5
MOST_REQUESTS = 128
"""Quick rows travel together: what takes this long, at most so many requests.

A message costs 0.15 ms, and more by what the parent takes from the caches of whoever decodes on that core:
107,500 sounds took 174 us of a core each with requests of 0.04 s, 165 with 0.2 s; from there to these it is 4 %
(medians of four and three interleaved runs, sounds and volumes)."""
MAX_DEATHS = 3
"""Workers that one row may cost although it does no harm alone, and a shard without any row's fault."""


@dataclass
class Line:
    """One worker at a time, replaced when it dies. All calls come from one thread."""

    worker: WorkerProcess
    setup: TaskSetup
    request_rows: int
    hire: Callable[[WorkerProcess], WorkerProcess]
    """Puts another worker in a dead one's place."""
    on_rows: Callable[[int], None]
    on_receipt: Callable[[Receipt], None]
    _num_together: int = 0
    """Rows in one request, by the time that those before took."""
    _told: int = 0
    """Rows of the task under way that `on_rows` knows of."""
    _behind: dict[int, Task] = field(default_factory=dict)
    """Tasks whose shard is written, and of which the receipt has not come yet: it may not be on disk."""

    def make(self, task: Task) -> None:
        """Make one shard; its receipt may come later."""
        try:
            self._attempt(task, {})
        except WorkerDiedError as death:
            self.worker = self.hire(self.worker)
            self._make_again()
            self._insist(task, death)

    def settle(self) -> None:
        """Wait until every shard is on disk and every receipt has come."""
        try:
            while self._behind:  # one that failed is told after those that did not
                self._report(self.worker.ask("settle"))
        except WorkerDiedError:
            self.worker = self.hire(self.worker)
            self._make_again()

    def _make_again(self) -> None:
        """The shards that a dead worker wrote, and of which nobody knows whether they last."""
        for task in list(self._behind.values()):
            self.on_rows(-task.num_rows)
            self._insist(task)

    def _insist(self, task: Task, death: WorkerDiedError | None = None) -> None:
        """Make one shard, however often it takes, and wait until it is on disk."""
        barred: dict[str, BadRow] = {}
        deaths: Counter[int] = Counter()
        while True:
            if death is not None:
                deaths[death.position] += 1
                self._look_into(task, death, deaths[death.position], barred)
            try:
                self._attempt(task, barred, careful=bool(deaths))
                while task.number in self._behind:
                    self._report(self.worker.ask("settle"))
                return
            except WorkerDiedError as another:
                death = another
                self.worker = self.hire(self.worker)

    def _attempt(self, task: Task, barred: dict[str, BadRow], *, careful: bool = False) -> None:
        """Careful: row by row, so that a worker's death after a row (its pipe closed) is that row's."""
        if self.worker.setup is not self.setup:
            self.worker.ask("setup", self.setup)
            self.worker.setup = self.setup
        self.worker.ask("start", task.number, barred)
        self._num_together = self._num_together or self.request_rows
        most = 1 if careful else IN_FLIGHT
        made = in_flight = 0
        self._told = 0
        started = time.monotonic()
        try:
            for block in _requests(task, lambda: 1 if careful else self._num_together):
                self.worker.post("rows", block)
                in_flight += 1
                if in_flight == most:
                    made, in_flight = self._answer(made, started), in_flight - 1
            for _ in range(in_flight):
                made = self._answer(made, started)
            self._tell(made)
            careful = False  # what follows is no row's fault
            self._report(self.worker.ask("finish"))
        except WorkerDiedError as death:
            self._tell(0)
            if careful and death.position < 0:
                death.position = made
            raise
        self._behind[task.number] = task

    def _settle_pace(self, rows_per_s: float) -> None:
        least, most = self.request_rows, self.request_rows * MOST_REQUESTS
        self._num_together = max(least, min(most, int(rows_per_s * REQUEST_S)))

    def _answer(self, made: int, started: float) -> int:
        """Rows made when the oldest request is done, `made` before it; later requests follow their pace."""
        count, receipts = self.worker.wait(lambda position: self._tell(max(position, self._told)))
        made += int(count)
        self._tell(max(made, self._told))
        self._settle_pace(made / max(time.monotonic() - started, 1e-6))
        self._report(receipts)
        return made

    def _tell(self, num_made: int) -> None:
        """So many rows of the task are made; told while a request is under way: slow rows take minutes."""
        num_new, self._told = num_made - self._told, num_made
        if num_new:
            self.on_rows(num_new)

    def _report(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            self._behind.pop(receipt.task)
            self.on_receipt(receipt)

    def _look_into(
        self, task: Task, death: WorkerDiedError, num_deaths: int, barred: dict[str, BadRow]
    ) -> None:
        """Bar the row that a worker died of; give up where it was none and happens again and again."""
        if death.position >= 0:
            (row,) = task.rows(death.position, death.position + 1).rows()
            if (reason := self._blame(row, death, num_deaths)) is not None:
                barred[row.key] = BadRow.of(self.setup.maker, row, "worker", reason)
        elif num_deaths == MAX_DEATHS:
            raise PrepareError(
                f"shard {task.number}: {MAX_DEATHS} workers died between its rows; {death.reason}"
            ) from death

    def _blame(self, row: Row, death: WorkerDiedError, num_deaths: int) -> str | None:
        """Why the row is barred: it was too slow, kills a worker alone, too, or has cost too many; or None."""
        if death.is_timeout:
            return death.reason
        if num_deaths == MAX_DEATHS:
            return f"{death.reason}; only after other rows of its shard, not alone"
        try:
            self.worker.ask("describe", self.setup.maker, [row])
            return None
        except WorkerDiedError as alone:
            self.worker = self.hire(self.worker)
            return alone.reason


def _requests(task: Task, num_together: Callable[[], int]) -> Iterator[RowBlock]:
    """The task's rows, as many at a time as are wanted just then."""
    first = 0
    while first < task.num_rows:
        block = task.rows(first, min(first + num_together(), task.num_rows))
        first += len(block)
        yield block
