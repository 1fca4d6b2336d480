"""Follow: the newest page of a record that still grows; made again only when the record has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic

from flatout.errors import FlatoutError
from flatout.report.html import render_html
from flatout.report.page import Page
from flatout.report.place import Place
from flatout.report.run import RunRecord
from flatout.report.run_page import silent_s
from flatout.report.source import Record, parse_record
from flatout.report.write import page_of

LEAST_PAUSE_S = 1.0
"""Between two looks at a record: several browsers cost no more than one."""
PAUSES_PER_LOOK = 50
"""A look that takes long is made more rarely, so that a training in the same process loses 2 % at most."""


@dataclass(frozen=True)
class Served:
    """What a browser gets."""

    page: bytes
    record: bytes | None
    """The record as it was read; None while there is none."""


class Follower:
    """Reads a record again and again, keeps its newest page; safe to be asked by several threads."""

    def __init__(self, place: Place, clock: Callable[[], float] = monotonic) -> None:
        self.place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._served: Served | None = None
        self._record: Record | None = None
        self._text: bytes | None = None
        self._state: object = None
        """What the page was made of; the same again gives the same page."""
        self._next_look = 0.0
        self._trouble = ""

    def newest(self) -> Served:
        """The page as of now, or of a moment ago."""
        with self._lock:
            if self._served is None or self._clock() >= self._next_look:
                started = self._clock()
                self._served = self._look(self._served)
                took = self._clock() - started
                self._next_look = self._clock() + max(LEAST_PAUSE_S, PAUSES_PER_LOOK * took)
            return self._served

    def trouble(self) -> str:
        """Why there is no record to show; empty: there is one."""
        self.newest()
        with self._lock:
            return self._trouble if self._record is None else ""

    def _look(self, before: Served | None) -> Served:
        self._trouble, stamp = "", self.place.stamp()
        try:
            if stamp is None or not isinstance(self._state, tuple) or self._state[0] != stamp:
                text = self.place.read()
                if text != self._text:
                    self._record, self._text = parse_record(text, self.place.address), text
        except FlatoutError as error:  # a disk that is away for a while, a folder that is not there yet
            self._trouble = str(error)
        state = (None if self._trouble else stamp, self._text, self._trouble, self._lost())
        if before is not None and state == self._state:
            return before
        self._state = state
        return Served(render_html(self._page(), is_live=True).encode("utf-8"), self._text)

    def _page(self) -> Page:
        if self._record is None:
            return waiting_page(self.place.address, self._trouble)
        try:
            page = page_of(self._record)
        except FlatoutError as error:
            return waiting_page(self.place.address, str(error))
        if not self._trouble:
            return page
        return replace(
            page, alarm="\n".join(filter(None, [page.alarm, self._trouble, "This is what it said before."]))
        )

    def _lost(self) -> tuple[bool, int]:
        """Whether a run was killed, and the minutes it has been silent for: news make a new page."""
        run = self._record
        if not isinstance(run, RunRecord):
            return False, 0
        return run.is_killed, int((silent_s(run, datetime.now(UTC)) or 0.0) // 60)


def waiting_page(address: str, trouble: str) -> Page:
    """What is shown while there is no record."""
    return Page(
        title=address,
        state="waiting",
        tone="warn",
        verdict="There is no record to show yet. This page looks again every few seconds.",
        alarm=trouble,
        facts=(),
        sections=(),
    )
