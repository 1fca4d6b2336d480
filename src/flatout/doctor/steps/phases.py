"""Phases: nested spans of the training thread in, seconds by phase in any stretch of its time out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from flatout.doctor.record import PHASES
from flatout.doctor.steps.trace import Span, Trace


def flatten(spans: Iterable[Span]) -> list[Span]:
    """Nested spans as stretches one after the other, each of the innermost phase."""
    flat: list[Span] = []
    open_spans: list[Span] = []
    at = float("-inf")

    def emit(until: float, phase: str) -> None:
        nonlocal at
        if until > at:
            flat.append(Span(at, until, phase))
            at = until

    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        while open_spans and open_spans[-1].end <= span.start:
            done = open_spans.pop()
            emit(done.end, done.phase)
        if open_spans:
            emit(span.start, open_spans[-1].phase)
        at = max(at, span.start)
        open_spans.append(span)
    while open_spans:
        done = open_spans.pop()
        emit(done.end, done.phase)
    return flat


def evaluations_of(trace: Trace) -> list[Span]:
    """Each evaluation: from `iter` of a loader that is not trained on to its last batch."""
    found: list[Span] = []
    for number in (each["number"] for each in trace.loaders if not each["is_train"]):
        iters = sorted((start, end) for start, end, same in trace.iters if same == number)
        starts = [start for start, _ in iters]
        ends = [end for _, end in iters]
        for each in trace.nexts:
            if each.number == number and (at := bisect_right(starts, each.start) - 1) >= 0:
                ends[at] = max(ends[at], each.end)
        found += [Span(start, end, "evaluate") for start, end in zip(starts, ends, strict=True)]
    return found


class Phases:
    """Seconds by phase of the training thread, for any stretch of time."""

    def __init__(self, trace: Trace) -> None:
        self.evaluations = _apart(evaluations_of(trace))
        self._evaluated_from = [each.start for each in self.evaluations]
        waits = [Span(each.start, each.end, "wait") for each in trace.nexts]
        waits += [Span(start, end, "wait") for start, end, _ in trace.iters]
        inner = [
            span
            for span in (*trace.spans, *waits)
            if span.phase == "own" or not self.is_evaluated(span.start, span.end)
        ]
        self._flat = flatten([*inner, *self.evaluations])
        self._starts = [span.start for span in self._flat]

    def is_evaluated(self, start: float, end: float) -> bool:
        """Whether a stretch of time lies in an evaluation."""
        at = bisect_right(self._evaluated_from, start) - 1
        return at >= 0 and end <= self.evaluations[at].end

    def seconds(self, start: float, end: float) -> dict[str, float]:
        """Of all phases; the doctor's own time is taken out, what is left over is `other`."""
        found = dict.fromkeys((*PHASES, "own"), 0.0)
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self._flat) and self._flat[at].start < end:
            span = self._flat[at]
            found[span.phase] += max(0.0, min(span.end, end) - max(span.start, start))
            at += 1
        known = sum(found.values())
        found["other"] += max(0.0, end - start - known)
        del found["own"]
        return found


def _apart(spans: Sequence[Span]) -> list[Span]:
    """Evaluations that overlap, of several loaders, as one."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start <= joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end), span.phase)
        else:
            joined.append(span)
    return joined
