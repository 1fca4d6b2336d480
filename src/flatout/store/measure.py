"""Measure: the values of one field in a few numbers, added up sample by sample and process by process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatout.types import Array, FieldSpec


@dataclass(slots=True)
class Measure:
    """Lowest, highest and sum of all finite values, and how many values are not finite."""

    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    num_values: int = 0
    num_nan: int = 0
    num_infinite: int = 0
    num_samples: int = 0

    def add(self, array: Array, num_samples: int = 1) -> None:
        """Count the values of one sample or several; what is no real number (text, complex) does not count."""
        if array.dtype.kind not in "biuf":
            return
        self.num_samples += num_samples
        is_finite = np.isfinite(array)
        if not is_finite.all():
            num_nan = int(np.isnan(array).sum())
            self.num_nan += num_nan
            self.num_infinite += int(array.size - is_finite.sum()) - num_nan
            array = array[is_finite]
        if array.size:
            self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))
            self.total += float(array.sum(dtype=np.float64))
            self.num_values += array.size

    def join(self, other: Measure) -> None:
        """Count what another has counted."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        for name in ("total", "num_values", "num_nan", "num_infinite", "num_samples"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def summary(self) -> dict[str, Any]:
        """As a field's summary tells it; no range where no value is finite."""
        counts = {
            "num_measured": self.num_samples,
            "num_nan": self.num_nan,
            "num_infinite": self.num_infinite,
        }
        if not self.num_values:
            return counts
        return {"low": self.low, "high": self.high, "mean": self.total / self.num_values, **counts}


def is_measured(spec: FieldSpec) -> bool:
    """Whether a field's values are real numbers that mean something."""
    return spec.kind != "text" and np.dtype(spec.dtype).kind in "biuf"
