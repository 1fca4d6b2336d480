"""The frozen encoder: found by name, filled from a checkpoint that runs no code, asked for its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout.errors import ConfigError, MissingDependencyError

Encoder = Callable[[Tensor], Any]
"""(B, ...) in, (B, ...) out."""

_NESTED = ("state_dict", "model_state_dict", "model", "encoder")
"""Where the weights stand in checkpoints that hold more than them."""


def build_encoder(found: Any, checkpoint: Path | None = None, prefix: str | None = None) -> Encoder:
    """A module, its class, a function that makes one, or a function that encodes, in; a frozen encoder out.

    Args:
        checkpoint: weights, as `.safetensors` or as `torch.save` wrote them.
        prefix: what the weights' names begin with in it; found out where only one fits.

    Raises:
        ConfigError: it is no encoder, or the checkpoint does not fit it.
    """
    encoder = found
    if not isinstance(found, nn.Module) and not _takes_input(found):
        try:
            encoder = found()
        except Exception as error:  # whatever a user's constructor does
            raise ConfigError(
                f"the encoder {_name(found)} cannot be made without arguments: {type(error).__name__}: "
                f"{error}. Name a function that makes it"
            ) from error
    if not callable(encoder):
        raise ConfigError(f"{_name(found)} gave a {type(encoder).__name__}; an encoder takes a batch")
    if isinstance(encoder, nn.Module):
        if checkpoint is not None:
            load_weights(encoder, checkpoint, prefix)
        return encoder.eval().requires_grad_(False)
    if checkpoint is not None:
        raise ConfigError(f"{_name(found)} is a function: a checkpoint needs a torch module to go into")
    return encoder  # type: ignore[no-any-return]


def load_weights(module: nn.Module, path: Path, prefix: str | None = None) -> None:
    """Fill a module from a checkpoint; every one of its weights must be there, of its shape.

    Raises:
        ConfigError: they are not, or stand there several times.
    """
    weights = _weights_in(read_checkpoint(path), path)
    wanted = list(module.state_dict())
    prefix = _find_prefix(path, wanted, list(weights)) if prefix is None else prefix
    if missing := [name for name in wanted if f"{prefix}{name}" not in weights]:
        raise ConfigError(
            f"{path} has no weights '{prefix}{missing[0]}' ({len(missing)} of {len(wanted)} are missing)"
        )
    try:
        module.load_state_dict({name: weights[f"{prefix}{name}"] for name in wanted})
    except RuntimeError as error:
        raise ConfigError(f"{path} does not fit the encoder: {error}") from error


def read_checkpoint(path: Path) -> Any:
    """What a checkpoint holds: tensors in plain containers; nothing in it is run.

    Raises:
        ConfigError: it cannot be read, or holds more than that.
    """
    if not path.is_file():
        raise ConfigError(f"--checkpoint {path}: there is no such file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} needs the library safetensors: pip install safetensors"
        ) from error
    except Exception as error:  # zip, pickle and format errors have no class in common
        raise ConfigError(
            f"{path} cannot be read as weights alone: {str(error).splitlines()[0]}. Save the encoder's "
            "state_dict() and nothing else"
        ) from error


def _weights_in(found: Any, path: Path) -> Mapping[str, Tensor]:
    """The mapping of names to tensors, wherever the checkpoint has it."""
    for name in ("", *_NESTED):
        inner = found.get(name) if name and isinstance(found, Mapping) else found
        if isinstance(inner, Mapping) and inner and all(isinstance(v, Tensor) for v in inner.values()):
            return inner
    raise ConfigError(f"{path} holds no weights: a mapping of names to tensors, or one under {_NESTED}")


def _find_prefix(path: Path, wanted: list[str], names: list[str]) -> str:
    """What stands before the encoder's own names: a trainer's `model.`, a compiled one's `_orig_mod.`."""
    if not wanted:
        return ""
    there = set(names)
    ends = [name.removesuffix(wanted[0]) for name in names if name.endswith(wanted[0])]
    fitting = [before for before in ends if all(f"{before}{name}" in there for name in wanted)]
    if "" in fitting or not fitting:
        return ""
    if len(fitting) > 1:
        raise ConfigError(f"{path} holds the encoder's weights several times; choose one: --prefix {fitting}")
    return fitting[0]


def _takes_input(found: Any) -> bool:
    """Whether it is a function that must be given something: then it encodes, and makes no encoder."""
    if isinstance(found, type):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def _name(found: Any) -> str:
    return str(getattr(found, "__qualname__", type(found).__name__))
