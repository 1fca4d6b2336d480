"""Thin: as many points as a screen can show, with every peak kept; or means over stretches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import TypeVar

Points = Sequence[tuple[float, float]]
Item = TypeVar("Item")

MAX_POINTS = 240
"""Of a line: two for each of 120 stretches, on a chart 340 units wide."""
LARGEST = 1e150
BLOCKS = "▁▂▃▄▅▆▇█"


def finite(points: Points) -> list[tuple[float, float]]:
    """Those that can be drawn, from left to right."""
    drawn = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if any(not -LARGEST < value < LARGEST for point in (drawn and _corners(drawn)) for value in point):
        drawn = [(bounded(x), bounded(y)) for x, y in drawn]
    return sorted(drawn)


def _corners(points: Points) -> Points:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return [(min(xs), min(ys)), (max(xs), max(ys))]


def bounded(value: float) -> float:
    """The value, or the nearest whose sums and ratios are still numbers."""
    return min(max(value, -LARGEST), LARGEST) if abs(value) > 1 / LARGEST else 0.0


def thin(points: Points, max_points: int = MAX_POINTS) -> list[tuple[float, float]]:
    """The lowest and the highest point of each stretch, in order; few points stay as they are."""
    if len(points) <= max_points:
        return list(points)
    kept: list[tuple[float, float]] = []
    for stretch in stretches(points, max_points // 2):
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept.extend(sorted(ends))
    return kept


def stretches(items: Sequence[Item], num_stretches: int) -> Iterator[Sequence[Item]]:
    """The items in order, in at most so many groups of nearly equal size, none empty."""
    for first, end in pairwise(bounds(len(items), num_stretches)):
        yield items[first:end]


def bounds(num_items: int, num_stretches: int) -> list[int]:
    """Where those groups begin, and where the last one ends."""
    num = min(num_stretches, num_items)
    return [at * num_items // num for at in range(num + 1)] if num else []


def spark(values: Sequence[float], width: int = 24) -> str:
    """A line of blocks, for where no picture can be: each is the median of its stretch."""
    if not values:
        return ""
    medians = [median(stretch) for stretch in stretches(values, width)]
    low, span = min(medians), max(medians) - min(medians)
    heights = [round((value - low) / span * (len(BLOCKS) - 1)) if span > 0 else 0 for value in medians]
    return "".join(BLOCKS[height] for height in heights)
