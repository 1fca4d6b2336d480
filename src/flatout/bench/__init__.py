"""Measures: what flatout costs, against the work itself and against peers. Facts out, no words."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.bench.augment import AugmentBench as AugmentBench
    from flatout.bench.augment import bench_augment as bench_augment
    from flatout.bench.clinic import ClinicBench as ClinicBench
    from flatout.bench.clinic import bench_clinic as bench_clinic
    from flatout.bench.guides import GuidesBench as GuidesBench
    from flatout.bench.guides import bench_guides as bench_guides
    from flatout.bench.load import LoadBench as LoadBench
    from flatout.bench.load import bench_load as bench_load
    from flatout.bench.prepare import PrepareBench as PrepareBench
    from flatout.bench.prepare import bench_prepare as bench_prepare
    from flatout.bench.train import TrainBench as TrainBench
    from flatout.bench.train import bench_train as bench_train
    from flatout.bench.tune import TuneBench as TuneBench
    from flatout.bench.tune import bench_tune as bench_tune

_HOMES = {
    "AugmentBench": "augment",
    "bench_augment": "augment",
    "ClinicBench": "clinic",
    "bench_clinic": "clinic",
    "GuidesBench": "guides",
    "bench_guides": "guides",
    "LoadBench": "load",
    "bench_load": "load",
    "PrepareBench": "prepare",
    "bench_prepare": "prepare",
    "TrainBench": "train",
    "bench_train": "train",
    "TuneBench": "tune",
    "bench_tune": "tune",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
