"""The options of `flatout train`, each spelled and explained once; None means that it was not given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

DATA, TRAINING, MONITORING = "Data", "Training", "Monitoring"


def _option(panel: str | None, text: str, *names: str, **details: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **details)


Task = Annotated[str | None, _option(None, "The training, or package.module:Name of your own.")]
Preset = Annotated[str | None, _option(None, "Ready-made settings; see 'flatout presets'.")]
Resume = Annotated[str | None, _option(None, "Run folder or checkpoint to continue from.", metavar="RUN")]
OutputDir = Annotated[Path | None, _option(None, "Folder of the runs.", "--output-dir", "-o")]
Epochs = Annotated[int | None, _option(None, "Passes over the train split.")]
LearningRate = Annotated[float | None, _option(None, "Step size of the optimiser.")]

UseFastLoader = Annotated[
    bool | None, _option(DATA, "Insist on the store, or on raw files; default: the store.")
]
PreprocessedDataDir = Annotated[Path | None, _option(DATA, "Folder of the store.")]
Manifest = Annotated[str | None, _option(DATA, "Table or folder of samples.")]
BatchSize = Annotated[str | None, _option(DATA, "Samples a batch and device, or auto.")]
NumWorkers = Annotated[int | None, _option(DATA, "Workers of the loader.")]
PrefetchFactor = Annotated[int | None, _option(DATA, "Batches ahead of each.")]
PinMemory = Annotated[bool | None, _option(DATA, "Copy to the GPU from page-locked memory.")]
PersistentWorkers = Annotated[bool | None, _option(DATA, "Keep worker processes between epochs.")]
UseDynamicPadding = Annotated[bool | None, _option(DATA, "Pad to the longest of a batch.")]
MaxSequenceLength = Annotated[int | None, _option(DATA, "Steps of a sequence that are kept.")]
CacheInMemory = Annotated[bool | None, _option(DATA, "Read every split into memory first.")]
UseGpuAugment = Annotated[bool | None, _option(DATA, "Augment whole batches on the device.")]

Mode = Annotated[str | None, _option(TRAINING, "pretrain, supervised or finetune.")]
LabelSet = Annotated[str | None, _option(TRAINING, "physionet2016 or circor_murmur.")]
Pretrained = Annotated[str | None, _option(TRAINING, "Weights to start from.")]
Precision = Annotated[str | None, _option(TRAINING, "auto, 32, 16-mixed or bf16-mixed.")]
GradientAccumulationSteps = Annotated[int | None, _option(TRAINING, "Batches of one step.")]
CompileModel = Annotated[bool | None, _option(TRAINING, "Compile the model first.")]
Device = Annotated[str | None, _option(TRAINING, "auto, cpu, cuda, cuda:1.")]
Devices = Annotated[str | None, _option(TRAINING, "How many, or auto.")]
ValCheckInterval = Annotated[str | None, _option(TRAINING, "Validate after this share, or number of batches.")]
LimitValBatches = Annotated[str | None, _option(TRAINING, "Share, or number, of val batches.")]
SaveTopK = Annotated[int | None, _option(TRAINING, "Best checkpoints kept.")]
Seed = Annotated[int | None, _option(TRAINING, "Decides order and augmentation.")]

FastDetection = Annotated[bool | None, _option(MONITORING, "Look and draw half as often.")]
DisableMetricsMonitoring = Annotated[bool | None, _option(MONITORING, "Never look.")]
Dashboard = Annotated[bool, _option(MONITORING, "Meanwhile, a page on this machine.")]
