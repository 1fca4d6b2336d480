"""create_dataloaders: a config in, the loaders of train, val and test out; fast where there is a store."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flatout.config import Config, list_tasks, load_config
from flatout.errors import ConfigError, LoaderError, StoreMissingError
from flatout.loader.advised import Command
from flatout.loader.advised import Source as Source
from flatout.loader.advised import prepare_command as prepare_command
from flatout.loader.build import Builder, FastBuilder, Loader, StandardBuilder
from flatout.loader.fresh import compare_with_config
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.notes import Change
from flatout.loader.raw import RawSource
from flatout.loader.transfer import Augment
from flatout.store import StoreReader, is_store

_log = logging.getLogger(__name__)


class Loaders(NamedTuple):
    """One loader a split; None where the split has no samples."""

    train: Loader | None
    val: Loader | None
    test: Loader | None


def create_dataloaders(
    source: Source, *, machine: Machine | None = None, augment: Augment | None = None
) -> Loaders:
    """The loaders of a config.

    `use_fast_loader: auto` reads the store at `preprocessed_data_dir` if there is one, otherwise the raw files
    through an ordinary DataLoader; true and false insist. Both give the same batches in the same order.

    Args:
        machine: what the decisions rest on; this one by default.
        augment: called with each batch of the training split and its epoch, on the device; only over a store.

    Raises:
        StoreMissingError: `use_fast_loader` is true and there is no store.
        LoaderError: the store was made with other settings, or batches or preloads do not fit into memory.
        ConfigError, ManifestError: the settings or the manifest cannot be used; no split has samples.

    Example:
        >>> train, val, test = create_dataloaders("config.yaml")                    # doctest: +SKIP
        >>> for batch in train: step(batch["image"], batch["label"])                # doctest: +SKIP
    """
    config = load_config(source)
    builder = choose_builder(config, machine or describe_machine(), partial(prepare_command, source, config))
    builder.augment = augment
    return build_all(builder)


def create_task_dataloaders(
    source: Source,
    task: str | None = None,
    *,
    machine: Machine | None = None,
    augment: Augment | None = None,
) -> Loaders:
    """The loaders of a config with a task's own defaults (batch size, caching, sequence length) in place.

    Args:
        task: one of `flatout.config.list_tasks()`; absent: the config's own.

    Raises:
        ConfigError: there is no task. Otherwise as `create_dataloaders`.
    """
    config = load_config(source, overrides={"task": task})
    if config.task is None:
        raise ConfigError(f"no task: set 'task' in the config or name one of: {', '.join(list_tasks())}")
    builder = choose_builder(config, machine or describe_machine(), partial(prepare_command, source, config))
    builder.augment = augment
    return build_all(builder)


def choose_builder(config: Config, machine: Machine, command: Command) -> Builder:
    """What makes the loaders: over the store, or over the raw files.

    Args:
        command: how the store is prepared, for messages.
    """
    folder = None if config.preprocessed_data_dir is None else Path(config.preprocessed_data_dir)
    has_store = folder is not None and is_store(folder)
    if config.use_fast_loader is True and not has_store:
        raise _no_store(folder, command)
    if folder is None or not has_store or config.use_fast_loader is False:
        builder = StandardBuilder(config, RawSource(config), machine)
        if not has_store and config.use_fast_loader == "auto":
            builder.notes.append(f"no store yet: raw files are decoded in every epoch; '{command()}' makes one")
        return builder
    store = StoreReader(folder)
    doubts = refuse_stale(store, config, command)
    fast = FastBuilder(config, store, machine)
    fast.notes += doubts
    return fast


def build_all(builder: Builder) -> Loaders:
    """The loader of each usual split; what was decided goes to the log, once, changes as warnings."""
    loaders = Loaders(*(builder.build(split) for split in Loaders._fields))
    for note in dict.fromkeys(builder.notes):
        _log.log(logging.WARNING if isinstance(note, Change) else logging.INFO, "%s", note)
    if not any(loader is not None for loader in loaders):
        there = ", ".join(builder.splits) or "no splits"
        raise ConfigError(f"no samples in train, val or test; there are: {there}")
    return loaders


def refuse_stale(store: StoreReader, config: Config, command: Command) -> list[Change]:
    """Serve nothing that the config does not ask for; lesser differences come out as notes.

    Raises:
        LoaderError: the store's samples or splits are not those of the config.
        ConfigError, ManifestError: the config contradicts the manifest.
    """
    found = compare_with_config(store, config)
    if found.changes:
        differs = f"{store.folder} was made with other settings than the config has: {'; '.join(found.changes)}"
        if found.unknown:  # a prepare would fail, and so would reading the raw files
            why = "; ".join(found.unknown)
            raise LoaderError(f"{differs}; and {why}. Bring that back, or train with the store's own settings")
        raise LoaderError(
            f"{differs}. '{command()}' brings it up to date (with --accept-fingerprint it keeps the samples as "
            "they are); use_fast_loader: false reads the raw files instead"
        )
    told = [f"{doubt}. '{command()}' brings it up to date" for doubt in found.doubts]
    return [Change(f"{store.folder} is read as it is: {each}") for each in [*found.unknown, *told]]


def _no_store(folder: Path | None, command: Command) -> Exception:
    if folder is None:
        return ConfigError("use_fast_loader: true needs preprocessed_data_dir, the folder of the store")
    return StoreMissingError(
        f"there is no store at {folder}, and use_fast_loader is true. Prepare it once: '{command()}'. With "
        "use_fast_loader: auto the raw files are read until then"
    )
