"""Weights in and out: safetensors beside checkpoints, and nothing that is loaded is ever executed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flatout.errors import TrainError
from flatout.train.fetch import is_address, local_file
from flatout.train.record import CHECKPOINTS, LAST

SAFETENSORS = ".safetensors"
ZIP = b"PK\x03\x04"
"""What a checkpoint of torch begins with; the list of its contents is written last."""
CUT = ("header too small", "invalid header length", "incomplete metadata")
"""What safetensors says of a file that ends before its head, inside it, or before what it lists."""
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
    with local_file(source) as path:
        found = _read(_of_run(path) if path.is_dir() else path, source)
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
    found = _read(Path(path), named, is_mapped=True)
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


def _read(path: Path, named: str | Path, *, is_mapped: bool = False) -> Any:
    try:
        with open(path, "rb") as file:
            start = file.read(len(ZIP))
    except FileNotFoundError as error:
        raise TrainError(f"there are no weights at {named}") from error
    except OSError as error:
        raise TrainError(f"{named} cannot be read: {error.strerror or error}") from error
    try:
        if path.suffix == SAFETENSORS:
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle that is refused: of its protocol
            is_mapped = is_mapped and start == ZIP  # torch advises to save anything else anew
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except Exception as error:  # torch, pickle, zipfile and safetensors each have their own
        where = named if is_address(named) else path  # of a run folder: which file
        is_short = isinstance(error, SafetensorError) and any(sign in str(error).lower() for sign in CUT)
        is_cut = not start or is_short or (start == ZIP and not is_zipfile(path))
        raise (_cut(path, where) if is_cut else _refused(where, error)) from error


def _cut(path: Path, where: str | Path) -> TrainError:
    others = sorted(file.name for file in path.parent.glob(f"*{path.suffix}") if file.name != path.name)
    beside = f", or take another beside it ({_some(others)})" if others else ""
    return TrainError(
        f"{where} is cut off or damaged: it ends after {path.stat().st_size:,} bytes. Copy it anew{beside}"
    )


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
