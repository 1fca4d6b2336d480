"""A progress bar with rate, remaining time and bad count on a terminal; plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flatout.cli.output import error_console, say
from flatout.cli.words import rate_text, seconds_text

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_S = 5.0
"""Seconds between two lines where there is no terminal."""


class ProgressBar:
    """What `flatout.store` tells as it goes, shown on standard error. Use as a context manager."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: Any = None
        self._what, self._total, self._done, self._bad = "", 0, 0, 0
        self._told = 0
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._done != self._told and kind is None:
            self._line()

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._done, self._bad = what, total, 0, 0
        self._told = 0
        self._started = self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._bar.tasks[0].total)  # the stage before is over
            self._bar.stop()
            self._bar = None
        if not total:
            return
        if not error_console().is_terminal:
            # At once: the first rows of a slow format take longer than anybody watches an empty screen.
            error_console().print(f"{what}: 0 of {total:,}", markup=False)
        else:
            self._bar = _bar()
            self._task = self._bar.add_task(what, total=total, bad="")
            self._bar.start()

    def advance(self, rows: int) -> None:
        self._done += rows
        if self._bar is not None:
            self._bar.advance(self._task, rows)
        elif time.monotonic() - self._last_line > LINE_S:
            self._line()

    def bad(self, rows: int) -> None:
        self._bad += rows
        if self._bar is not None and self._bad:
            self._bar.update(self._task, bad=f"[red]{self._bad:,} bad")

    def say(self, text: str) -> None:
        say(text)

    def _line(self) -> None:
        self._last_line, self._told = time.monotonic(), self._done
        rate = self._done / max(self._last_line - self._started, 1e-9)
        left = (
            f", {seconds_text((self._total - self._done) / rate)} left" if 0 < self._done < self._total else ""
        )
        error_console().print(
            f"{self._what}: {self._done:,} of {self._total:,} ({rate_text(rate)}/s{left}), {self._bad:,} bad",
            markup=False,
        )


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class Pace(ProgressColumn):
        """Rate and remaining time while it runs, the time it took when it is done."""

        def render(self, task: Any) -> Text:
            if task.finished:
                return Text(f"in {seconds_text(task.finished_time)}")
            left = "" if task.time_remaining is None else f", {seconds_text(task.time_remaining)} left"
            return Text(f"{rate_text(task.speed)}/s{left}" if task.speed else "")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Pace(),
        TextColumn("{task.fields[bad]}"),
        console=error_console(),
        transient=False,
    )
