"""PosteriorMetricsMonitor: does a variational model still use its latent space; looked at rarely."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from flatout.config.monitor import MonitorSection
from flatout.train.plot import write_bars, write_plot
from flatout.types import Array

MEAN, LOG_VARIANCE = "posterior_mean", "posterior_log_variance"
"""What a module's measures hold, each (B, D), so that they are watched."""
PLOT = "posterior.svg"
UNITS_PLOT = "posterior_units.svg"
ACTIVE_VARIANCE = 0.01
"""Variance over samples above which a unit's mean says something about the sample."""
COLLAPSED_SHARE, PARTIAL_SHARE = 0.1, 0.5
"""Shares of active units below which the posterior counts as collapsed, or partly so."""
LEAST_LOOKS = 5
"""Looks before a verdict: the first weights say nothing."""

Verdict = Literal["too early", "healthy", "partly collapsed", "collapsed"]

_log = logging.getLogger(__name__)
_DEFAULTS = MonitorSection()


@dataclass(frozen=True)
class PosteriorLook:
    """What one look found, averaged over the window."""

    step: int
    kl_total: float
    """Nats from the prior, summed over units."""
    active_units: int
    num_units: int
    mean_variance: float
    """1 is the prior's: nothing was learned about the sample."""
    verdict: Verdict


class _Sums(NamedTuple):
    """One batch, reduced to what a window adds up."""

    num: int
    means: Array
    squares: Array
    kl: Array
    variances: Array


class PosteriorMetricsMonitor(Callback):
    """Watches modules whose training step gives `posterior_mean` and `posterior_log_variance`, each (B, D).

    Every `update_frequency` steps it waits for the device once; between two looks it does nothing. Plots are
    written by a thread of their own.

    Args:
        update_frequency: steps between two looks.
        plot_frequency: steps between two plots.
        window_size: looks that the figures are averaged over.
        verbose: say every look, not the alarms alone.
        folder: where plots go; None: nothing is drawn.
        say: takes the alarms; absent: they are logged as warnings.
    """

    def __init__(
        self,
        update_frequency: int = _DEFAULTS.update_frequency,
        plot_frequency: int = _DEFAULTS.plot_frequency,
        window_size: int = _DEFAULTS.window_size,
        verbose: bool = _DEFAULTS.verbose,
        *,
        folder: Path | None = None,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self.update_frequency, self.plot_frequency, self.verbose = update_frequency, plot_frequency, verbose
        self.looks: list[PosteriorLook] = []
        self.kl_per_unit: list[float] = []
        """Of the newest window."""
        self._window: deque[_Sums] = deque(maxlen=window_size)
        self._num_steps = 0
        self._folder, self._say = folder, say
        self._pool: ThreadPoolExecutor | None = None
        self._drawing: Future[bool] | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look, or draw, if it is time."""
        if not isinstance(outputs, Mapping) or MEAN not in outputs:
            return
        self._num_steps += 1
        if self._num_steps % self.update_frequency == 0:
            look = self.look(trainer.global_step, outputs[MEAN], outputs[LOG_VARIANCE])
            numbers = {"kl_total": look.kl_total, "active_units": look.active_units}
            for logger in trainer.loggers:
                logger.log_metrics({**numbers, "posterior_variance": look.mean_variance}, step=look.step)
        if self._num_steps % self.plot_frequency == 0 and trainer.is_global_zero:
            self.draw()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last plot, waited for."""
        if self.looks and trainer.is_global_zero:
            self._drawing = None  # one that is being written does not have the last looks
            self.draw()
        self._end_drawing()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A run that fails leaves no thread behind, either."""
        self._end_drawing()

    def look(self, step: int, mean: Tensor, log_variance: Tensor) -> PosteriorLook:
        """(B, D) each in; the window's figures with them out."""
        self._window.append(_reduce(mean, log_variance))
        found = self._judge(step)
        before = self.looks[-1].verdict if self.looks else "too early"
        self.looks.append(found)
        if found.verdict != before and found.verdict in ("collapsed", "partly collapsed"):
            self._say(alarm(found))
        elif self.verbose:
            self._say(f"step {step}: {_figures(found)}, {found.verdict}")
        return found

    def draw(self) -> None:
        """Write the plot in the background; one that is still being written is left to finish first."""
        if self._folder is None or (self._drawing is not None and not self._drawing.done()):
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="flatout-plot")
        self._drawing = self._pool.submit(_draw, self._folder, list(self.looks), self.kl_per_unit)

    def _end_drawing(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def report(self) -> dict[str, Any]:
        """For the record of the run: the newest look, and the KL of each unit."""
        if not self.looks:
            return {}
        return {**asdict(self.looks[-1]), "kl_per_unit": self.kl_per_unit, "num_looks": len(self.looks)}

    def state_dict(self) -> dict[str, Any]:
        """The looks so far, the window that the next one joins, and where it is due."""
        return {
            "looks": [asdict(look) for look in self.looks],
            "num_steps": self._num_steps,
            "window": [(sums.num, torch.as_tensor(np.stack(sums[1:]))) for sums in self._window],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there: a verdict that was told is not told again."""
        self.looks = [PosteriorLook(**look) for look in state_dict["looks"]]
        self._num_steps = state_dict["num_steps"]
        # Older checkpoints have no window: theirs begins anew.
        self._window.extend(_Sums(num, *sums.numpy()) for num, sums in state_dict.get("window", ()))
        self.kl_per_unit = _mean_of(self._window, "kl").tolist() if self._window else []

    def _judge(self, step: int) -> PosteriorLook:
        kl = _mean_of(self._window, "kl")
        variances = _mean_of(self._window, "variances")
        self.kl_per_unit = kl.tolist()
        active = int((_variance_over_samples(self._window) > ACTIVE_VARIANCE).sum())
        # Samples that were looked at one by one are compared with each other: a few must be in the window.
        is_early = len(self.looks) + 1 < LEAST_LOOKS or sum(sums.num for sums in self._window) < LEAST_LOOKS
        return PosteriorLook(
            step=step,
            kl_total=float(kl.sum()),
            active_units=active,
            num_units=len(kl),
            mean_variance=float(variances.mean()),
            verdict="too early" if is_early else _verdict(active / len(kl)),
        )


def alarm(look: PosteriorLook) -> str:
    """What is wrong, and what is usually done about it."""
    return (
        f"the posterior has {look.verdict} at step {look.step}: {_figures(look)}. The decoder does without the "
        "latent vector: raise the KL weight more slowly, leave some nats free, or weaken the decoder"
    )


def _figures(look: PosteriorLook) -> str:
    units = f"{look.active_units} of {look.num_units} units active"
    return f"{units}, KL {look.kl_total:.3g} nats, posterior variance {look.mean_variance:.3g}"


def _verdict(share: float) -> Verdict:
    if share < COLLAPSED_SHARE:
        return "collapsed"
    return "partly collapsed" if share < PARTIAL_SHARE else "healthy"


def _mean_of(window: Collection[_Sums], name: str) -> Array:
    """(D,): one of the sums, over all samples of a window."""
    total = np.sum([getattr(sums, name) for sums in window], axis=0)
    return np.asarray(total / sum(sums.num for sums in window))


def _variance_over_samples(window: Collection[_Sums]) -> Array:
    """(D,): how much each unit's mean differs from sample to sample, within the batches of a window.

    Not over the whole window: training moves the means from look to look, also that of a unit that says the
    same of every sample. Only where every batch is a single sample is there nothing else to compare.
    """
    batches = [sums for sums in window if sums.num > 1]
    if not batches:
        num = len(window)
        means = np.sum([sums.means for sums in window], axis=0)
        squares = np.sum([sums.squares for sums in window], axis=0)
        return np.asarray(squares / num - (means / num) ** 2)
    apart = np.sum([sums.squares - sums.means**2 / sums.num for sums in batches], axis=0)
    return np.asarray(apart / sum(sums.num - 1 for sums in batches))


def _reduce(mean: Tensor, log_variance: Tensor) -> _Sums:
    """One wait for the device; the rest is a few numbers."""
    mu = mean.detach().float().cpu().numpy().astype(np.float64)
    log_var = log_variance.detach().float().cpu().numpy().astype(np.float64)
    variance = np.exp(log_var)
    kl = 0.5 * (mu**2 + variance - 1.0 - log_var)
    return _Sums(len(mu), mu.sum(0), (mu**2).sum(0), kl.sum(0), variance.sum(0))


def _draw(folder: Path, looks: list[PosteriorLook], kl_per_unit: list[float]) -> bool:
    """The figures over steps, and beside them the KL of each unit as it is now."""
    series = {
        "KL, nats": [(look.step, look.kl_total) for look in looks],
        "active units": [(look.step, float(look.active_units)) for look in looks],
        "posterior variance": [(look.step, look.mean_variance) for look in looks],
    }
    newest = looks[-1]
    title = f"KL by unit at step {newest.step}, nats: {newest.active_units} of {newest.num_units} active"
    try:
        is_drawn = write_plot(folder / PLOT, "The posterior", series, "step")
        return write_bars(folder / UNITS_PLOT, title, kl_per_unit, "unit") and is_drawn
    except OSError as error:  # the training goes on
        _log.warning("%s cannot be written: %s", error.filename, error.strerror or error)
        return False
