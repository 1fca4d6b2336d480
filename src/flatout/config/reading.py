"""How a store is read: which path, which order, what is kept in memory, what is checked."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from flatout.config.section import Section


class CacheSection(Section):
    """What stays in memory between epochs."""

    enable_cache: bool = True
    """Keep decoded samples of compressed fields; raw fields are cached by the system's page cache."""
    cache_size: NonNegativeInt = 1000
    """Decoded samples kept, the least recently used goes first; more is faster and takes memory."""
    preload_train_data: bool = False
    """Read the train split into memory before the first batch; for splits that fit."""
    preload_val_data: bool = False
    """Read the val split into memory before the first batch; it is small and read often."""


class ReadSettings(Section):
    """Settings of everything that reads a store."""

    use_fast_loader: bool | Literal["auto"] = "auto"
    """Read from the store instead of raw files; `auto`: when there is a store."""
    cache_config: CacheSection = Field(default_factory=CacheSection)
    """What stays in memory between epochs."""
    cache_in_memory: bool = False
    """Read every split into memory before the first batch; needs memory for all of it."""
    cache_on_device: bool = False
    """Hold every split in the memory of the training device; for fields of one shape, and splits that fit."""
    order: Literal["global", "shard_local", "class_balanced", "weighted"] = "global"
    """Shuffle over all samples, or shard by shard: less random, far less seeking on cold or remote disks. For
    the train split also: every class equally often, or samples drawn by weights; some then come twice, others
    never."""
    order_field: str | None = None
    """Field of one number a sample: the weights of `order: weighted`, or the classes of `class_balanced` where
    there is more than one label."""
    seed: NonNegativeInt = 0
    """Decides order, augmentation and first weights; they are the same on any number of devices."""
    io: Literal["auto", "mmap", "pread"] = "auto"
    """`mmap` is fastest on local disks; `pread` turns an I/O error into an exception instead of a crash.
    `auto`: mmap on local disks, pread on network mounts, on Windows, and for more than the memory holds."""
    crc: Literal["first", "always", "off"] = "first"
    """When a sample's checksum is compared: the first time it is read, each time, or never."""
    on_damage: Literal["raise", "skip"] = "raise"
    """What a damaged sample does: stop the training, or be named once and left out: another sample of the batch
    stands in for it, and `valid` is false there."""
