"""The config of a trial: that of the training, with the settings that are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatout.config import Config, resolve_config
from flatout.doctor.tune.setting import Setting

MOST_FILL_S = 5.0
"""Seconds that filling a cache for a trial may take."""
_TRIAL = {"find_batch_size": False}
"""What a trial does differently."""
_OF_STORE = {"cache_in_memory": False, "cache_config.preload_train_data": False}
"""A store that was read once is in the page cache, with or without these."""


@dataclass(frozen=True)
class Samples:
    """What the caches of a trial depend on."""

    num_stored: int | None
    """Samples of the store; None: raw files."""
    num_all: int
    """Samples of all splits."""
    make_sample_s: float
    """Seconds that one takes to make."""


def variant_of(config: Config, setting: Setting, samples: Samples) -> Config:
    """The training's config in, that of a trial out."""
    keys: dict[str, Any] = {
        **_TRIAL,
        "train_ds.num_workers": setting.num_workers,
        "train_ds.batch_size": setting.batch_size,
        "order": setting.order,
    }
    if setting.num_workers:
        keys["train_ds.prefetch_factor"] = setting.prefetch_factor
    if config.crc == "first":  # after its first epoch a training compares none
        keys["crc"] = "off"
    keys |= _cache_keys(config, setting, samples)
    found = resolve_config(config, overrides=keys, environ={})[0]
    # A store of the same settings knows all rows, whatever the limit is.
    return found.model_copy(update={"preprocessed_data_dir": None}) if "limit" in keys else found


def for_copy(config: Config, share: float) -> Config:
    """With a cache that holds as large a part of a copy as of the store, not all of it.

    Args:
        share: the copy's part of the samples.
    """
    size = int(config.cache_config.cache_size * share)
    return resolve_config(config, overrides={"cache_config.cache_size": size}, environ={})[0]


def _cache_keys(config: Config, setting: Setting, samples: Samples) -> dict[str, Any]:
    if samples.num_stored is not None:
        decoded = {"cache_config.enable_cache": True, "cache_config.cache_size": samples.num_stored}
        return {**_OF_STORE, "cache_on_device": setting.cache == "device"} | (
            decoded if setting.cache == "decoded" else {}
        )
    keys: dict[str, Any] = {"cache_in_memory": setting.cache == "memory"}
    if setting.cache == "none":
        keys["cache_config.preload_train_data"] = False
    elif samples.num_all * samples.make_sample_s > MOST_FILL_S:  # some of them tell as much
        most = max(8 * setting.batch_size, int(MOST_FILL_S / samples.make_sample_s))
        keys["limit"] = min(most, config.limit or most)
    return keys
