"""Measures: what flatout costs, against the work itself and against peers. Facts out, no words."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.bench.augment import AugmentBench as AugmentBench
    from flatout.bench.augment import bench_augment as bench_augment
    from flatout.bench.load import LoadBench as LoadBench
    from flatout.bench.load import bench_load as bench_load
    from flatout.bench.prepare import PrepareBench as PrepareBench
    from flatout.bench.prepare import bench_prepare as bench_prepare

_HOMES = {
    "AugmentBench": "augment",
    "bench_augment": "augment",
    "LoadBench": "load",
    "bench_load": "load",
    "PrepareBench": "prepare",
    "bench_prepare": "prepare",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
