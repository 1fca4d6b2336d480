"""Out of memory: one message that names every setting that helps, and what it is expected to do."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flatout.config import Config
from flatout.types import FieldSpec

_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch's own class, or what the CPU's allocator says."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def memory_advice(config: Config, precision: str, fields: Mapping[str, FieldSpec], error: BaseException) -> str:
    """The settings as they are, and what to change them to; the most effective first."""
    told = str(error).strip().split("\n")[0].rstrip(".")
    lines = [f"out of memory ({told or type(error).__name__}). What helps, the strongest first:"]
    lines += [f"  - {line}" for line in _remedies(config, precision, fields)]
    return "\n".join(lines)


def _remedies(config: Config, precision: str, fields: Mapping[str, FieldSpec]) -> list[str]:
    return [
        *_smaller_batch(config),
        *_shorter(config, fields),
        *_half(precision),
        *_fewer_ahead(config),
    ]


def _smaller_batch(config: Config) -> list[str]:
    settings, steps = config.loader_for("train"), config.gradient_accumulation_steps
    size, tokens = settings.batch_size, settings.max_tokens
    accumulated = f"gradient_accumulation_steps: {steps * 2}"
    if tokens is not None:
        return [
            f"max_tokens: {tokens // 2} with {accumulated} (now {tokens} and {steps}): half the memory of "
            "activations, about as many samples a step. No sample may be longer; batch_size has no effect"
        ]
    if size == 1:
        return []
    half = size // 2
    fewer = f"steps of {2 * half * steps} samples instead of {size * steps}"
    outcome = "the same gradients" if 2 * half == size else fewer
    return [
        f"batch_size: {half} with {accumulated} (now {size} and {steps}): half the memory of activations, "
        f"{outcome}, about the same speed. Losses that compare the samples of a batch (contrastive ones) and "
        "batch normalisation see fewer of them"
    ]


def _shorter(config: Config, fields: Mapping[str, FieldSpec]) -> list[str]:
    if not any(spec.is_ragged for spec in fields.values()):
        return []
    now = config.loader_for("train").max_sequence_length
    wanted, said = (now // 2, str(now)) if now else (500, "unlimited")
    return [
        f"max_sequence_length: {wanted} (now {said}): memory in proportion, for attention with its square; "
        "longer samples are cut"
    ]


def _half(precision: str) -> list[str]:
    if precision not in ("32-true", "64-true"):
        return []
    return ["precision: bf16-mixed, or 16-mixed on older GPUs (now 32): about half the memory of activations"]


def _fewer_ahead(config: Config) -> list[str]:
    lines = []
    if config.cache_on_device:
        lines.append("cache_on_device: false: the device no longer holds the data")
    if config.cache_in_memory or config.cache_config.preload_train_data or config.cache_config.preload_val_data:
        lines.append("cache_in_memory and cache_config.preload_*: false: main memory of the data is given back")
    settings = config.loader_for("train")
    return [
        *lines,
        f"num_workers (now {settings.num_workers}), prefetch_factor (now {settings.prefetch_factor}) and "
        f"cache_config.cache_size (now {config.cache_config.cache_size}): lower ones free main memory, not the "
        "device's",
    ]
