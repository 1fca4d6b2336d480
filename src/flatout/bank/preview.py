"""draw_preview: samples of a store and what the augmentation makes of them, side by side, to be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.augment.compose import Group
from flatout.augment.ready import AugmentationConfig, get_gpu_pretrain_transforms
from flatout.augment.transform import Augmentation
from flatout.bank.fields import find_drawn, sample_rate
from flatout.bank.panels import Scale, panel
from flatout.bank.recipe import SampleTransform, ViewRecipe
from flatout.bank.sheet import FORMATS, Sheet
from flatout.errors import AugmentError, ConfigError
from flatout.loader import FastDataset
from flatout.store import StoreReader

MAX_CAPTION = 60


def draw_preview(
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
    num_samples: int = 4,
    num_views: int = 2,
) -> Path:
    """Draw some samples and their views as `.png` or `.html`; the settings are those of `ViewBank`.

    The views are those that a training with this seed shows in this epoch.

    Raises:
        ConfigError: there is no such split or field, it cannot be drawn, or the output is neither of the two.
        AugmentError: the augmentation does not fit the field.
    """
    output = Path(output)
    if output.suffix not in FORMATS:
        raise ConfigError(f"{output}: wanted a file that ends in {' or '.join(FORMATS)}")
    store = store if isinstance(store, StoreReader) else StoreReader(store)
    name = find_drawn(store, field)
    if transform is None and chain is None:
        chain = _default_chain(store, name, config)
    recipe = ViewRecipe(transform, chain, seed, num_views, num_substructures=0)
    dataset = FastDataset(store, split, fields=[name])
    keys = store.keys()
    rows = []
    for at in _spread(len(dataset), num_samples):
        shown = list(_shown(dataset[at], name, recipe, epoch))
        scale = Scale(shown[0])
        rows.append((_caption(keys[dataset.positions[at]]), [panel(array, scale) for array in shown]))
    if not rows:
        raise ConfigError(f"{store.folder} has no samples to draw")
    headings = ["original", *(f"view {number}" for number in range(1, num_views + 1))]
    title = f"{store.folder.name}: field {name}, seed {seed}, epoch {epoch}"
    Sheet(title, headings, rows, list(_notes(store, name, recipe))).write(output)
    return output


def _shown(
    sample: dict[str, Any], name: str, recipe: ViewRecipe, epoch: int
) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
    """The sample, then its views."""
    x = sample[name][None]
    yield x[0].numpy()
    made = recipe.make(x if x.is_floating_point() else x.float(), sample["key"][None], epoch)
    yield from (view[0].to(torch.float32).numpy() for view in made.values())


def _default_chain(store: StoreReader, name: str, config: AugmentationConfig) -> Augmentation:
    if len(store.fields[name].shape) != 2:
        raise AugmentError(
            f"field '{name}' is no signal, and the config's chain is for signals; name transforms of images or "
            "volumes (--chain MODULE:NAME) or a function of your own (--transform MODULE:NAME)"
        )
    return get_gpu_pretrain_transforms(config, sample_rate(store, name))


def _spread(num_there: int, num_wanted: int) -> list[int]:
    """Samples from first to last at even distances."""
    places = np.linspace(0, num_there - 1, min(num_there, num_wanted))
    return [int(place) for place in np.unique(places.round())]


def _notes(store: StoreReader, name: str, recipe: ViewRecipe) -> Iterator[str]:
    spec = store.fields[name]
    if len(spec.shape) == 2:
        rate = sample_rate(store, name)
        length = "" if spec.shape[1] is None else f"{spec.shape[1] / rate:.2f} s at "
        yield f"above: waveform, below: spectrogram up to {rate / 2:g} Hz ({length}{rate:g} Hz)"
    if recipe.transform is not None:
        yield str(getattr(recipe.transform, "__qualname__", recipe.transform))
    chain = recipe.chain
    members = chain.members if isinstance(chain, Group) else [chain] if chain is not None else []
    for member in members:
        yield " ".join(repr(member).split())


def _caption(key: str) -> str:
    return key if len(key) <= MAX_CAPTION else f"...{key[3 - MAX_CAPTION :]}"
