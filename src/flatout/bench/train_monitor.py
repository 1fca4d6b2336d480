"""What monitoring costs: CPU time of the monitors' own hooks, step by step; a wall clock could not see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from time import thread_time_ns
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from flatout.train.live import LiveRecord
from flatout.train.nonfinite import StopAtNonfinite
from flatout.train.posterior import PosteriorMetricsMonitor
from flatout.train.retune import Retune
from flatout.train.watch import Watch

MONITORS = (Watch, PosteriorMetricsMonitor, StopAtNonfinite, Retune, LiveRecord)
"""What a training has by default beside what trains, saves and seeds."""
HOOKS = ("on_train_batch_start", "on_train_batch_end")
NUM_WARM = 2
"""First steps, which import and allocate."""


class MonitorClock(Callback):
    """Adds up what the monitors of a Trainer take; stands after them in its list of callbacks.

    Args:
        look_every: steps between two looks, of which the clock keeps apart what they take.
    """

    def __init__(self, look_every: int) -> None:
        self._look_every = look_every
        self._ns = 0
        self._num_steps = 0
        self._plain_ns: list[int] = []
        self._look_ns: list[int] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put a clock around each hook that runs in a step."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, MONITORS):
                for name in HOOKS:
                    setattr(callback, name, self._clocked(getattr(callback, name)))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The step's sum."""
        self._num_steps += 1
        if self._num_steps > NUM_WARM:
            is_look = self._num_steps % self._look_every == 0
            (self._look_ns if is_look else self._plain_ns).append(self._ns)
        self._ns = 0

    def figures(self) -> dict[str, float]:
        """CPU seconds of a step without and with a look, and of all steps together."""
        plain_s = _mean_s(self._plain_ns)
        look_s = _mean_s(self._look_ns) if self._look_ns else plain_s
        return {"plain_s": plain_s, "look_s": look_s, "mean_s": _mean_s([*self._plain_ns, *self._look_ns])}

    def _clocked(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = thread_time_ns()
            try:
                return hook(*arguments, **named)
            finally:
                self._ns += thread_time_ns() - started

        return call


def seconds_per_step(figures: Mapping[str, float], look_every: int) -> float:
    """CPU seconds of a mean step with a look every so many, from the clock's figures."""
    return figures["plain_s"] + (figures["look_s"] - figures["plain_s"]) / look_every


def _mean_s(times_ns: Sequence[int]) -> float:
    return mean(times_ns) / 1e9 if times_ns else 0.0
