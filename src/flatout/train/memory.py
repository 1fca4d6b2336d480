"""Out of memory: one message that names every setting that helps, and what it is expected to do."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flatout.config import Config
from flatout.types import FieldSpec

_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")
_KILLED = "is killed by signal: killed"
_SHARED = "out of shared memory"
"""What torch's DataLoader says where the system ended a worker process, and where /dev/shm is too small."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch's own class, what the CPU's allocator says, or what is
    said of a worker process that the system ended."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    signs = (*_SIGNS, _KILLED, _SHARED)
    return isinstance(error, RuntimeError) and any(sign in _told(error).lower() for sign in signs)


def memory_advice(config: Config, precision: str, fields: Mapping[str, FieldSpec], error: BaseException) -> str:
    """The settings as they are, and what to change them to; the most effective first."""
    told = _told(error).strip().split("\n")[0].rstrip(". ")
    lines = [f"out of memory ({told or type(error).__name__}). What helps, the strongest first:"]
    lines += [f"  - {line}" for line in _remedies(config, precision, fields, error)]
    return "\n".join(lines)


def _told(error: BaseException) -> str:
    """What is said, and what that came from: a worker that 'exited unexpectedly' was killed by a signal."""
    cause = error.__cause__
    return f"{error}" if cause is None or not isinstance(cause, RuntimeError) else f"{error}: {cause}"


def _remedies(
    config: Config, precision: str, fields: Mapping[str, FieldSpec], error: BaseException
) -> list[str]:
    told = _told(error).lower()
    if _KILLED in told or _SHARED in told:
        return [*_fewer_workers(config, is_shared=_SHARED in told), *_caches(config), *_shorter(config, fields)]
    return [
        *_smaller_batch(config),
        *_shorter(config, fields),
        *_half(precision),
        *_fewer_ahead(config),
    ]


def _fewer_workers(config: Config, *, is_shared: bool) -> list[str]:
    settings = config.loader_for("train")
    room = (
        "more shared memory: /dev/shm of a container is 64 MB unless it is started with --shm-size=8g or "
        "--ipc=host (docker)"
    )
    fewer = (
        f"num_workers (now {settings.num_workers}) and prefetch_factor (now {settings.prefetch_factor}): half "
        "of each holds a quarter of the batches in main memory; num_workers: 0 starts no processes"
    )
    store = "a store ('flatout prepare'): its batches come from threads, not from worker processes"
    return [room, fewer, store] if is_shared else [fewer, store]


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
    settings = config.loader_for("train")
    lines = ["cache_on_device: false: the device no longer holds the data"] if config.cache_on_device else []
    return [
        *lines,
        *_caches(config),
        f"num_workers (now {settings.num_workers}), prefetch_factor (now {settings.prefetch_factor}) and "
        f"cache_config.cache_size (now {config.cache_config.cache_size}): lower ones free main memory, not the "
        "device's",
    ]


def _caches(config: Config) -> list[str]:
    cache = config.cache_config
    if config.cache_in_memory or cache.preload_train_data or cache.preload_val_data:
        return ["cache_in_memory and cache_config.preload_*: false: main memory of the data is given back"]
    return []
