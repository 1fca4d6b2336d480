"""Logging, printing, trackers and checkpoints: what a loop writes, as spans with the user's file and line."""

from __future__ import annotations

import builtins
import functools
import logging
import os
from collections.abc import Iterable
from time import perf_counter
from types import ModuleType
from typing import Any

import torch

from flatout.doctor.child.imports import run_after_import
from flatout.doctor.child.watch import WATCH
from flatout.doctor.patches.files import FILES
from flatout.doctor.patches.frames import users_place

TRACKERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "torch.utils.tensorboard.writer": ("SummaryWriter", ("add_", "flush")),
    "tensorboardX.writer": ("SummaryWriter", ("add_", "flush")),
    "lightning.pytorch.loggers.csv_logs": ("CSVLogger", ("log_metrics", "save")),
    "lightning.fabric.loggers.csv_logs": ("CSVLogger", ("log_metrics", "save")),
    "lightning.fabric.loggers.tensorboard": ("TensorBoardLogger", ("log_metrics", "save")),
    "pytorch_lightning.loggers.csv_logs": ("CSVLogger", ("log_metrics", "save")),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "mlflow.tracking.client": ("MlflowClient", ("log_",)),
    "matplotlib.figure": ("Figure", ("savefig",)),
}
"""Classes whose methods with these beginnings write somewhere."""


def patch_logging() -> None:
    """What is imported already now, trackers as soon as the script imports them."""
    builtins.print = _logged("print", builtins.print)
    logging.Handler.handle = _logged("logging", logging.Handler.handle)  # type: ignore[method-assign]
    os.fsync = _logged("os.fsync", os.fsync)
    torch.save = _logged("torch.save", _noting_path(torch.save))
    run_after_import(dict.fromkeys(TRACKERS, _patch_tracker))


def _noting_path(original: Any) -> Any:
    """Torch writes files from C++, which no audit hook sees."""

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, str | os.PathLike):
            FILES.note_saved(os.fspath(f))
        return original(obj, f, *args, **kwargs)

    return save


def _patch_tracker(module: ModuleType) -> None:
    name, beginnings = TRACKERS[module.__name__]
    kind = getattr(module, name, None)
    for method in _methods(kind, beginnings):
        setattr(kind, method, _logged(f"{name}.{method}", getattr(kind, method)))


def _methods(kind: Any, beginnings: tuple[str, ...]) -> Iterable[str]:
    return (
        [name for name, value in vars(kind).items() if name.startswith(beginnings) and callable(value)]
        if kind
        else []
    )


def _logged(word: str, original: Any) -> Any:
    """One row for the outermost call; a fsync of a logger is the logger's."""
    watch, stack = WATCH, WATCH.stack

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not watch.is_here() or (stack and stack[-1] in ("log", "wait")):
            return original(*args, **kwargs)
        stack.append("log")
        start = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            watch.add(("log", start, perf_counter(), *users_place(), word))
            if stack:
                stack.pop()

    return call
