"""The rows of the guides' tables as data: what is switched, and the figure that the guide has beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Measure = Literal[
    "speed",
    "epoch_time",
    "data_time",
    "utilisation",
    "cpu",
    "memory",
    "epoch_switch",
    "monitor",
    "run",
    "device_memory",
]
"""speed: samples a second. epoch_time: of an epoch at that speed. data_time: of a batch. utilisation: share of
the time not waiting. cpu: busy cores. memory: peak of the process and its workers. epoch_switch: between two
epochs. monitor: its share of a step. run: a stretch of training with validation and checkpoints. device_memory:
peak of the GPU's."""

AFTER = "after"
"""The key that stands for everything the guide arrived at."""


@dataclass(frozen=True)
class GuideRow:
    """One row."""

    guide: str
    task: str
    row: str
    switch: Mapping[str, Any]
    """Settings that change over those the guide began with."""
    figure: str
    """What the guide says comes of it."""
    measure: Measure = "speed"
    base: Mapping[str, Any] = field(default_factory=dict)
    """Settings on both sides, without which the row would switch nothing."""
    needs_cuda: bool = False


STORE = {"use_fast_loader": True, "cache_config.enable_cache": True}
WHOLE = {AFTER: True}
FP16 = {"precision": "16-mixed"}
PIN = {"pin_memory": True}
HALF_BASE = {"precision": "32"}
EIGHT = {"num_workers": 8}
TWO_STEPS = {"gradient_accumulation_steps": 2}
COMPILED = {"compile_model": True}
MONITOR = {
    "monitor.update_frequency": 100,
    "monitor.plot_frequency": 1000,
    "monitor.window_size": 50,
    "monitor.verbose": False,
}

CARDIAC = [
    GuideRow("000", "cardiac_ct", "data loading time", STORE, "21x", "data_time"),
    GuideRow("000", "cardiac_ct", "GPU utilisation", STORE, "45-60 % -> 85-95 %", "utilisation"),
    GuideRow("000", "cardiac_ct", "memory", STORE, "lower -> medium", "memory"),
    GuideRow("000", "cardiac_ct", "training speed", STORE, "2-3x"),
]
HEART = [
    GuideRow("001", "heart_sound", "GPU utilisation", WHOLE, "7 % -> 60-90 %, ~10x", "utilisation"),
    GuideRow("001", "heart_sound", "CPU utilisation", WHOLE, "1498 % -> 200-400 %, 3-5x less", "cpu"),
    GuideRow("001", "heart_sound", "training throughput", WHOLE, "50 -> 400 samples/s, ~8x"),
    GuideRow("001", "heart_sound", "time of an epoch", WHOLE, "20 -> 3 minutes, ~7x", "epoch_time"),
    GuideRow("001", "heart_sound", "memory", WHOLE, "12 -> 30 GB", "memory"),
    GuideRow("001", "heart_sound", "GPU memory", WHOLE, "37 % used", "device_memory", needs_cuda=True),
    GuideRow("001", "heart_sound", "augmentation on the device", {"use_gpu_augment": True}, "10x"),
    GuideRow(
        "001", "heart_sound", "samples cached in memory", {"cache_in_memory": True}, "less CPU load", "cpu"
    ),
    GuideRow("001", "heart_sound", "views made beforehand", {**STORE, "use_gpu_augment": False}, "no figure"),
    GuideRow("001", "heart_sound", "num_workers 4 -> 8", EIGHT, "no figure"),
    GuideRow("001", "heart_sound", "prefetch_factor 2 -> 4", {"prefetch_factor": 4}, "no figure"),
    GuideRow(
        "001",
        "heart_sound",
        "persistent_workers",
        {"persistent_workers": True},
        "workers not restarted",
        "epoch_switch",
    ),
    GuideRow("001", "heart_sound", "pin_memory", PIN, "no figure", base={"pin_memory": False}, needs_cuda=True),
    GuideRow(
        "001",
        "heart_sound",
        "batch_size 64 -> 128",
        {"batch_size": 128, "scale_learning_rate": "linear"},
        "worth a try",
        base=WHOLE,
    ),
    GuideRow(
        "001",
        "heart_sound",
        "batch_size 64 -> 256",
        {"batch_size": 256, "scale_learning_rate": "linear"},
        "worth a try",
        base=WHOLE,
    ),
    GuideRow("001", "heart_sound", "mixed precision", FP16, "in use", base=HALF_BASE, needs_cuda=True),
    GuideRow("001", "heart_sound", "bfloat16", {"precision": "bf16-mixed"}, "worth a test", base=HALF_BASE),
    GuideRow("001", "heart_sound", "one store instead of small files", STORE, "fewer small reads"),
]
SPEECH = [
    GuideRow("002", "speech", "num_workers 0 -> 8", EIGHT, "3-5x loading", "data_time"),
    GuideRow(
        "002",
        "speech",
        "persistent_workers",
        {"persistent_workers": True},
        "10-20 % shorter change of epochs",
        "epoch_switch",
        base=EIGHT,
    ),
    GuideRow(
        "002",
        "speech",
        "prefetch_factor 2 -> 4",
        {"prefetch_factor": 4},
        "20-30 % more utilisation",
        "utilisation",
        base=EIGHT,
    ),
    GuideRow("002", "speech", "batch_size 2 -> 8", {"batch_size": 8}, "higher throughput"),
    GuideRow(
        "002", "speech", "GPU memory, batch_size 2 -> 8", {"batch_size": 8}, "4x", "device_memory", {}, True
    ),
    GuideRow("002", "speech", "pin_memory", PIN, "unchanged", base={"pin_memory": False}, needs_cuda=True),
    GuideRow("002", "speech", "all together", WHOLE, "2-4x"),
    GuideRow("002", "speech", "mixed precision", FP16, "faster", base=HALF_BASE, needs_cuda=True),
    GuideRow("002", "speech", "gradient accumulation", {"gradient_accumulation_steps": 4}, "no figure"),
    GuideRow("002", "speech", "prepared data", STORE, "no figure"),
]
SEGMENTATION = [
    GuideRow("003", "segmentation", "FP16", FP16, "~2x", needs_cuda=True),
    GuideRow("003", "segmentation", "GPU memory, FP16", FP16, "-50 %", "device_memory", needs_cuda=True),
    GuideRow(
        "003",
        "segmentation",
        "data loader: 8 persistent workers",
        {"num_workers": 8, "persistent_workers": True, "prefetch_factor": 2},
        "20-30 %",
    ),
    GuideRow(
        "003", "segmentation", "pin_memory", PIN, "in the above", base={"pin_memory": False}, needs_cuda=True
    ),
    GuideRow("003", "segmentation", "cudnn", {"deterministic": False}, "5-10 %", needs_cuda=True),
    GuideRow(
        "003", "segmentation", "memory, accumulation", {"gradient_accumulation_steps": 2}, "no more", "memory"
    ),
    GuideRow("003", "segmentation", "batch_size 32 -> 64", {"batch_size": 64}, "10-20 %"),
    GuideRow("003", "segmentation", "all together", WHOLE, "2-3x"),
    GuideRow("003", "segmentation", "GPU utilisation", WHOLE, "50-60 % -> 80-90 %", "utilisation"),
    GuideRow("003", "segmentation", "distance maps and pictures prepared", STORE, "no bottleneck", "data_time"),
]
SEQUENCE = [
    GuideRow("004", "sequence_vae", "batch_size 1 -> 4", {"batch_size": 4}, "30-50 %"),
    GuideRow(
        "004",
        "sequence_vae",
        "GPU memory, batch_size 1 -> 4",
        {"batch_size": 4},
        "+50 %",
        "device_memory",
        {},
        True,
    ),
    GuideRow("004", "sequence_vae", "num_workers 2 -> 8", EIGHT, "20-30 %"),
    GuideRow("004", "sequence_vae", "memory, num_workers 2 -> 8", EIGHT, "+10 %", "memory"),
    GuideRow("004", "sequence_vae", "mixed precision", FP16, "20-40 %", needs_cuda=True),
    GuideRow(
        "004", "sequence_vae", "GPU memory, mixed precision", FP16, "-30 %", "device_memory", needs_cuda=True
    ),
    GuideRow("004", "sequence_vae", "bfloat16", {"precision": "bf16-mixed"}, "where supported"),
    GuideRow("004", "sequence_vae", "gradient accumulation", TWO_STEPS, "10-20 %"),
    GuideRow("004", "sequence_vae", "memory, gradient accumulation", TWO_STEPS, "no change", "memory"),
    GuideRow("004", "sequence_vae", "compiled model", COMPILED, "10-25 %"),
    GuideRow("004", "sequence_vae", "memory, compiled model", COMPILED, "no change", "memory"),
    GuideRow("004", "sequence_vae", "monitored less often", MONITOR, "5-15 %", "monitor"),
    GuideRow("004", "sequence_vae", "memory, monitored less often", MONITOR, "-10 %", "memory"),
    GuideRow("004", "sequence_vae", "max_sequence_length 1000", {"max_sequence_length": 1000}, "20-40 %"),
    GuideRow(
        "004",
        "sequence_vae",
        "GPU memory, max_sequence_length 1000",
        {"max_sequence_length": 1000},
        "-40 %",
        "device_memory",
        needs_cuda=True,
    ),
    GuideRow(
        "004",
        "sequence_vae",
        "dynamic padding",
        {"use_dynamic_padding": True},
        "less memory and computation",
        base={"use_dynamic_padding": False, "batch_size": 4, "max_sequence_length": 1000},
    ),
    GuideRow(
        "004",
        "sequence_vae",
        "validation 0.05 of 0.2 -> 0.1 of 0.1",
        {"val_check_interval": 0.1, "limit_val_batches": 0.1},
        "no figure",
        "run",
    ),
    GuideRow("004", "sequence_vae", "save_top_k 3 -> 2", {"save_top_k": 2}, "no figure", "run"),
    GuideRow(
        "004",
        "sequence_vae",
        "persistent_workers",
        {"persistent_workers": True},
        "workers not restarted",
        "epoch_switch",
    ),
    GuideRow("004", "sequence_vae", "pin_memory", PIN, "no figure", needs_cuda=True),
    GuideRow("004", "sequence_vae", "all together", WHOLE, "2-3x"),
]
ROWS = [*CARDIAC, *HEART, *SPEECH, *SEGMENTATION, *SEQUENCE]
