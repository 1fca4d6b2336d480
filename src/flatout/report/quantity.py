"""Numbers as people read them: three digits, and the unit that fits."""

from __future__ import annotations

import sys
from dataclasses import dataclass

ABSENT = "-"
"""Stands where nothing was measured."""


@dataclass(frozen=True)
class Quantity:
    """What is measured: its units, smallest first, each with its size in the unit of the record."""

    units: tuple[tuple[float, str], ...]
    least: float = 0.0
    """What is less and not nothing is told as less than this."""

    def unit_for(self, value: float) -> tuple[float, str]:
        """Size and name of the largest unit that `value` reaches."""
        return next((unit for unit in reversed(self.units) if abs(value) >= unit[0]), self.units[0])

    def text(self, value: float | None) -> str:
        """0.0421 s -> '42.1 ms'; None and NaN -> '-'."""
        if value is None or not is_finite(value):
            return ABSENT
        if 0 < value < self.least:
            return f"under {self.text(self.least)}"
        size, name = self.unit_for(value)
        return f"{number_text(value / size)} {name}".rstrip()


PLAIN = Quantity(((1.0, ""),))
SHARE = Quantity(((0.01, "%"),), least=0.001)
CORES = Quantity(((1.0, "cores"),))
RATE = Quantity(((1.0, "samples/s"),))
TIMES = Quantity(((1.0, "times"),))
SECONDS = Quantity(((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")))
BYTES = Quantity(((1.0, "bytes"), (1024.0, "KiB"), (1024.0**2, "MiB"), (1024.0**3, "GiB"), (1024.0**4, "TiB")))


def is_finite(value: float) -> bool:
    """As `math.isfinite`, which raises on whole numbers that are too large for a float: those are not."""
    return abs(value) <= sys.float_info.max


def number_text(value: float) -> str:
    """1234.5 -> '1,234'; 12.345 -> '12.3'; 0.00001 -> '1e-05'."""
    if not is_finite(value):
        return ABSENT
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
