"""What a transform may be given: each check passes the value on, or says what was wanted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flatout.augment.keys import SampleKeys
from flatout.errors import AugmentError

MILLION = 1_000_000

Range = tuple[float, float]
"""Smallest and largest value of a parameter."""


def checked_share(name: str, value: float) -> float:
    """A number from 0 to 1.

    Raises:
        AugmentError: it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise AugmentError(f"{name}: got {value!r}, wanted a number from 0 to 1")
    return float(value)


def checked_range(name: str, value: Sequence[float], *, above: float | None = None) -> Range:
    """Two finite numbers in order, both larger than `above`.

    Raises:
        AugmentError: they are not.
    """
    is_pair = len(value) == 2 and value[0] <= value[1] and all(abs(end) < float("inf") for end in value)
    if not is_pair or (above is not None and value[0] <= above):
        limit = "" if above is None else f", both above {above:g}"
        raise AugmentError(f"{name}: got {value!r}, wanted (smallest, largest){limit}")
    return float(value[0]), float(value[1])


def checked_least(name: str, value: int, least: int) -> int:
    """A whole number of at least `least`.

    Raises:
        AugmentError: it is smaller.
    """
    if value < least:
        raise AugmentError(f"{name}: got {value!r}, wanted a whole number of at least {least}")
    return value


def check_signal(owner: str, x: Tensor) -> None:
    """Refuse what is no batch of signals.

    Raises:
        AugmentError: `x` is not (B, C, T) of floating point.
    """
    if x.dim() != 3 or not x.is_floating_point() or x.shape[1] == 0 or x.shape[2] == 0:
        raise AugmentError(
            f"{owner}: got {tuple(x.shape)} {x.dtype}, wanted (B, C, T) of floating point: "
            "samples, channels, time; x[:, None] adds a channel"
        )


def check_keys(owner: str, keys: SampleKeys, x: Tensor) -> None:
    """Refuse keys that do not belong to the batch.

    Raises:
        AugmentError: `keys` was not made by `draw_keys`, or for another batch or device.
    """
    if not isinstance(keys, SampleKeys):
        raise AugmentError(
            f"{owner}: keys: got {type(keys).__name__}, wanted draw_keys(batch['key'], seed=..., epoch=...): "
            "bare keys would give a sample the same augmentation in every epoch"
        )
    states = keys.states
    if states.dtype != torch.int64 or states.shape != x.shape[:1] or states.device != x.device:
        raise AugmentError(
            f"{owner}: keys: got {tuple(states.shape)} {states.dtype} on {states.device}, "
            f"wanted ({x.shape[0]},) torch.int64 on {x.device}: one key a sample, where the samples are"
        )


def millionths(share: float) -> int:
    """A share as whole millionths, so that `length * millionths // MILLION` is exact: int(0.29 * 100) is 28."""
    return round(share * MILLION)
