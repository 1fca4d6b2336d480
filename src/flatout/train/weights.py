"""Weights in and out: safetensors beside checkpoints, and nothing that is loaded is ever executed."""

from __future__ import annotations

import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flatout.errors import TrainError
from flatout.train.fetch import local_file
from flatout.train.record import CHECKPOINTS, LAST

SAFETENSORS = ".safetensors"
FINAL = "weights.safetensors"
BEST = "best.safetensors"
"""What a run folder has: the final weights, and those of the best checkpoint."""


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write a state dict as safetensors; tensors that share memory are written one by one."""
    save_file({name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()}, path)


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """The state dict of a safetensors file or a checkpoint of Lightning or torch, here or at an http address.

    Of a run folder it is that of the best weights.

    Raises:
        TrainError: it is not there, holds code or other objects, or no weights.
    """
    try:
        with local_file(source) as path:
            found = _read(_of_run(path) if path.is_dir() else path)
    except TrainError:
        raise
    except FileNotFoundError as error:
        raise TrainError(f"there are no weights at {source}") from error
    except Exception as error:  # torch, pickle, zipfile and safetensors each have their own
        raise _refused(source, error) from error
    weights = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise TrainError(
            f"{source} holds no weights; wanted a safetensors file or a checkpoint with a state_dict"
        )
    return weights


def read_checkpoint(path: str | Path, named: str | Path) -> dict[str, Any]:
    """A checkpoint that a run is to go on from; its tensors are mapped, not read.

    Args:
        named: what messages call it.

    Raises:
        TrainError: it cannot be loaded as plain values, or is not that of a run.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch, pickle and zipfile each have their own
        raise _refused(named, error) from error
    if not isinstance(found, dict) or not {"state_dict", "loops", "RunData"} <= set(found):
        raise TrainError(
            f"resume: {named} is no checkpoint of a run; 'pretrained' takes weights alone and begins anew"
        )
    return found


def load_weights(module: nn.Module, source: str | Path) -> list[str]:
    """Give `module` the weights that have its names and shapes; returns a note on those that have not.

    Raises:
        TrainError: nothing fits, or the file cannot be used.
    """
    weights, own = read_weights(source), module.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    if not fitting:
        raise TrainError(
            f"{source}: none of its {len(weights)} weights fits the model's {len(own)}. It has "
            f"{_some(weights)}; the model wants {_some(own)}"
        )
    module.load_state_dict(fitting, strict=False)
    missing = [name for name in own if name not in fitting]
    if not missing:
        return []
    return [
        f"pretrained: {len(fitting)} of {len(own)} weights are loaded; new from the start: {_some(missing)}"
    ]


def _of_run(folder: Path) -> Path:
    """The best weights of a run folder; else the final ones, or those that a run without an end saved last."""
    names = (BEST, FINAL, f"{CHECKPOINTS}/{LAST}")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise TrainError(
            f"{folder} is a folder without {', '.join(names[:2])} or {names[2]}: give a file of weights, or "
            "the folder of a run"
        )
    return found


def _read(path: Path) -> Any:
    if path.suffix == SAFETENSORS:
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _refused(source: str | Path, error: Exception) -> TrainError:
    """Torch's own words advise to load it all the same, which runs whatever it holds: the name is enough."""
    told = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, UnpicklingError):
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        told = f"it holds {named[1] if named else 'objects'}"
    return TrainError(
        f"{source} cannot be loaded: {told}. Only tensors and plain values are: a file that holds code or "
        "objects of classes is refused"
    )


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f", ... ({len(listed)})" if len(listed) > 3 else "")
