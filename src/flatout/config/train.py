"""How a model is trained: length, precision, devices, validation, checkpoints, the model's size."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from flatout.config.section import Section

Precision = Literal["auto", "16-mixed", "bf16-mixed", "32", "64"]
LoggerName = Literal["csv", "tensorboard", "wandb"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]


def _as_list(given: Any) -> Any:
    """One name is a list of one."""
    return [given] if isinstance(given, str) else given


class EarlyStoppingSection(Section):
    """When a run ends before its last epoch."""

    patience: PositiveInt | None = None
    """Validations without improvement before the run ends; absent: it never ends early."""
    metric: str = "val_loss"
    """The logged value that is watched."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more of it is better."""
    min_delta: NonNegativeFloat = 0.0
    """Smallest change that counts as an improvement."""


class ModelSection(Section):
    """The model's size; absent values are the task's own."""

    network: Literal["resnet", "densenet"] | None = None
    """Which network (cardiac_ct); absent: the task's own."""
    dim: PositiveInt | None = None
    """Width of the model; time and memory grow with its square."""
    num_layers: PositiveInt | None = None
    """Depth of the model; time and memory grow in proportion."""
    num_heads: PositiveInt | None = None
    """Attention heads; must divide `dim`."""
    latent_dim: PositiveInt | None = None
    """Width of the latent vector (sequence_vae)."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of activations dropped in training."""
    attention: Literal["auto", "flash", "efficient", "math"] = "auto"
    """Which attention kernel torch may use; `auto` lets it choose."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the model."""


class AnnealingSection(Section):
    """How much the divergence from the prior counts in the loss of a variational model (sequence_vae)."""

    weight: NonNegativeFloat = 1.0
    """Its weight once it counts in full (beta)."""
    warmup: NonNegativeInt | Share = 0.2
    """Share of the run's steps (float), or their number (whole), in which the weight grows from 0."""
    free_nats: NonNegativeFloat = 0.0
    """Nats of each latent unit that cost nothing; a few tenths keep units from being given up."""


class TrainSettings(Section):
    """Settings of a training run."""

    output_dir: str = "runs"
    """Folder of the run's checkpoints, logs and report."""
    epochs: PositiveInt = 100
    """Passes over the train split."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1e-4
    """Step size of the optimiser."""
    scale_learning_rate: Literal["none", "linear"] = "none"
    """`linear`: the rate grows with the global batch, relative to the task's own batch."""
    precision: Precision = "auto"
    """Number format of the training. `auto`: bf16 where it is native, fp16 on older CUDA, otherwise 32."""
    gradient_accumulation_steps: PositiveInt = 1
    """Batches whose gradients are added before a step: a larger batch without more memory."""
    find_batch_size: bool = False
    """Look for the largest batch that fits before a training starts; `batch_size: auto` means the same."""
    mode: Literal["pretrain", "supervised", "finetune"] | None = None
    """Which of a task's trainings (heart_sound); absent: the task's own."""
    fused_optimizer: bool | Literal["auto"] = "auto"
    """All parameters in one kernel; `auto`: where the device has it."""
    channels_last: bool | Literal["auto"] = "auto"
    """Channels beside each pixel, as convolutions of half precision want them; `auto`: on CUDA with those."""
    matmul_precision: Literal["highest", "high", "medium"] = "high"
    """Float32 products and convolutions on CUDA: `high` is TF32 (3x faster, 10 bits), `highest` all bits."""
    compile_model: bool = False
    """Compile the model first: faster steps after minutes of start."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    """auto, cpu, mps, cuda or cuda:N; cuda falls back to the CPU with a message where there is none."""
    devices: PositiveInt | list[NonNegativeInt] | Literal["auto"] = "auto"
    """How many devices, or which; `auto` takes all."""
    sync_batchnorm: bool = False
    """Share batch statistics between devices; costs a synchronisation a layer."""
    val_check_interval: PositiveInt | PositiveShare = 1.0
    """A validation after this share of an epoch (float) or number of batches (whole)."""
    check_val_every_n_epoch: PositiveInt = 1
    """Epochs between two that are validated."""
    limit_val_batches: NonNegativeInt | Share = 1.0
    """Share (float) or number (whole) of val batches that a validation takes."""
    eval_scales: list[PositiveFloat] = Field(default_factory=lambda: [1.0], min_length=1)
    """Scales of the input that an evaluation averages over; each costs a pass."""
    early_stopping: EarlyStoppingSection = Field(default_factory=EarlyStoppingSection)
    """When a run ends before its last epoch."""
    save_top_k: Annotated[int, Field(ge=-1)] = 2
    """Best checkpoints kept; 0 keeps none, -1 all."""
    logger: Annotated[
        list[LoggerName], BeforeValidator(_as_list, json_schema_input_type=list[LoggerName] | LoggerName)
    ] = Field(default=["csv"])
    """Where metrics go beside the run's record; tensorboard and wandb are libraries of their own."""
    pretrained: str | None = None
    """Checkpoint whose weights the run starts from."""
    deterministic: bool = False
    """Only reproducible kernels; 5-10 % slower, and turns `cudnn_benchmark` off."""
    cudnn_benchmark: bool = True
    """Let cuDNN try its algorithms and keep the fastest; pays when shapes repeat."""
    detect_anomaly: bool = False
    """Find the operation behind a NaN gradient; several times slower."""
    enable_model_summary: bool = False
    """Print the model's layers when a run starts."""
    model: ModelSection = Field(default_factory=ModelSection)
    """The model's size."""
    kl_annealing: AnnealingSection = Field(default_factory=AnnealingSection)
    """How much the divergence from the prior counts, and from when on (sequence_vae)."""
