"""The chain as one writes it in torch without measuring: batched, int64 gathers, a pass over memory a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flatout.config.augmentation import AugmentationSection

_DEFAULTS = AugmentationSection()


def time_stretch(x: Tensor, factor: Tensor) -> Tensor:
    """Linear interpolation at t / factor, zero past the end."""
    last = x.shape[-1] - 1
    position = torch.arange(x.shape[-1]) / factor[:, None]
    before = position.floor().long()
    share = (position - before)[:, None]
    low, high = _taken(x, before.clamp(max=last)), _taken(x, (before + 1).clamp(max=last))
    return (low + (high - low) * share) * (position <= last)[:, None]


def time_shift(x: Tensor, shift: Tensor) -> Tensor:
    """Circular."""
    return _taken(x, (torch.arange(x.shape[-1]) - shift[:, None]) % x.shape[-1])


def frequency_mask(x: Tensor, start: Tensor, width: Tensor) -> Tensor:
    """A band of the spectrum set to zero."""
    spectrum = torch.fft.rfft(x)
    masked: Tensor = torch.fft.irfft(spectrum.masked_fill(_inside(spectrum, start, width), 0.0), n=x.shape[-1])
    return masked


def amplitude_scale(x: Tensor, factor: Tensor) -> Tensor:
    """One factor a sample."""
    return x * factor[:, None, None]


def gaussian_noise(x: Tensor, std: float) -> Tensor:
    """Fresh normal numbers from torch's generator."""
    return x + torch.randn_like(x) * x.std(dim=(1, 2), keepdim=True) * std


def time_mask(x: Tensor, start: Tensor, width: Tensor) -> Tensor:
    """A stretch set to zero."""
    return x.masked_fill(_inside(x, start, width), 0.0)


def _taken(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(-1, index[:, None].expand_as(x))


def _inside(x: Tensor, start: Tensor, width: Tensor) -> Tensor:
    places = torch.arange(x.shape[-1])
    return ((places >= start[:, None]) & (places < (start + width)[:, None]))[:, None]


def _between(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    return torch.rand(len(x)) * (bounds[1] - bounds[0]) + bounds[0]


def _band(length: int, num: int, max_fraction: float) -> tuple[Tensor, Tensor]:
    """(num,) starts and widths."""
    width = torch.randint(1, max(2, int(length * max_fraction) + 1), (num,))
    return (torch.rand(num) * (length - width + 1)).long(), width


def _draw_shift(x: Tensor) -> Any:
    most = int(x.shape[-1] * _DEFAULTS.time_shift.max_fraction)
    return (torch.randint(-most, most + 1, (len(x),)),)


Draw = Callable[[Tensor], Any]
EAGER: dict[str, tuple[Callable[..., Tensor], Draw]] = {
    "time_stretch": (time_stretch, lambda x: (_between(x, _DEFAULTS.time_stretch.range),)),
    "time_shift": (time_shift, _draw_shift),
    "frequency_mask": (
        frequency_mask,
        lambda x: _band(x.shape[-1] // 2 + 1, len(x), _DEFAULTS.frequency_mask.max_fraction),
    ),
    "amplitude_scale": (amplitude_scale, lambda x: (_between(x, _DEFAULTS.amplitude_scale.range),)),
    "gaussian_noise": (gaussian_noise, lambda x: (_DEFAULTS.gaussian_noise.std,)),
    "time_mask": (time_mask, lambda x: _band(x.shape[-1], len(x), _DEFAULTS.time_mask.max_fraction)),
}
"""Name in the config -> what it does with parameters, and how they are drawn, in the order of the chain."""


def run_one(name: str, x: Tensor, p: float = 1.0) -> Tensor:
    """One operation on the samples that chance takes."""
    change, draw = EAGER[name]
    is_active = torch.rand(len(x)) < p
    return torch.where(is_active[:, None, None], change(x, *draw(x)), x)


def run_all(x: Tensor) -> Tensor:
    """The six of them."""
    for name in EAGER:
        x = run_one(name, x)
    return x
