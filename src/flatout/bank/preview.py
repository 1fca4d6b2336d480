"""draw_preview: samples of a store and what the augmentation makes of them, side by side, to be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatout.augment.compose import Group
from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.ready import AugmentationConfig
from flatout.augment.transform import Augmentation
from flatout.bank.chain import NUM_SIGNAL_AXES, config_chain, signal_rate
from flatout.bank.fields import find_drawn
from flatout.bank.panels import Scale, panel
from flatout.bank.recipe import SampleTransform, ViewRecipe
from flatout.bank.sheet import FORMATS, Sheet
from flatout.errors import ConfigError
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
        chain = config_chain(store, name, config)
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
    Sheet(title, headings, rows, list(_notes(store, name, recipe, config))).write(output)
    return output


def _shown(
    sample: dict[str, Any], name: str, recipe: ViewRecipe, epoch: int
) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
    """The sample, then its views."""
    x = sample[name][None]
    yield x[0].numpy()
    made = recipe.make(x, sample["key"][None], epoch)
    yield from (view[0].to(torch.float32).numpy() for view in made.values())


def _spread(num_there: int, num_wanted: int) -> list[int]:
    """Samples from first to last at even distances."""
    places = np.linspace(0, num_there - 1, min(num_there, num_wanted))
    return [int(place) for place in np.unique(places.round())]


def _notes(store: StoreReader, name: str, recipe: ViewRecipe, config: AugmentationConfig) -> Iterator[str]:
    if len(store.fields[name].shape) == NUM_SIGNAL_AXES:
        yield _time_note(store, name, signal_rate(store, name, config))
    if recipe.transform is not None:
        yield str(getattr(recipe.transform, "__qualname__", recipe.transform))
    chain = recipe.chain
    members = chain.members if isinstance(chain, Group) else [chain] if chain is not None else []
    for member in members:
        yield " ".join(repr(member).split())


def _time_note(store: StoreReader, name: str, known: int | None) -> str:
    rate, length = known or DEFAULT_SAMPLE_RATE, store.fields[name].shape[1]
    seconds = "" if length is None else f"{length / rate:.2f} s at "
    told = "" if known else ", assumed: neither the store nor augmentation.sample_rate says"
    return f"above: waveform, below: spectrogram up to {rate / 2:g} Hz ({seconds}{rate:g} Hz{told})"


def _caption(key: str) -> str:
    return key if len(key) <= MAX_CAPTION else f"...{key[3 - MAX_CAPTION :]}"
