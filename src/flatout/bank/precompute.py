"""precompute_views: the views of a store's samples, made once, as a store or as one file of tensors."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.augment.ready import AugmentationConfig
from flatout.augment.transform import Augmentation
from flatout.bank.chain import config_chain
from flatout.bank.fields import find_signal, kept_fields
from flatout.bank.order import ViewOrder
from flatout.bank.place import TENSORS, work_folder
from flatout.bank.recipe import SampleTransform, ViewRecipe
from flatout.bank.tensors import check_tensors, write_tensors
from flatout.config.fields import Encoding
from flatout.errors import ConfigError
from flatout.loader import FastDataset
from flatout.store import Progress, RunStats, StoreReader
from flatout.store.metadata import is_store


@dataclass(frozen=True)
class Precomputed:
    """What was made."""

    output: Path
    names: tuple[str, ...]
    """Views, their parts and the fields that were kept."""
    stats: RunStats

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"output": str(self.output), "fields": list(self.names), **self.stats.to_json()}


def precompute_views(
    store: StoreReader | str | Path,
    output: str | Path,
    *,
    split: str | None = None,
    field: str | None = None,
    transform: SampleTransform | None = None,
    chain: Augmentation | None = None,
    config: AugmentationConfig = None,
    seed: int = 0,
    epoch: int = 0,
    num_views: int = 2,
    num_substructures: int = 4,
    keep: Sequence[str] | None = None,
    encoding: Encoding = "none",
    num_workers: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Precomputed:
    """Views of every sample of a split, written to `output`; the settings are those of `ViewBank`.

    Stop it anywhere: the same call continues.

    Args:
        output: a folder becomes a store; a file that ends in `.pt` holds plain tensors.
        epoch: what the views are drawn for.
        keep: further fields that go along; absent: labels and numbers.
        settings: those of a prepare: `max_bad_fraction` (0 here), `decode_timeout_s`.

    Raises:
        ConfigError: there is no such split or field, or the output is in the way.
        TooManyBadError: samples that gave no views. Otherwise as a prepare.
    """
    store = store if isinstance(store, StoreReader) else StoreReader(store)
    output = Path(output)
    name = find_signal(store, field)
    if transform is None and chain is None:
        chain = config_chain(store, name, config)
    recipe = ViewRecipe(transform, chain, seed, num_views, num_substructures)
    kept = kept_fields(store, keep, recipe.names)
    dataset = FastDataset(store, split, fields=[name, *(other for other in kept if other != name)])
    order = ViewOrder(dataset, name, recipe, epoch, tuple(kept), encoding)
    _check_output(store, output, recipe)
    if output.suffix == TENSORS:
        check_tensors(dataset, recipe)
    folder = work_folder(output)
    stats = order.make(folder, num_workers=num_workers, progress=progress, **settings)
    if output.suffix == TENSORS:
        write_tensors(folder, output)
        shutil.rmtree(folder, ignore_errors=True)
    return Precomputed(output, (*recipe.names, *kept), stats)


def _check_output(store: StoreReader, output: Path, recipe: ViewRecipe) -> None:
    if output.suffix == TENSORS:
        if output.is_dir():
            raise ConfigError(f"{output} is a folder; a file of tensors cannot be written there")
    elif output.exists() and not output.is_dir():
        raise ConfigError(f"{output} is a file; name a folder for a store, or a file that ends in {TENSORS}")
    elif output.exists() and output.resolve() == store.folder.resolve():
        raise ConfigError(f"{output} is the store itself; its views need a folder of their own")
    elif is_store(output) and recipe.names[0] not in (found := StoreReader(output).fields):
        raise ConfigError(
            f"{output} is a store of something else ({', '.join(found)}), which views would replace; choose "
            "another place (--output)"
        )
