"""Speed settings: each applied where it is legal, otherwise left alone with a reason; undone after the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flatout.config import Config
from flatout.types import FieldSpec


@contextmanager
def fast_kernels(config: Config, device: torch.device) -> Iterator[list[str]]:
    """Precision of float32 products and convolutions, and what Lightning switches for the whole process, put
    back at the end.

    Gives the notes: what was asked for and has no effect here.
    """
    before = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    is_cuda = device.type == "cuda"
    convolutions = is_cuda and torch.backends.cudnn.allow_tf32
    notes = []
    if is_cuda:
        torch.set_float32_matmul_precision(config.matmul_precision)
        torch.backends.cudnn.allow_tf32 = config.matmul_precision != "highest"
    else:
        asked = {"matmul_precision", "cudnn_benchmark"} & config.model_fields_set
        notes += [f"{name}: no effect without CUDA" for name in sorted(asked)]
    try:
        yield notes
    finally:
        torch.set_float32_matmul_precision(before)
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark
        if is_cuda:
            torch.backends.cudnn.allow_tf32 = convolutions


def wants_benchmark(config: Config, device: torch.device, fields: Mapping[str, FieldSpec]) -> bool:
    """Whether cuDNN may try its algorithms: it pays where shapes repeat, and costs where they do not."""
    return config.cudnn_benchmark and device.type == "cuda" and why_no_benchmark(config, fields) is None


def why_no_benchmark(config: Config, fields: Mapping[str, FieldSpec]) -> str | None:
    """What speaks against it on a device that has cuDNN; None: nothing."""
    if config.deterministic:
        return "deterministic does not allow it"
    if config.use_dynamic_padding and any(spec.is_ragged for spec in fields.values()):
        return "batches of ragged fields differ in shape, and each new one would be tried out"
    return None


def benchmark_note(config: Config, device: torch.device, fields: Mapping[str, FieldSpec]) -> str | None:
    """Where it was asked for and is left off; without CUDA `fast_kernels` says so."""
    is_asked = config.cudnn_benchmark and "cudnn_benchmark" in config.model_fields_set
    why = why_no_benchmark(config, fields) if is_asked and device.type == "cuda" else None
    return None if why is None else f"cudnn_benchmark: {why}; no effect"


def memory_format(
    config: Config, module: nn.Module, precision: str, device: torch.device
) -> MemoryFormat | None:
    """The layout of convolutions, if it is wanted and the model has any."""
    is_half = precision in ("16-mixed", "bf16-mixed")
    is_wanted = device.type == "cuda" and is_half if config.channels_last == "auto" else config.channels_last
    kinds = {type(part) for part in module.modules()}
    is_2d = any(issubclass(kind, nn.Conv2d | nn.ConvTranspose2d) for kind in kinds)
    is_3d = any(issubclass(kind, nn.Conv3d | nn.ConvTranspose3d) for kind in kinds)
    return MemoryFormat(is_2d, is_3d) if is_wanted and (is_2d or is_3d) else None


class MemoryFormat:
    """Channels-last for pictures, volumes or both: the model once, each batch as it arrives."""

    def __init__(self, is_2d: bool, is_3d: bool) -> None:
        formats = {4: torch.channels_last} if is_2d else {}
        self._formats = formats | ({5: torch.channels_last_3d} if is_3d else {})

    def change_module(self, module: nn.Module) -> None:
        """Weights of each dimension in its layout; values stay."""
        for parameter in module.parameters():
            if parameter.dim() in self._formats:
                parameter.data = parameter.data.contiguous(memory_format=self._formats[parameter.dim()])

    def change_batch(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Fields of (B, C, ...) in the layout of the weights."""
        return {
            name: value.contiguous(memory_format=self._formats[value.dim()])
            if value.dim() in self._formats and value.is_floating_point()
            else value
            for name, value in batch.items()
        }


def compile_in_place(config: Config, module: nn.Module, device: torch.device) -> str | None:
    """Compile the `model` (or the children) of a module, if the config asks for it; a note on that, or why not.

    In place, so that checkpoints keep their names.
    """
    if not config.compile_model:
        return None
    if (reason := why_not_compiled(device)) is not None:
        return f"compile_model: {reason}; the model runs as it is"
    model = getattr(module, "model", None)
    for part in [model] if isinstance(model, nn.Module) else module.children():
        part.compile()
    return "compile_model: the first steps compile the model, and may take minutes"


def why_not_compiled(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine; None: nothing."""
    if device.type == "cuda":
        major = torch.cuda.get_device_capability(device)[0]
        return None if major >= 7 else "it needs a GPU of compute capability 7.0 or more"
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++", "cl"]
    if not any(shutil.which(compiler) for compiler in compilers):
        return f"there is no C++ compiler ({', '.join(compilers)})"
    return None
