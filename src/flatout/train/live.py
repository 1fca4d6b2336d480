"""Live: the record of a run while it is under way, so that a dashboard, or whoever logs in, can follow it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from flatout.train.rank_errors import told_errors
from flatout.train.record import RECORD_VERSION, now_text, write_record
from flatout.train.watch import Watch

RUNNING = "running"
EVERY_S = 5.0
EPOCH_S = 1.0
"""The pause before the row of an epoch, which is told on the terminal: a run killed later has it on record."""
PAUSES_PER_WRITE = 200
"""A long record is written more rarely: making its text takes half a percent of the time at most ..."""
LONGEST_PAUSE_S = 60.0
"""... up to this pause, which 70,000 looks would reach."""

_log = logging.getLogger(__name__)


class LiveRecord(Callback):
    """Writes the record, as `running`, every few seconds and after an epoch; what ends the run writes the last.

    The training thread only copies the numbers (0.2 us a step, 0.4 ms a record of 1,000 looks, measured); a
    short thread of its own makes the text (4 ms) and swaps the file. Stands after Watch in the list of
    callbacks, and is entered around the training: when it is left, no thread of it writes any more.

    Args:
        path: the record.
        watch: where the numbers come from.
        about: what else stands in the record, asked once.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        path: Path,
        watch: Watch,
        about: Callable[[Trainer, LightningModule], dict[str, Any]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._path, self._watch, self._ask, self._clock = path, watch, about, clock
        self._about: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._pause_s, self._epoch_pause_s = EVERY_S, EPOCH_S
        self._last_s = self._next_s = float("inf")
        self._is_over = False
        self.has_begun = False
        """Whether the training has: what was resumed is loaded by then."""

    def __enter__(self) -> LiveRecord:
        return self

    def __exit__(self, *_: object) -> None:
        # First of all: a second Ctrl-C may end the wait for the thread, and the last record follows at once.
        self._is_over = True
        self._next_s = float("inf")
        if self._thread is not None and self._thread.ident is not None:  # Ctrl-C may come before its start
            self._thread.join()
            self._thread = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first record, with the tables of the run that goes on."""
        self.has_begun = True
        if trainer.is_global_zero:
            self._about = self._ask(trainer, pl_module)
            self._write(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The next one, if it is time."""
        self._write_if_due(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """A sign of life."""
        self._write_if_due(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch's row; of short epochs with a later batch."""
        self._next_s = min(self._next_s, self._last_s + self._epoch_pause_s)
        self._write_if_due(trainer)

    def _write_if_due(self, trainer: Trainer) -> None:
        if self._clock() >= self._next_s and (self._thread is None or not self._thread.is_alive()):
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        document = {
            **self._about,
            "version": RECORD_VERSION,
            "status": RUNNING,
            "error": None,
            "epochs": list(self._watch.epochs),
            "looks": list(self._watch.looks),
            "speed": self._watch.speed(),
            "global_step": trainer.global_step,
            "written_at": now_text(),
        }
        self._last_s = self._clock()
        self._next_s = self._last_s + self._pause_s
        self._thread = threading.Thread(target=self._save, args=(document,), name="live record", daemon=True)
        self._thread.start()

    def _is_wanted(self) -> bool:
        """Not once the run has ended, or another rank has told what ends it."""
        return not self._is_over and not told_errors(self._path.parent)

    def _save(self, document: dict[str, Any]) -> None:
        started = self._clock()
        try:
            write_record(self._path, document, None, is_wanted=self._is_wanted, suffix=".live.part")
        except OSError as error:  # the training goes on; its last record tells if the disk is still full
            _log.warning("%s cannot be written now: %s", self._path, error.strerror or error)
        took_s = self._clock() - started
        least_s = min(PAUSES_PER_WRITE * took_s, LONGEST_PAUSE_S)
        self._pause_s, self._epoch_pause_s = max(EVERY_S, least_s), max(EPOCH_S, least_s)
