"""Setting: everything that tuning may change about loading, and the config keys that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

AS_IT_IS = "as it is"
"""The encoding that the store has."""
ENCODINGS: dict[str, dict[str, str]] = {
    "none": {"encoding": "none", "compression": "none"},
    "float16": {"encoding": "float16", "compression": "none"},
    "uint8": {"encoding": "uint8", "compression": "none"},
    "zstd": {"encoding": "none", "compression": "zstd"},
    "float16+zstd": {"encoding": "float16", "compression": "zstd"},
}
"""Encodings that are tried, as the settings of a field."""
SPLIT = "train_ds"
"""The section that loader settings are written to: at the top level they would hold for prepare, too."""


@dataclass(frozen=True)
class Setting:
    """How the train split is loaded."""

    num_workers: int
    prefetch_factor: int
    """Batches ahead of each worker; 1 without workers."""
    batch_size: int
    cache: str = "none"
    """`none`, `memory` (the standard path's samples, decoded once), `decoded` (the decompressed samples of a
    store) or `device`."""
    order: str = "global"
    encoding: str = AS_IT_IS

    def changed(self, **changes: Any) -> Setting:
        """This with other values; without workers nothing is prefetched."""
        found = replace(self, **changes)
        return found if found.num_workers else replace(found, prefetch_factor=1)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)

    def num_changes(self, start: Setting) -> int:
        """How many of the values are others than those of `start`."""
        here, there = self.to_json(), start.to_json()
        return sum(here[name] != there[name] for name in here)

    def weight(self, start: Setting) -> tuple[int, ...]:
        """What makes it less simple than another, the heaviest first."""
        ahead = self.num_workers * self.prefetch_factor
        return self.num_changes(start), int(self.cache != "none"), self.num_workers, ahead


def keys_of(setting: Setting, start: Setting, fields: Sequence[str], num_samples: int = 0) -> dict[str, Any]:
    """The config keys, by dotted name, that turn `start` into `setting`.

    Args:
        fields: those whose encoding is changed.
        num_samples: of the train split, for a cache that holds them all.
    """
    found: dict[str, Any] = {}
    if setting.num_workers != start.num_workers:
        found[f"{SPLIT}.num_workers"] = setting.num_workers
    is_as_deep = start.num_workers and setting.prefetch_factor == start.prefetch_factor
    if setting.num_workers and not is_as_deep:
        found[f"{SPLIT}.prefetch_factor"] = setting.prefetch_factor
    if setting.batch_size != start.batch_size:
        found[f"{SPLIT}.batch_size"] = setting.batch_size
    if setting.order != start.order:
        found["order"] = setting.order
    if setting.cache != start.cache:
        found |= _cache_keys(setting.cache, num_samples)
    if setting.encoding != start.encoding:
        found |= encoding_keys(setting.encoding, fields)
    return found


def encoding_keys(encoding: str, fields: Sequence[str]) -> dict[str, Any]:
    """The keys that store these fields in this way."""
    return {f"fields.{name}.{key}": value for name in fields for key, value in ENCODINGS[encoding].items()}


def _cache_keys(cache: str, num_samples: int) -> dict[str, Any]:
    keys: Mapping[str, dict[str, Any]] = {
        "none": {"cache_in_memory": False, "cache_on_device": False},
        "memory": {"cache_in_memory": True},
        "device": {"cache_on_device": True},
        "decoded": {"cache_config.enable_cache": True, "cache_config.cache_size": num_samples},
    }
    return keys[cache]
