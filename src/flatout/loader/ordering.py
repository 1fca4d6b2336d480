"""From settings to the order of a split: as stored, shuffled, by shards, by classes, by weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flatout.config import Config, LoaderSettings
from flatout.errors import ConfigError
from flatout.loader.fixed import load_rows
from flatout.loader.order import Balanced, Order, Sequential, Shuffled, Weighted
from flatout.loader.places import Places
from flatout.loader.samples import SampleReader
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec

DRAWN = ("class_balanced", "weighted")
"""Orders that choose by a field; of the training split alone: others are to be seen as they are."""


def is_shuffled(settings: LoaderSettings, split: str) -> bool:
    """As the settings say; otherwise train is, other splits are not."""
    return split == "train" if settings.shuffle is None else settings.shuffle


def order_of(
    config: Config,
    settings: LoaderSettings,
    split: str,
    fields: Mapping[str, FieldSpec],
    num_samples: int,
    values: Callable[[str], Any],
) -> Order:
    """The order of a split whose shards do not matter.

    Args:
        values: name of a field in, its value of every sample of the split out.

    Raises:
        ConfigError: there is no field to choose by, or several, or its values are no weights.
    """
    is_drawn = split == "train" and config.order in DRAWN
    if not is_shuffled(settings, split):
        if is_drawn:
            raise ConfigError(
                f"order: {config.order} draws samples, and shuffle is false: leave one of them out"
            )
        return Sequential(num_samples)
    if not is_drawn:
        return Shuffled(num_samples, config.seed)
    name = _field(config, fields)
    found = np.asarray(values(name))
    if config.order == "class_balanced":
        return Balanced.of(found, config.seed)
    try:
        return Weighted.of(found, config.seed)
    except ConfigError as error:
        raise ConfigError(f"order: weighted by field '{name}': {error}") from error


def stored_column(store: StoreReader, name: str, positions: Array) -> Array:
    """A number of each of these samples, from the store."""
    spec = store.fields[name]
    if spec.encoding == "none" and spec.compression == "none":
        return load_rows(store, spec, Places.of(store, positions))
    samples = SampleReader(store, positions, [name]).read(np.arange(len(positions)))
    return np.array([sample[name].item() for sample in samples])


def _field(config: Config, fields: Mapping[str, FieldSpec]) -> str:
    """The field that the order chooses by."""
    numbers = [name for name, spec in fields.items() if spec.shape == ()]
    labels = [name for name in numbers if fields[name].kind == "label"]
    if config.order_field is not None:
        if config.order_field in numbers:
            return config.order_field
        raise ConfigError(
            f"order_field: '{config.order_field}' is no field of one number a sample; these are: "
            f"{_listed(numbers)}"
        )
    if config.order == "class_balanced" and len(labels) == 1:
        return labels[0]
    if config.order == "weighted":
        raise ConfigError(
            f"order: weighted needs order_field, the field that holds the weights; there are: "
            f"{_listed(numbers)}"
        )
    found = f"several: {_listed(labels)}" if labels else f"none; fields of one number are: {_listed(numbers)}"
    raise ConfigError(
        f"order: class_balanced needs one label field, and there is {found}. Name it in order_field"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
