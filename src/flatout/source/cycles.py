"""Where cardiac cycles start and end: from an annotation, else from the autocorrelation of the envelope."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.source.value import is_missing
from flatout.source.waveform import SLACK_S
from flatout.types import Array

Span = tuple[float, float]
"""Start and end of one cycle in seconds."""

S1_STATE = 1
UNKNOWN_STATE = 0

# The values below were chosen, among some 30 combinations, on 550 heart sounds of three cycles each: 536 get a
# period of duration / 3 +- 12 %, 10 another one, 4 none. That is the set they were fitted to; other recordings
# may do worse. Neighbouring choices differ by a few files only. 600 generated signals that had no part in the
# choice (0.5 to 1.2 s, 1 to 8 kHz, noise up to 0.35 of S1) are all within 3 %.
ENVELOPE_RATE_HZ = 200.0
SMOOTHING_S = 0.15
SAME_PEAK = 0.8
"""Multiples of the period correlate nearly as well: the first peak this close to the highest one is taken."""
MIN_CORRELATION = 0.4
"""Short noise can pass by chance: 8 of 300 draws of 2 s and 3 of 300 of 3 s did, none of 5 s or more."""
MAX_LAG_SHARE = 2 / 3
DRIFT = 0.15
"""How far a beat may stand from its expected place, in periods."""
EDGE = 0.1
"""How much of a first or last cycle may lie outside the recording, in periods."""
QUIET_LEVEL = 0.3


def parse_starts(value: Any) -> list[float] | None:
    """Start times in seconds from a manifest cell (a list, or text divided by space, comma or semicolon);
    None when the cell is text that must be a path."""
    if isinstance(value, str):
        try:
            return [float(part) for part in re.split(r"[\s,;]+", value.strip(" \t\r\n,;[]"))]
        except ValueError:
            return None
    try:
        times: Array = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SampleError("transform", f"cycle starts must be numbers, got {value!r}") from error
    return [float(time) for time in times.ravel()]


def is_path(value: Any) -> bool:
    """Whether a cell with a row's cycles names a file: a text, and no start times."""
    return isinstance(value, str) and not is_missing(value) and parse_starts(value) is None


def spans_from_starts(starts: Sequence[float]) -> list[Span]:
    """Each cycle ends where the next one starts; the last start only ends the cycle before it.

    Raises:
        SampleError: fewer than two starts, or they do not increase.
    """
    if len(starts) < 2:
        raise SampleError("transform", f"got {len(starts)} cycle starts, wanted at least 2 (one cycle)")
    spans = list(pairwise(starts))
    for start, end in spans:
        if not 0 <= start < end < float("inf"):
            raise SampleError("transform", f"cycle starts must increase, got {start:g} before {end:g}")
    return spans


def spans_from_states(table: Array) -> list[Span]:
    """Cycles from a (N, 3) table of start, end, state: from one S1 (state 1) to the next.

    A cycle with a part whose state is unknown (0) is left out, as it may hide a beat.

    Raises:
        SampleError: another shape, or no complete cycle.
    """
    if table.ndim != 2 or table.shape[1] != 3:
        raise SampleError("transform", f"cycle annotation has shape {table.shape}, wanted start, end, state")
    states = table[:, 2]
    heads = np.flatnonzero(states == S1_STATE)
    whole = [(a, b) for a, b in pairwise(heads) if not np.any(states[a:b] == UNKNOWN_STATE)]
    if not whole:
        raise SampleError("transform", f"no complete cycle among {len(table)} annotated states")
    return [span for a, b in whole for span in spans_from_starts([float(table[a, 0]), float(table[b, 0])])]


def to_samples(
    spans: Sequence[Span], rate: float, num_samples: int, offset_s: float | None = None
) -> list[tuple[int, int]]:
    """Cycles as ranges of samples of a recording, or of the part of it that starts at `offset_s`.

    Cycles that are not wholly inside such a part are left out.

    Raises:
        SampleError: cycles lie beyond the end of a whole recording (another recording's?), or none is left.
    """
    found = []
    for start_s, end_s in spans:
        start, stop = (round((time_s - (offset_s or 0.0)) * rate) for time_s in (start_s, end_s))
        stop = num_samples if num_samples < stop <= num_samples + SLACK_S * rate else stop
        if stop > num_samples and offset_s is None:
            raise SampleError(
                "transform", f"a cycle ends at {end_s:.3f} s, the signal at {num_samples / rate:.3f} s"
            )
        if 0 <= start < stop <= num_samples:
            found.append((start, stop))
    if not found:
        raise SampleError("transform", f"none of {len(spans)} cycles lies within the signal")
    return found


def find_spans(signal: Array, rate: float, cycle_range_s: tuple[float, float]) -> list[Span]:
    """Cycles of a (C, T) heart sound, each starting where the longest silence ends (before S1).

    Raises:
        SampleError: no period within `cycle_range_s`, or no whole cycle.
    """
    envelope, envelope_rate = make_envelope(signal, rate)
    period = _find_lag(envelope, envelope_rate, cycle_range_s)
    edges = _track_beats(envelope, period) / envelope_rate
    if len(edges) < 2:
        raise SampleError("transform", f"no whole cycle in {signal.shape[1] / rate:.2f} s of signal")
    return spans_from_starts([float(edge) for edge in edges])


def find_period(signal: Array, rate: float, cycle_range_s: tuple[float, float]) -> float:
    """Length in seconds of the cycles of a (C, T) signal.

    Raises:
        SampleError: nothing repeats within `cycle_range_s`.
    """
    envelope, envelope_rate = make_envelope(signal, rate)
    return _find_lag(envelope, envelope_rate, cycle_range_s) / envelope_rate


def make_envelope(signal: Array, rate: float) -> tuple[Array, float]:
    """(C, T) signal -> its smooth loudness (N,) and that one's rate, about 200 Hz."""
    hop = max(1, round(rate / ENVELOPE_RATE_HZ))
    num_bins = signal.shape[1] // hop
    mono = signal.mean(axis=0, dtype=np.float64)
    bins = (mono - mono.mean())[: num_bins * hop].reshape(num_bins, hop)
    loudness = np.sqrt(np.mean(bins * bins, axis=1))
    window = np.hanning(2 * max(1, round(SMOOTHING_S * rate / hop / 2)) + 3)[1:-1]
    if num_bins < len(window):
        raise SampleError("transform", f"{signal.shape[1] / rate:.2f} s are too short to find cycles")
    smooth = np.convolve(loudness, window / window.sum(), mode="same")
    # The root keeps loud murmurs and clicks from outweighing the beats.
    return np.sqrt(smooth), rate / hop


def autocorrelation(envelope: Array) -> Array:
    """(N,) -> (N,): correlation of the overlapping parts at each lag, -1 to 1."""
    centred = envelope - envelope.mean()
    num = len(centred)
    spectrum = np.fft.rfft(centred, 2 * num)
    raw = np.fft.irfft(np.abs(spectrum) ** 2, 2 * num)[:num]
    energy = np.concatenate([[0.0], np.cumsum(centred * centred)])
    lags = np.arange(num)
    overlap = np.sqrt(energy[num - lags] * np.maximum(energy[-1] - energy[lags], 0.0))
    # Silence around a click leaves overlaps without energy, where the quotient means nothing.
    found: Array = np.divide(raw, overlap, out=np.zeros(num), where=overlap > 1e-6 * energy[-1])
    return found


def _find_lag(envelope: Array, rate: float, cycle_range_s: tuple[float, float]) -> float:
    """The period in bins of the envelope, between bins by a parabola through the peak."""
    correlation = autocorrelation(envelope)
    first = max(2, int(cycle_range_s[0] * rate))
    last = min(int(np.ceil(cycle_range_s[1] * rate)), int(len(envelope) * MAX_LAG_SHARE), len(envelope) - 2)
    lags = np.arange(first, last + 1)
    middle, left, right = correlation[lags], correlation[lags - 1], correlation[lags + 1]
    peaks = lags[(middle >= left) & (middle >= right) & (middle >= MIN_CORRELATION)]
    if len(peaks) == 0:
        low, high = cycle_range_s
        raise SampleError(
            "transform",
            f"no cycle of {low:g} to {high:g} s found in {len(envelope) / rate:.2f} s; give cycle_column, "
            "widen cycle_range_s or split by windows",
        )
    lag = int(peaks[np.argmax(correlation[peaks] >= SAME_PEAK * correlation[peaks].max())])
    before, peak, after = correlation[lag - 1 : lag + 2]
    curvature = before - 2 * peak + after
    return float(lag + (0.5 * (before - after) / curvature if curvature < 0 else 0.0))


def _fold(envelope: Array, period: float) -> Array:
    """Mean envelope of one cycle, as long as the period."""
    num_phases = round(period)
    phases = ((np.arange(len(envelope)) % period) * (num_phases / period)).astype(np.intp)
    phases = np.minimum(phases, num_phases - 1)
    sums = np.bincount(phases, weights=envelope, minlength=num_phases)
    return sums / np.maximum(np.bincount(phases, minlength=num_phases), 1)


def _end_of_silence(cycle: Array) -> int:
    """Phase at which the longest quiet part of a (circular) cycle ends."""
    loudest = int(np.argmax(cycle))
    turned = np.roll(cycle, -loudest)
    level = turned.min() + QUIET_LEVEL * (turned.max() - turned.min())
    steps = np.diff(np.concatenate([[0], (turned <= level).astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    longest = int(np.argmax(ends - starts))
    return int((ends[longest] + loudest) % len(cycle))


def _track_beats(envelope: Array, period: float) -> Array:
    """Where cycles start, in bins: the best match of the mean cycle, then one match per period either way."""
    cycle = _fold(envelope, period)
    lead = len(cycle) // 4
    template = np.roll(cycle, lead - _end_of_silence(cycle))
    padded = np.pad(envelope - envelope.mean(), (lead, len(cycle)))
    # match[s]: how well a cycle that starts at bin s fits.
    match = np.correlate(padded, template - template.mean(), mode="valid")
    beats = [float(np.argmax(match))]
    while beats[-1] + period <= len(envelope) + EDGE * period:
        beats.append(_next_beat(match, beats[-1] + period, period, len(envelope)))
    while beats[0] - period >= -EDGE * period:
        beats.insert(0, _next_beat(match, beats[0] - period, period, len(envelope)))
    return np.clip(beats, 0.0, len(envelope))


def _next_beat(match: Array, expected: float, period: float, num_bins: int) -> float:
    """The best match near the expected place; the place itself where little of a cycle is left to match."""
    if expected + period / 4 > num_bins:
        return expected
    low = max(0, round(expected - DRIFT * period))
    high = round(expected + DRIFT * period) + 1
    return float(low + np.argmax(match[low:high]))
