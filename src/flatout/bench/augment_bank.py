"""Whether a training notices that the view bank is being refreshed: steps of a simulated accelerator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flatout.bank import ViewBank, ViewRecipe
from flatout.bank.order import ViewOrder
from flatout.bank.refresh import Refresh
from flatout.loader import FastDataLoader, FastDataset
from flatout.store import DataPreprocessor
from flatout.store.metadata import JOURNAL
from flatout.types import Array

NUM_SAMPLES = 256
LENGTH = 4000
BATCH_SIZE = 64
STEP_MS = 10.0
REPEATS = 60
"""How often the filter runs for one view: a refresh then takes longer than a round."""
START_S = 10.0
"""Longest wait for a refresh to begin; on a machine without a free core it may not."""


class Signals:
    """Noise of the length of heart sounds."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"signal": np.random.default_rng(at).standard_normal((1, LENGTH)).astype(np.float32)}


def halved(x: Array) -> Array:
    """A transform that takes no time."""
    return x / 2


def slow_filter(x: Array, rng: np.random.Generator) -> Array:
    """A transform that only a CPU has, and that takes its time."""
    from scipy.signal import butter, filtfilt

    filters = butter(4, [0.02, rng.uniform(0.3, 0.6)], btype="band")
    for _ in range(REPEATS):
        filtered: Array = filtfilt(*filters, x)
    return filtered


def measure_refresh(rounds: int, seconds: float, step_ms: float = STEP_MS) -> dict[str, float]:
    """Mean time of a step without and with a refresh behind it, turn by turn; the ratio is a median."""
    plain: list[float] = []
    behind: list[float] = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "store"
        fields = {"signal": {"kind": "signal"}}
        DataPreprocessor.from_dataset(Signals(), folder, num_workers=0, fields=fields).run()
        order = ViewOrder(FastDataset(folder), "signal", ViewRecipe(slow_filter))
        with ViewBank(folder, transform=halved, background=False, num_workers=0) as bank:
            loader = FastDataLoader(
                folder, BATCH_SIZE, shuffle=True, augment=lambda batch, epoch: bank(batch, 0)
            )
            steps = _steps(loader, step_ms / 1e3)
            _mean_ms(steps, seconds)  # checksums and first looks at the pages
            for number in range(rounds):
                plain.append(_mean_ms(steps, seconds))
                views = Path(scratch) / f"views{number}"
                refresh = Refresh(order.at(number), views)
                _wait_for_work(steps, views)
                behind.append(_mean_ms(steps, seconds))
                refresh.stop()
            loader.close()
    ratios = [after / before for before, after in zip(plain, behind, strict=True)]
    return {
        "accelerator_ms": step_ms,
        "step_ms": median(plain),
        "step_ms_during_refresh": median(behind),
        "ratio": median(ratios),
    }


def _steps(loader: FastDataLoader, seconds: float) -> Iterator[float]:
    """Seconds of each step, for ever: a batch with its views, then the accelerator, which needs no CPU."""
    while True:
        started = time.perf_counter()
        for _ in loader:
            time.sleep(seconds)
            yield time.perf_counter() - started
            started = time.perf_counter()


def _wait_for_work(steps: Iterator[float], views: Path) -> None:
    """Go on with the training until the process behind has its libraries and makes views."""
    end = time.perf_counter() + START_S
    while not (views / JOURNAL).exists() and time.perf_counter() < end:
        next(steps)


def _mean_ms(steps: Iterator[float], seconds: float) -> float:
    end = time.perf_counter() + seconds
    taken = [next(steps)]
    while time.perf_counter() < end:
        taken.append(next(steps))
    return 1e3 * mean(taken)
