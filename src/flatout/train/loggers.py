"""Loggers as Lightning users expect them, by name; each writes into the run folder."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from flatout.config import Config
from flatout.errors import MissingDependencyError

_MAKERS: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda folder: CSVLogger(folder, name="", version=_unused(folder, "csv")),
    "tensorboard": lambda folder: TensorBoardLogger(folder, name="", version="tensorboard"),
    "wandb": lambda folder: WandbLogger(save_dir=folder, name=folder.name),
}


_LIBRARIES: dict[str, tuple[str, ...]] = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}
"""What a logger needs: any one of these."""


def check_loggers(config: Config) -> None:
    """Before anything is opened or made.

    Raises:
        MissingDependencyError: a logger needs a library that is not installed.
    """
    for name in config.logger:
        libraries = _LIBRARIES.get(name, ())
        if libraries and not any(find_spec(library) for library in libraries):
            raise _missing(name)


def make_loggers(config: Config, folder: Path) -> list[Logger]:
    """The loggers that the config names.

    Raises:
        MissingDependencyError: one needs a library that is not installed.
    """
    return [_make(name, folder) for name in config.logger]


def _make(name: str, folder: Path) -> Logger:
    try:
        return _MAKERS[name](folder)
    except ModuleNotFoundError as error:
        raise _missing(name) from error


def _missing(name: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"logger: {name} needs its library: 'pip install {name}', or take csv, which needs none"
    )


def _unused(folder: Path, name: str) -> str:
    """csv, or csv-2 where a run goes on: a logger deletes what it finds in its folder."""
    names = (name, *(f"{name}-{number}" for number in range(2, 1 << 16)))
    return next(found for found in names if not (folder / found).exists())
