"""How recordings are varied: slower or faster, with noise, with gaps; whole batches, or one with NumPy.

Everything is measured by a recording's own length, not by that of its batch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from flatout.augment import draw_keys
from flatout.augment.draws import Draws
from flatout.augment.keys import FIRST_NOISE, sequence
from flatout.config.augmentation import AugmentationSection
from flatout.tasks.spectrum import is_inside
from flatout.train import Batch, Sample
from flatout.types import Array

LENGTH = "_length"
_NOISE_BITS = 24


class VaryBatch(nn.Module):
    """Whole batches on the device, drawn by sample key.

    Args:
        name: the recordings' field.
        text: that of their texts, if there is one: nothing is so fast that its text no longer fits.
        steps_a_byte: steps of a recording that a byte of its text needs.
    """

    def __init__(
        self, name: str, section: AugmentationSection, seed: int, text: str | None, steps_a_byte: int
    ) -> None:
        super().__init__()
        self.name, self.text, self.steps_a_byte = name, text, steps_a_byte
        self.section, self.seed = section, seed

    def forward(self, batch: Batch, epoch: int) -> Batch:
        """A new batch."""
        signal = batch[self.name]
        full = torch.full(signal.shape[:1], signal.shape[2], device=signal.device)
        lengths = batch.get(f"{self.name}{LENGTH}", full)
        draws = Draws(draw_keys(batch["key"], seed=self.seed, epoch=epoch), 4 + 3 * self._num_masks)
        signal, lengths = self._stretched(signal, lengths, self._least(batch, lengths), draws)
        signal = self._masked(self._noisy(signal, lengths, draws), lengths, draws)
        return {**batch, self.name: signal, f"{self.name}{LENGTH}": lengths}

    @property
    def _num_masks(self) -> int:
        return self.section.time_mask.num_masks

    def _least(self, batch: Batch, lengths: Tensor) -> Tensor:
        """Shortest duration, as a share of the own one."""
        if self.text is None:
            return torch.zeros_like(lengths, dtype=torch.float32)
        num_bytes = batch[f"{self.text}{LENGTH}"]
        return (num_bytes * self.steps_a_byte / lengths.clamp_min(1)).clamp_max(1.0)

    def _stretched(self, signal: Tensor, lengths: Tensor, least: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Linear interpolation; the batch grows by the largest factor there is, not the largest drawn."""
        section = self.section.time_stretch
        share = torch.where(draws.chance(0, section.p), draws.uniform(1, *section.range), 1.0)
        share = torch.maximum(share, least)
        longest = max(1.0, section.range[1]) if section.p else 1.0
        width = math.ceil(signal.shape[2] * longest)
        lengths = (lengths * share).long().clamp_min(1)
        place = torch.arange(width, device=signal.device) / share[:, None]
        low = place.long().clamp_max(signal.shape[2] - 1)
        high = (low + 1).clamp_max(signal.shape[2] - 1)
        part = (place - low).clamp(0.0, 1.0)[:, None]
        first, second = (_taken(signal, at) for at in (low, high))
        mixed = first + (second - first) * part.to(signal.dtype)
        return torch.where(is_inside(lengths, width)[:, None], mixed, 0.0), lengths

    def _noisy(self, signal: Tensor, lengths: Tensor, draws: Draws) -> Tensor:
        """White noise, uniform: place t of a sample has the same in any batch."""
        section = self.section.gaussian_noise
        level = (signal.square().sum((1, 2)) / (lengths * signal.shape[1])).sqrt() * section.std
        level = torch.where(draws.chance(2, section.p), level, 0.0)
        bits = sequence(draws.keys.states, FIRST_NOISE, signal.shape[2], _NOISE_BITS)
        noise = (bits.to(torch.float32) * 2.0**-_NOISE_BITS - 0.5) * math.sqrt(12.0)
        made = signal + (noise * level[:, None])[:, None].to(signal.dtype)
        return torch.where(is_inside(lengths, signal.shape[2])[:, None], made, 0.0)

    def _masked(self, signal: Tensor, lengths: Tensor, draws: Draws) -> Tensor:
        section = self.section.time_mask
        places = torch.arange(signal.shape[2], device=signal.device)
        for number in range(section.num_masks):
            width = lengths * draws.uniform(5 + 3 * number, 0.0, section.max_fraction)
            start = (lengths - width) * draws.uniform(6 + 3 * number)
            inside = (places >= start[:, None]) & (places < (start + width)[:, None])
            active = draws.chance(4 + 3 * number, section.p)
            signal = torch.where((inside & active[:, None])[:, None], 0.0, signal)
        return signal

    def extra_repr(self) -> str:
        return f"name={self.name}, text={self.text}, seed={self.seed}, {self.section!r}"


class VarySample:
    """The same for one recording in a worker."""

    def __init__(self, name: str, section: AugmentationSection, text: str | None, steps_a_byte: int) -> None:
        self.name, self.section, self.text, self.steps_a_byte = name, section, text, steps_a_byte

    def __call__(self, sample: Sample) -> Sample:
        """A new sample; all but the recording stays."""
        signal, section = sample[self.name].numpy(), self.section
        if np.random.random() < section.time_stretch.p:
            least = 0.0 if self.text is None else len(sample[self.text]) * self.steps_a_byte / signal.shape[1]
            share = max(np.random.uniform(*section.time_stretch.range), min(least, 1.0))
            signal = stretched(signal, share)
        if np.random.random() < section.gaussian_noise.p:
            level = np.sqrt(np.square(signal).mean()) * section.gaussian_noise.std
            signal = signal + level * np.random.standard_normal(signal.shape)
        for _ in range(section.time_mask.num_masks):
            if np.random.random() < section.time_mask.p:
                signal = _with_gap(signal, section.time_mask.max_fraction)
        return {**sample, self.name: torch.from_numpy(np.ascontiguousarray(signal, np.float32))}


def stretched(signal: Array, share: float) -> Array:
    """(C, T) in, `share` times as long out, by linear interpolation."""
    length = max(1, int(signal.shape[1] * share))
    places, steps = np.arange(length) / share, np.arange(signal.shape[1])
    return np.stack([np.interp(places, steps, channel) for channel in signal])


def _with_gap(signal: Array, max_fraction: float) -> Array:
    width = signal.shape[1] * np.random.uniform(0.0, max_fraction)
    start = (signal.shape[1] - width) * np.random.random()
    gapped = signal.copy()
    gapped[:, math.ceil(start) : math.ceil(start + width)] = 0.0
    return gapped


def _taken(signal: Tensor, places: Tensor) -> Tensor:
    """(B, C, T) and (B, W) in, the values at these places out: (B, C, W)."""
    return signal.gather(2, places[:, None].expand(-1, signal.shape[1], -1))
