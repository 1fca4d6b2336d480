"""benchmark_data_loading: how fast a config's batches come, the standard way and from the store."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from flatout.config import Config, load_config
from flatout.errors import ConfigError
from flatout.loader.build import Builder, Loader, StandardBuilder
from flatout.loader.create import Source, choose_builder, prepare_command
from flatout.loader.fetch import KEY
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.raw import RawSource
from flatout.store import is_store

SPLITS = ("train", "val")


@dataclass(frozen=True, slots=True)
class Speed:
    """What a loader delivered after its first batch."""

    num_batches: int
    num_samples: int
    seconds: float
    first_batch_s: float
    """Wait for the first batch: threads or processes start, buffers are made."""


def benchmark_data_loading(
    source: Source, num_batches: int = 50, *, machine: Machine | None = None
) -> dict[str, Any]:
    """Measure both paths with the config's own settings; nothing but loading happens between batches.

    The first batch is left out of the rates and reported as `first_batch_seconds`; a split that ends early
    is begun again. The standard path decodes each sample from its file every time, whatever the config says
    about preloading; where there is a store it leaves out the rows that are in quarantine.

    Args:
        source: a Config, a dict, or the path of a config file.
        num_batches: batches measured of each split.

    Returns:
        `train_batches_per_second`, `val_batches_per_second`, `train_samples_per_second`,
        `val_samples_per_second`, `seconds_per_batch` (train) and `first_batch_seconds` of the fast path, or of
        the standard path where there is no store; the same under `standard` and `fast` (None: no raw data,
        no store); `speedup`, fast over standard in train samples a second. A split without samples has None.

    Example:
        >>> results = benchmark_data_loading("config.json", num_batches=50)         # doctest: +SKIP
        >>> print(f"{results['train_batches_per_second']:.2f} batches/s")           # doctest: +SKIP
    """
    if num_batches < 1:
        raise ConfigError(f"num_batches {num_batches}: at least 1 is needed")
    config = load_config(source)
    machine = machine or describe_machine()
    standard = None if config.manifest is None else _standard(config, num_batches, machine)
    fast = None
    if config.preprocessed_data_dir is not None and is_store(Path(config.preprocessed_data_dir)):
        insisting = config.model_copy(update={"use_fast_loader": True})
        builder = choose_builder(insisting, machine, partial(prepare_command, source, config))
        fast = measure_loaders(builder, num_batches)
    results = fast or standard
    if results is None:
        raise ConfigError("nothing to measure: the config names neither a manifest nor a store")
    return {**results, "standard": standard, "fast": fast, "speedup": _speedup(standard, fast)}


def measure_loaders(builder: Builder, num_batches: int) -> dict[str, float | None]:
    """Rates of train and val, loader after loader."""
    found: dict[str, Speed | None] = {}
    for split in SPLITS:
        loader = builder.build(split)
        found[split] = None if loader is None else measure_loader(loader, num_batches)
    rates: dict[str, float | None] = {}
    for split, speed in found.items():
        rates[f"{split}_batches_per_second"] = None if speed is None else speed.num_batches / speed.seconds
        rates[f"{split}_samples_per_second"] = None if speed is None else speed.num_samples / speed.seconds
    speed = found["train"] or found["val"]
    rates["seconds_per_batch"] = None if speed is None else speed.seconds / speed.num_batches
    rates["first_batch_seconds"] = None if speed is None else speed.first_batch_s
    return rates


def measure_loader(loader: Loader, num_batches: int) -> Speed | None:
    """Time batches, epoch after epoch; None if an epoch has none (fewer samples than a batch, drop_last)."""
    if not len(loader):
        return None
    batches = _endless(loader)
    started = time.perf_counter()
    next(batches)
    first = time.perf_counter()
    num_samples = sum(len(batch[KEY]) for batch in islice(batches, num_batches))
    seconds = time.perf_counter() - first
    batches.close()
    if isinstance(loader, FastDataLoader):
        loader.close()
    return Speed(num_batches, num_samples, max(seconds, 1e-9), first - started)


def _standard(config: Config, num_batches: int, machine: Machine) -> dict[str, float | None]:
    cold = {"preload_train_data": False, "preload_val_data": False}
    cache = config.cache_config.model_copy(update=cold)
    config = config.model_copy(update={"cache_in_memory": False, "cache_config": cache})
    return measure_loaders(StandardBuilder(config, RawSource(config), machine), num_batches)


def _endless(loader: Loader) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _speedup(standard: dict[str, float | None] | None, fast: dict[str, float | None] | None) -> float | None:
    if standard is None or fast is None:
        return None
    for split in SPLITS:
        before, after = standard[f"{split}_samples_per_second"], fast[f"{split}_samples_per_second"]
        if before and after:
            return after / before
    return None
