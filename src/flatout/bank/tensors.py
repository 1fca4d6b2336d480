"""Views as one file of plain tensors, which `torch.load(..., weights_only=True)` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.bank.recipe import ViewRecipe
from flatout.errors import ConfigError
from flatout.loader import FastDataset
from flatout.loader.fetch import KEY, Fetcher, ReadRule, restore
from flatout.loader.machine import describe_machine
from flatout.loader.memory import check_preload
from flatout.loader.samples import mean_bytes
from flatout.store import StoreReader
from flatout.store.files import sync_file, sync_folder, temporary_beside

KEYS = "keys"
"""The samples' names, beside `key`, their hashes."""


def check_tensors(dataset: FastDataset, recipe: ViewRecipe) -> None:
    """Refuse what cannot be one tensor, before any view is made.

    Raises:
        ConfigError: samples differ in shape, or a field has the name of the keys.
        LoaderError: all views together do not fit into memory.
    """
    ragged = [name for name in dataset.fields if dataset.store.fields[name].is_ragged]
    if ragged:
        raise ConfigError(
            f"samples of field '{ragged[0]}' differ in shape, and a .pt file holds tensors of one shape. Write "
            "a store instead (--output FOLDER), or leave the field out (--keep)"
        )
    if KEYS in dataset.fields:
        raise ConfigError(f"a field called '{KEYS}' clashes with what the file always has; leave it out")
    copies = recipe.num_views * (2 if recipe.num_substructures else 1)
    num_bytes = mean_bytes(dataset.store, dataset.positions, dataset.fields, is_restored=True) * len(dataset)
    check_preload(num_bytes * copies, describe_machine(look_for_gpu=False), "a .pt file of views")


def write_tensors(folder: Path, output: Path) -> None:
    """A finished store in; one file with a tensor a field, `key` and `keys` out, whole or not at all."""
    document = read_tensors(folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(output)
    try:
        with open(temporary, "wb") as file:
            torch.save(document, file)
            file.flush()
            sync_file(file.fileno())
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(output.parent)


def read_tensors(folder: Path) -> dict[str, Any]:
    """Every field of a store as one tensor, in index order, checked on the way."""
    store = StoreReader(folder)
    everything = np.arange(len(store))
    fetcher = Fetcher(store, everything, len(store), ReadRule(crc="always"))
    found = restore(fetcher.fetch(everything), store.fields)
    return {KEY: found.pop(KEY), **found, KEYS: store.keys()}
