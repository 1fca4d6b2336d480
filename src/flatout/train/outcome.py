"""Outcome: what a run leaves when it ends or fails: weights as safetensors, plots, the JSON record."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer

import flatout
from flatout.config import Config
from flatout.config.paths import absolute_paths
from flatout.living import this_process
from flatout.loader.machine import describe_machine
from flatout.processor import cpu_name
from flatout.train.data import RunData
from flatout.train.live import RUNNING
from flatout.train.plot import Points, write_plot
from flatout.train.rank_errors import tell_error, told_errors
from flatout.train.record import (
    CHECKPOINTS,
    LAST,
    RECORD,
    RECORD_VERSION,
    EpochRow,
    Look,
    RunResult,
    now_text,
    write_record,
)
from flatout.train.watch import Watch
from flatout.train.weights import BEST, FINAL, read_weights, save_weights


@dataclass
class Outcome:
    """A run whose steps are done, or that had to stop. Its first process writes; any other, only its error."""

    config: Config
    task: str
    trainer: Trainer
    module: LightningModule
    data: RunData
    watch: Watch
    folder: Path
    notes: list[str]
    resumed_from: str | None
    note: Callable[[Sequence[str]], None]
    """Takes what is decided in the end, for the user and for `notes`."""

    def finish(self) -> RunResult:
        """Save the weights, test the best of them, write everything down."""
        speed = self.watch.speed()
        self.note(no_looks(self.config, self.watch))
        best = self._best_checkpoint()
        last = self.folder / CHECKPOINTS / LAST
        is_kept = self.config.save_top_k != 0
        if is_kept and self.trainer.is_global_zero:  # first of all: the test may still fail
            save_weights(self.module.state_dict(), self.folder / FINAL)
        if best is not None and self.trainer.is_global_zero:
            save_weights(read_weights(best), self.folder / BEST)
        result = RunResult(
            folder=self.folder,
            task=self.task,
            metrics=self._metrics() | self._best_metric() | self._tested(best),
            epochs=self.watch.epochs,
            speed=speed,
            is_fast=self.data.loaders.is_fast,
            weights=self.folder / FINAL if is_kept else None,
            best_weights=self.folder / BEST if best else None,
            best_checkpoint=best,
            last_checkpoint=last if is_kept and last.exists() else None,
            notes=self.notes,
            looks=self.watch.looks,
            rank=self.trainer.global_rank,
        )
        if self.trainer.is_global_zero:
            self._write({**result.to_json(), "status": "finished", "reports": self._reports()})
        return result

    def fail(self, error: BaseException) -> None:
        """Write down how far the run came, and why it stopped; what other ranks have told comes first."""
        text = f"{type(error).__name__}: {error}"
        if not self.trainer.is_global_zero:
            if isinstance(error, Exception):  # not where the first one was stopped, and this one with it
                self._fail_beside(text)
            return
        others = told_errors(self.folder)
        if isinstance(error, KeyboardInterrupt) and not others:
            self._write_end("interrupted", None)
        else:
            self._write_end("failed", "; ".join([*others, f"rank 0: {text}"]) if others else text)

    def _fail_beside(self, text: str) -> None:
        """Of a process that is not the first: the record says it at once, the first may come to no more."""
        rank, path = self.trainer.global_rank, self.folder / RECORD
        with suppress(OSError):  # the error itself is raised all the same
            tell_error(self.folder, rank, text)
            if not path.exists():
                self._write_end("failed", f"rank {rank}: {text}")
                return
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["status"] == RUNNING:  # otherwise the first has ended before
                told = {"status": "failed", "error": f"rank {rank}: {text}", "written_at": now_text()}
                write_record(path, {**document, **told}, suffix=f".rank{rank}.part")

    def _write_end(self, status: str, error: str | None) -> None:
        self._write(
            {
                "version": RECORD_VERSION,
                "status": status,
                "error": error,
                "folder": self.folder,
                "task": self.task,
                "is_fast": self.data.loaders.is_fast,
                "epochs": self.watch.epochs,
                "looks": self.watch.looks,
                "speed": self.watch.speed(),
                "notes": self.notes,
                "reports": self._reports(),
            }
        )

    def _write(self, document: dict[str, Any]) -> None:
        draw(self.folder, self.watch.epochs, self.watch.looks)
        write_record(
            self.folder / RECORD,
            {**document, **about(self.config, self.trainer, self.module, self.resumed_from)},
        )

    def _metrics(self) -> dict[str, float]:
        found = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        epochs = self.watch.epochs
        if epochs and epochs[-1].train_loss is not None:
            found["train_loss"] = epochs[-1].train_loss
        return found

    def _tested(self, best: Path | None) -> dict[str, float]:
        """The test split with the best weights, if the module takes it; the final ones stay loaded."""
        module, trainer = self.module, self.trainer
        has_step = type(module).test_step is not LightningModule.test_step
        if "test" not in self.data.loaders.splits or not has_step:
            return {}
        if trainer.world_size > 1:
            self.note(["the test split is tested by one device only; this run had several"])
            return {}
        final = {name: value.detach().clone() for name, value in module.state_dict().items()}
        if best is not None:  # by hand: Lightning would give the callbacks that checkpoint's states, too
            module.load_state_dict(read_weights(best))
        found = trainer.test(module, datamodule=self.data, verbose=False)
        module.load_state_dict(final)
        return {name: float(value) for row in found for name, value in row.items()}

    def _best_checkpoint(self) -> Path | None:
        keeper: Any = self.trainer.checkpoint_callback
        return Path(keeper.best_model_path) if keeper is not None and keeper.best_model_path else None

    def _best_metric(self) -> dict[str, float]:
        """What the best weights had, which are tested; the rest is of the last validation."""
        keeper: Any = self.trainer.checkpoint_callback
        score = getattr(keeper, "best_model_score", None)
        if score is None or keeper.monitor is None:
            return {}
        return {f"best_{keeper.monitor}": float(score)}

    def _reports(self) -> dict[str, Any]:
        """What callbacks have to report beside the metrics, by their names."""
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        found = {type(c).__name__: c.report() for c in callbacks if hasattr(c, "report")}
        return {name: report for name, report in found.items() if report}


def no_looks(config: Config, watch: Watch) -> list[str]:
    """Why there is nothing to draw over steps, where there is not."""
    every = config.monitor.update_frequency
    if watch.looks or config.disable_metrics_monitoring:
        return []
    return [f"speed.svg is not drawn: the monitor looks every {every} steps (monitor.update_frequency)"]


def draw(folder: Path, epochs: Sequence[EpochRow], looks: Sequence[Look]) -> None:
    """`losses.svg` over epochs and `speed.svg` over steps, as far as there is something to show."""
    losses: dict[str, list[tuple[float, float]]] = {}
    for row in epochs:
        shown = {"train_loss": row.train_loss, **row.metrics}
        for name, value in shown.items():
            if value is not None:
                losses.setdefault(name, []).append((row.epoch + 1, value))
    write_plot(folder / "losses.svg", "Losses and metrics", losses, "epoch")
    waits: dict[str, Points] = {
        "waiting for data, %": [
            (k.step, 100 * k.data_wait_share) for k in looks if k.data_wait_share is not None
        ],
        "busy cores, %": [(look.step, 100 * look.cpu_share) for look in looks],
    }
    write_plot(folder / "speed.svg", "Where the time goes", waits, "step")


def about(
    config: Config, trainer: Trainer, module: LightningModule, resumed_from: str | None
) -> dict[str, Any]:
    """What stands in every record, of a run under way and of one that has ended."""
    return {
        "resumed_from": resumed_from,
        "precision": str(trainer.precision),
        "device": str(module.device),
        "num_devices": trainer.world_size,
        "global_step": trainer.global_step,
        "versions": versions(),
        "machine": machine_facts(),
        "process": this_process(),
        "written_at": now_text(),
        "config": absolute_paths(config.model_dump(mode="json")),  # the same from wherever a run goes on
    }


def machine_facts() -> dict[str, Any]:
    """What the run was made on; not what is free on it at the moment."""
    found = describe_machine()
    gpu = {} if found.gpu is None else {"gpu": found.gpu.name, "gpu_memory_bytes": found.gpu.memory_bytes}
    return {
        "cpu": cpu_name(),
        "num_cores": found.num_cores,
        "memory_bytes": found.memory_bytes,
        "system": platform.platform(),
        **gpu,
    }


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "flatout": flatout.__version__,
        "lightning": lightning.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
