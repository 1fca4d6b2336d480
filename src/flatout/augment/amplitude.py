"""How loud a sample is: one factor, the sign, or a gain that wanders over time."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from flatout.augment.checks import Range, checked_least, checked_range
from flatout.augment.draws import Draws
from flatout.augment.host import array
from flatout.augment.looped import LoopedTransform
from flatout.augment.transform import Transform
from flatout.config.augmentation import AmplitudeScaleSection, GainEnvelopeSection, PolarityInversionSection

_SCALE = AmplitudeScaleSection()
_POLARITY = PolarityInversionSection()
_ENVELOPE = GainEnvelopeSection()


class ScaleParams(NamedTuple):
    """Parameters of `GPUAmplitudeScale`."""

    active: Tensor
    factor: Tensor
    """(B,) float32."""


class GPUAmplitudeScale(LoopedTransform):
    """Multiply each sample by one number of `range`."""

    num_draws = 1

    def __init__(self, range: Range = _SCALE.range, p: float = _SCALE.p) -> None:
        super().__init__(p)
        self.range = checked_range("range", range, above=0.0)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> ScaleParams:
        """Factors are uniform over `range`."""
        return ScaleParams(active, draws.uniform(1, *self.range))

    def alter(self, x: Tensor, params: ScaleParams) -> Tensor:
        """All channels by the same factor."""
        return x * params.factor[:, None, None]

    def loop(self, kernels: ModuleType, x: Tensor, params: ScaleParams) -> Tensor:
        """Times one leaves a sample as it was, bit for bit."""
        out = torch.empty_like(x)
        kernels.scale(*map(array, (x.flatten(1), params.active, params.factor, out.flatten(1))))
        return out


class PolarityParams(NamedTuple):
    """Parameters of `GPUPolarityInversion`."""

    active: Tensor


class GPUPolarityInversion(Transform):
    """Turn a sample upside down: x becomes -x."""

    def __init__(self, p: float = _POLARITY.p) -> None:
        super().__init__(p)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> PolarityParams:
        """There is nothing to choose but whether."""
        return PolarityParams(active)

    def alter(self, x: Tensor, params: PolarityParams) -> Tensor:
        """All channels alike."""
        return -x


class EnvelopeParams(NamedTuple):
    """Parameters of `GPUGainEnvelope`."""

    active: Tensor
    gains: Tensor
    """(B, num_points) float32, at equal distances from the first value to the last."""


class GPUGainEnvelope(Transform):
    """Multiply each sample by a gain that goes smoothly from one random point to the next."""

    def __init__(
        self, range: Range = _ENVELOPE.range, num_points: int = _ENVELOPE.num_points, p: float = _ENVELOPE.p
    ) -> None:
        super().__init__(p)
        self.range = checked_range("range", range, above=0.0)
        self.num_points = checked_least("num_points", num_points, 2)
        self.num_draws = num_points

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> EnvelopeParams:
        """The gain of each point is uniform over `range`."""
        return EnvelopeParams(active, draws.uniform(slice(1, 1 + self.num_points), *self.range))

    def alter(self, x: Tensor, params: EnvelopeParams) -> Tensor:
        """Between two points the gain follows 3 s^2 - 2 s^3, level at both."""
        length, num_pieces = x.shape[-1], self.num_points - 1
        span = max(length - 1, 1)
        place = torch.arange(length, device=x.device) * num_pieces
        piece = (place // span).clamp_max(num_pieces - 1)
        share = (place - piece * span).to(x.dtype) / span
        smooth = share * share * (3.0 - 2.0 * share)
        low, high = params.gains[:, piece], params.gains[:, piece + 1]
        return x * (low + (high - low) * smooth)[:, None, :]
