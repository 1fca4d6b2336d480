"""Where a heart sound's views come from: the device, the view bank, or a worker that makes them one by one."""

from __future__ import annotations

import numpy as np
import torch

from flatout.augment import (
    BatchAugment,
    get_gpu_downstream_transforms,
    get_gpu_pretrain_transforms,
    split_substructures_batch,
)
from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.ready import CHAIN, PRETRAIN_ONLY
from flatout.bank import BankViews
from flatout.config import Config
from flatout.store import StoreReader
from flatout.tasks.scipy_chain import ScipyChain
from flatout.train import Sample

NUM_VIEWS = 2
NUM_PARTS = 4
"""Substructures of a cycle: first sound, systole, second sound, diastole, as quarters of it."""


def sample_rate(config: Config, field: str) -> int:
    """Samples a second of the signal: as the augmentation says, or the field, or what the guide has."""
    own = getattr(config.fields.get(field), "rate", None)
    return config.augmentation.sample_rate or own or DEFAULT_SAMPLE_RATE


def device_views(config: Config, field: str) -> BatchAugment:
    """Two views of whole batches, drawn anew in every epoch."""
    chain = get_gpu_pretrain_transforms(config, sample_rate(config, field))
    return BatchAugment(chain, field, seed=config.seed, num_views=NUM_VIEWS, num_substructures=NUM_PARTS)


def device_change(config: Config, field: str) -> BatchAugment:
    """The signal itself augmented, by what leaves its label alone."""
    chain = get_gpu_downstream_transforms(config, sample_rate(config, field))
    return BatchAugment(chain, field, seed=config.seed)


def kept_views(config: Config, store: StoreReader, field: str) -> BankViews:
    """Two views by SciPy's filters, made beforehand for some epochs at a time; only over a store."""
    return BankViews(
        store,
        "train",
        has_processes=config.loader_for("train").num_workers != 0,
        field=field,
        transform=pretrain_chain(config, field),
        seed=config.seed,
        num_views=NUM_VIEWS,
        num_substructures=NUM_PARTS,
        view_cache_refresh_epochs=config.view_cache_refresh_epochs,
    )


def pretrain_chain(config: Config, field: str) -> ScipyChain:
    """The transforms of a view, by SciPy.

    Raises:
        ConfigError: the config names one that SciPy's chain does not have.
    """
    return ScipyChain(config.augmentation, sample_rate(config, field), tuple(CHAIN))


def downstream_chain(config: Config, field: str) -> ScipyChain:
    """The same without those that can change a label.

    Raises:
        ConfigError: the config names one that SciPy's chain does not have.
    """
    order = tuple(name for name in CHAIN if name not in PRETRAIN_ONLY)
    return ScipyChain(config.augmentation, sample_rate(config, field), order)


class SampleViews:
    """A sample in a worker gets its two views and their parts, as the guide's training did it at first."""

    def __init__(self, field: str, chain: ScipyChain) -> None:
        self.field, self.chain = field, chain

    def __call__(self, sample: Sample) -> Sample:
        signal = sample[self.field].numpy()
        made = dict(sample)
        for number in range(1, NUM_VIEWS + 1):
            view = torch.from_numpy(self.chain(signal, np.random))
            made[f"view{number}"] = view
            made[f"subs{number}"] = split_substructures_batch(view[None], NUM_PARTS)[0]
        return made


class SampleChange:
    """A sample in a worker is augmented itself."""

    def __init__(self, field: str, chain: ScipyChain) -> None:
        self.field, self.chain = field, chain

    def __call__(self, sample: Sample) -> Sample:
        changed = self.chain(sample[self.field].numpy(), np.random)
        return {**sample, self.field: torch.from_numpy(changed)}
