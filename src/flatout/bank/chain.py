"""The chain that makes views where the caller has none: what the config says of signals, or of images."""

from __future__ import annotations

import logging

from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.image_ready import get_gpu_image_transforms
from flatout.augment.ready import (
    IN_HERTZ,
    AugmentationConfig,
    augmentation_section,
    get_gpu_pretrain_transforms,
)
from flatout.augment.transform import Augmentation
from flatout.bank.fields import known_rate
from flatout.store import StoreReader

_log = logging.getLogger(__name__)

NUM_SIGNAL_AXES = 2
"""Of a sample: channels and time. Pictures have more."""


def config_chain(store: StoreReader, field: str, config: AugmentationConfig) -> Augmentation:
    """The config's transforms for a field of the store: those of a pretraining, or its `images`.

    Raises:
        ConfigError, AugmentError: an impossible setting, or none for images.
    """
    if len(store.fields[field].shape) > NUM_SIGNAL_AXES:
        return get_gpu_image_transforms(config)
    rate = signal_rate(store, field, config)
    section = augmentation_section(config)
    if rate is None and (in_hertz := [name for name in sorted(IN_HERTZ) if getattr(section, name) is not None]):
        _log.warning(
            "augmentation.%s is in Hz, and nothing says how many samples a second field '%s' has: %d are "
            "assumed; set augmentation.sample_rate",
            in_hertz[0],
            field,
            DEFAULT_SAMPLE_RATE,
        )
    return get_gpu_pretrain_transforms(config, rate or DEFAULT_SAMPLE_RATE)


def signal_rate(store: StoreReader, field: str, config: AugmentationConfig) -> int | None:
    """Samples a second, as the config says, or the store; None where neither does."""
    return augmentation_section(config).sample_rate or known_rate(store, field)
