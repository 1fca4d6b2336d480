"""Durations, shares and places as the doctor's sentences say them."""

from __future__ import annotations

from pathlib import Path


def duration(seconds: float) -> str:
    """Two figures and the unit that suits them: `31 ms`, `2.1 s`, `0.4 ms`; `no time`."""
    if seconds < 0.5e-6:
        return "no time"
    if seconds >= 1:
        return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
    thousandths = seconds * 1e3
    if thousandths >= 10:
        return f"{thousandths:.0f} ms"
    return f"{thousandths:.1f} ms" if thousandths >= 0.1 else f"{thousandths * 1e3:.0f} us"


def share(part: float) -> str:
    """`62 %`."""
    return f"{100 * part:.0f} %"


def times(gain: float) -> str:
    """`1.04x`, `2.6x`, `159x`."""
    return f"{gain:.2f}x" if gain < 2 else f"{gain:.1f}x" if gain < 99.95 else f"{gain:.0f}x"


def place(file: str, line: int) -> str:
    """`train.py:12`."""
    return f"{Path(file).name}:{line}"


def count(number: float, one: str, more: str = "") -> str:
    """`1 file`, `320 files`, `1.5 files`; `more` where an s is not enough."""
    figure = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
    return f"{figure} {one if number == 1 else more or one + 's'}"
