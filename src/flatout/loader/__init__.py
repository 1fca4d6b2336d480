"""Order, fetch, cache, collate, prefetch: batches of a store at memory speed; and the standard path."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.loader.cache import CacheRule as CacheRule
    from flatout.loader.create import create_dataloaders as create_dataloaders
    from flatout.loader.create import create_task_dataloaders as create_task_dataloaders
    from flatout.loader.dataset import FastDataset as FastDataset
    from flatout.loader.fetch import ReadRule as ReadRule
    from flatout.loader.lengths import RaggedRule as RaggedRule
    from flatout.loader.loader import FastDataLoader as FastDataLoader
    from flatout.loader.local import ShardLocal as ShardLocal
    from flatout.loader.machine import describe_machine as describe_machine
    from flatout.loader.measure import benchmark_data_loading as benchmark_data_loading
    from flatout.loader.order import Balanced as Balanced
    from flatout.loader.order import Sequential as Sequential
    from flatout.loader.order import Shuffled as Shuffled
    from flatout.loader.order import Weighted as Weighted
    from flatout.loader.platform import suggest_batch_size as suggest_batch_size
    from flatout.loader.standard import StandardDataset as StandardDataset

_HOMES = {
    "FastDataLoader": "loader",
    "FastDataset": "dataset",
    "StandardDataset": "standard",
    "create_dataloaders": "create",
    "create_task_dataloaders": "create",
    "benchmark_data_loading": "measure",
    "ReadRule": "fetch",
    "CacheRule": "cache",
    "RaggedRule": "lengths",
    "Sequential": "order",
    "Shuffled": "order",
    "Weighted": "order",
    "Balanced": "order",
    "ShardLocal": "local",
    "describe_machine": "machine",
    "suggest_batch_size": "platform",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
