"""Running Lightning: its greetings left out, its exits and errors made ours, with what to do next."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

from lightning.fabric.utilities.exceptions import MisconfigurationException

from flatout.config import Config
from flatout.errors import ConfigError, FlatoutError, TrainError, TrainMemoryError
from flatout.train.memory import is_out_of_memory, memory_advice
from flatout.train.record import CONFIG
from flatout.types import FieldSpec

_NO_NEWS = (
    r".*LeafSpec.*",  # deprecated in torch, used by Lightning
    r"Checkpoint directory .* exists and is not empty",  # a run that goes on
    r"Be aware that when using `ckpt_path`, callbacks",  # it may go on with or without early stopping
)

_OTHER_MODEL = ("Error(s) in loading state_dict", "loaded state dict")
"""How torch begins what it says of weights, and of an optimiser's state, that do not fit."""


@contextmanager
def explained(
    config: Config, precision: str, fields: Mapping[str, FieldSpec], checkpoint: str | None
) -> Iterator[None]:
    """Errors of a run as ours.

    Raises:
        TrainMemoryError: memory ran out.
        TrainError: the checkpoint cannot be used.
        ConfigError: Lightning does not take a setting.
    """
    try:
        with memory_explained(config, precision, fields), _interruptible():
            yield
    except UnpicklingError as error:
        raise TrainError(f"{checkpoint} cannot be used: {error}") from error
    except MisconfigurationException as error:
        raise ConfigError(f"these settings do not go together: {error}") from error
    except Exception as error:
        if checkpoint is not None and str(error).startswith(_OTHER_MODEL):
            raise TrainError(_other_model(checkpoint, str(error))) from error
        raise


@contextmanager
def memory_explained(config: Config, precision: str, fields: Mapping[str, FieldSpec]) -> Iterator[None]:
    """Memory that ran out, as ours; our own errors stay what they are.

    Raises:
        TrainMemoryError: with what helps.
    """
    try:
        yield
    except FlatoutError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise TrainMemoryError(memory_advice(config, precision, fields, error)) from error
        raise


def _other_model(checkpoint: str, told: str) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    settings = Path(checkpoint).parent.parent / CONFIG
    where = f" (--config {settings})" if settings.is_file() else ""
    return (
        f"resume: {checkpoint} is of another model: {lines[min(1, len(lines) - 1)]} Use the settings of its "
        f"run{where}, or start without --resume; 'pretrained' takes what fits of its weights"
    )


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Its greetings (devices found, tips) are no news, nor what it deprecates in torch; its warnings stay."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _NO_NEWS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt: Lightning makes it an exit, and ignores the signal from then on."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_main else None
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)
