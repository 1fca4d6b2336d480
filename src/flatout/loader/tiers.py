"""Tiers: where a config's samples are kept between epochs, and where its batches arrive."""

from __future__ import annotations

from dataclasses import replace

import torch

from flatout.config import Config
from flatout.loader.cache import CacheRule
from flatout.loader.machine import Gpu, Machine
from flatout.loader.memory import CACHE_SHARE, DEVICE_SHARE
from flatout.loader.notes import Change
from flatout.loader.platform import Decision
from flatout.loader.ranks import ranks_of_machine
from flatout.loader.samples import mean_bytes
from flatout.store import StoreReader
from flatout.types import Array
from flatout.units import bytes_text


def cache_rule(
    config: Config, store: StoreReader, positions: Array, machine: Machine, notes: list[str]
) -> CacheRule | None:
    """How many decompressed samples of a split are kept; None: none are. What the user should know is noted."""
    cache = config.cache_config
    packed = [name for name, spec in store.fields.items() if spec.compression != "none"]
    if not cache.enable_cache or not cache.cache_size:
        return None
    if not packed:
        if {"enable_cache", "cache_size"} & cache.model_fields_set:
            notes.append(
                "cache_config: no field is compressed, so enable_cache and cache_size have no effect: the "
                "system's page cache keeps samples as they are read"
            )
        return None
    num_ranks = ranks_of_machine()
    most = int(machine.free_bytes * CACHE_SHARE) // num_ranks
    num_samples = min(cache.cache_size, len(positions))
    wanted = num_samples * mean_bytes(store, positions, packed)
    if wanted > most:
        kind = Change if "cache_size" in cache.model_fields_set else str
        shared = f" for {num_ranks} ranks" if num_ranks > 1 else ""
        notes.append(
            kind(
                f"cache_config.cache_size: {num_samples:,} decompressed samples would take "
                f"{bytes_text(wanted)}; {bytes_text(most)} of them are kept, {CACHE_SHARE:.0%} of the free "
                f"memory{shared}"
            )
        )
    return CacheRule(cache.cache_size, most)


def cache_bytes(rule: CacheRule, store: StoreReader, positions: Array) -> int:
    """What all ranks of this machine come to keep of a split by this rule."""
    packed = [name for name, spec in store.fields.items() if spec.compression != "none"]
    wanted = min(rule.num_samples, len(positions)) * mean_bytes(store, positions, packed)
    return min(rule.num_bytes, wanted) * ranks_of_machine()


def training_device(config: Config, machine: Machine, notes: list[str]) -> torch.device:
    """The device that a config trains on; a CUDA device of several is the process's current one."""
    if config.device == "auto":
        return torch.device("cuda" if machine.has_cuda else "cpu")
    if config.device.startswith("cuda") and not machine.has_cuda:
        notes.append(Change(f"device: {config.device} is not there; the CPU is used"))
        return torch.device("cpu")
    return torch.device(config.device)


def arrival_device(config: Config, machine: Machine, notes: list[str]) -> torch.device | None:
    """Where a store's batches arrive: on the CUDA device of the training; None: they stay in host memory."""
    device = training_device(config, machine, notes)
    return device if device.type == "cuda" else None


def batches_on_device(decision: Decision, batch_bytes: int, gpu: Gpu, notes: list[str]) -> Decision:
    """As decided, but no more batches ahead than their share of the GPU's memory holds: they wait there."""
    prefetch_factor = decision.prefetch_factor or 1
    most = max(1, int(gpu.memory_bytes * DEVICE_SHARE) // max(1, batch_bytes))
    if decision.num_workers * prefetch_factor <= most:
        return decision
    num_workers = min(decision.num_workers, most)
    notes.append(
        f"prefetch_factor: {decision.num_workers} x {prefetch_factor} batches of {bytes_text(batch_bytes)} "
        f"would wait on the GPU; {num_workers} x {most // num_workers} do, {DEVICE_SHARE:.0%} of its "
        f"{bytes_text(gpu.memory_bytes)}"
    )
    return replace(decision, num_workers=num_workers, prefetch_factor=most // num_workers)
