"""MixUp and CutMix: two samples of a batch in one, and their labels in the same proportion.

Labels always become soft ones, (B, K): each sample's own label times its share plus its partner's times the
rest, which is what `cross_entropy` takes. Class indices, (B,) int64, need `num_classes`; soft or one-hot
labels, (B, K) of floating point, are mixed as they are. Shares and places are drawn by key like everything
else, but a partner can only be a sample of the same batch: the one thing that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flatout.augment.beta import beta_quantiles, looked_up
from flatout.augment.boxes import inside_boxes
from flatout.augment.checks import check_keys, checked_least, checked_share
from flatout.augment.draws import Draws
from flatout.augment.image_transform import each
from flatout.augment.keys import SampleKeys, random_keys
from flatout.augment.precision import narrowed, widened
from flatout.errors import AugmentError


class MixParams(NamedTuple):
    """Parameters of `MixUp`."""

    active: Tensor
    partner: Tensor
    """(B,) int64: position in the batch; never its own, unless the batch has only one sample."""
    share: Tensor
    """(B,) float32: of the sample itself; 1 for inactive ones."""


class CutParams(NamedTuple):
    """Parameters of `CutMix`."""

    active: Tensor
    partner: Tensor
    """(B,) int64: position in the batch; never its own, unless the batch has only one sample."""
    share: Tensor
    """(B,) float32: of the places that the sample keeps; 1 for inactive ones."""
    start: Tensor
    """(B, n) int64: first place of the box on each axis."""
    width: Tensor
    """(B, n) int64: its length there; 0 for inactive ones."""


class Mixing(nn.Module):
    """What both have in common: (B, C, ...) samples and labels in, mixed ones out; in `eval()` the same."""

    quantiles: Tensor

    def __init__(self, alpha: float, p: float, num_classes: int | None) -> None:
        super().__init__()
        if not 0.01 <= alpha <= 100.0:
            raise AugmentError(f"alpha: got {alpha!r}, wanted 0.01 to 100: shares are Beta(alpha, alpha)")
        self.alpha = float(alpha)
        self.p = checked_share("p", p)
        self.num_classes = None if num_classes is None else checked_least("num_classes", num_classes, 1)
        self.register_buffer("quantiles", beta_quantiles(self.alpha), persistent=False)

    def forward(
        self,
        x: Tensor,
        labels: Tensor,
        keys: SampleKeys | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The mixed samples and their soft labels, (B, K).

        Raises:
            AugmentError: samples, labels or keys do not fit together.
        """
        if not self.training:
            return x, labels
        params = self.sample(x, keys, generator)
        return self.apply(x, params), self.mix_labels(labels, params)

    def sample(
        self, x: Tensor, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> Any:
        """Partner and share of each sample.

        Raises:
            AugmentError: `x` is not (B, C, ...), or the keys do not belong to it.
        """
        self._check(x)
        if keys is None:
            keys = random_keys(x.shape[0], x.device, generator)
        check_keys(type(self).__name__, keys, x)
        draws = Draws(keys, 6)
        share = looked_up(self.quantiles, draws.uniform(1))
        return self.choose(
            x, draws, MixParams(draws.chance(0, self.p), _partners(draws.whole(2, 1 << 30)), share)
        )

    def apply(self, x: Tensor | Callable[[nn.Module], None], params: Any = None) -> Any:
        """Samples mixed as the parameters say.

        Raises:
            AugmentError: `x` is not (B, C, ...), or of a dtype that cannot be mixed.
        """
        if not isinstance(x, Tensor):
            return super().apply(x)
        self._check(x)
        return self.change(x, params)

    def mix_labels(self, labels: Tensor, params: Any) -> Tensor:
        """Class indices (B,) or soft labels (B, K) in, soft labels (B, K) out, mixed by `params.share`.

        Raises:
            AugmentError: labels of another shape, or class indices without `num_classes`.
        """
        soft = self._soft(labels)
        share = params.share[:, None].to(soft.dtype)
        mixed = soft * share + soft[params.partner] * (1.0 - share)
        return torch.where(params.active[:, None], mixed, soft)

    def choose(self, x: Tensor, draws: Draws, params: MixParams) -> Any:
        """Parameters from columns 3 to 5 of `draws` and what both have in common."""
        raise NotImplementedError

    def change(self, x: Tensor, params: Any) -> Tensor:
        """Apply them."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The settings, for `print`."""
        return f"alpha={self.alpha}, p={self.p}, num_classes={self.num_classes}"

    def _soft(self, labels: Tensor) -> Tensor:
        if labels.dim() == 2 and labels.is_floating_point():
            return labels
        if labels.dim() != 1 or labels.dtype != torch.int64 or self.num_classes is None:
            raise AugmentError(
                f"{type(self).__name__}: labels: got {tuple(labels.shape)} {labels.dtype}, "
                "wanted soft labels (B, K) of floating point, "
                f"or class indices (B,) torch.int64 and {type(self).__name__}(num_classes=K)"
            )
        soft = torch.zeros(len(labels), self.num_classes, device=labels.device)
        return soft.scatter(1, labels[:, None], 1.0)  # raises for a class that is not there

    def _check(self, x: Tensor) -> None:
        if x.dim() not in (3, 4, 5) or 0 in x.shape[1:]:
            raise AugmentError(
                f"{type(self).__name__}: got {tuple(x.shape)} {x.dtype}, wanted (B, C, T), (B, C, H, W) or "
                "(B, C, D, H, W): samples, channels, time or space"
            )


class MixUp(Mixing):
    """Average each sample with another of the batch: `share` of the one, the rest of the other."""

    def __init__(self, alpha: float = 0.4, p: float = 1.0, *, num_classes: int | None = None) -> None:
        super().__init__(alpha, p, num_classes)

    def choose(self, x: Tensor, draws: Draws, params: MixParams) -> MixParams:
        """Shares follow Beta(alpha, alpha)."""
        return params._replace(share=torch.where(params.active, params.share, 1.0))

    def change(self, x: Tensor, params: MixParams) -> Tensor:
        """In float32 at least; bytes are rounded."""
        if not (x.is_floating_point() or x.dtype == torch.uint8):
            raise AugmentError(
                f"MixUp: got {tuple(x.shape)} {x.dtype}, wanted floating point or uint8: "
                "labels cannot be averaged; CutMix mixes masks"
            )
        wide = widened(x)
        share = each(params.share, x).to(wide.dtype)
        mixed = wide * share + wide[params.partner] * (1.0 - share)
        return torch.where(each(params.active, x), narrowed(mixed, x.dtype), x)


class CutMix(Mixing):
    """Replace a box of each sample by the same box of another of the batch; masks, of any dtype, too."""

    def __init__(self, alpha: float = 1.0, p: float = 1.0, *, num_classes: int | None = None) -> None:
        super().__init__(alpha, p, num_classes)

    def choose(self, x: Tensor, draws: Draws, params: MixParams) -> CutParams:
        """The box takes about 1 - Beta(alpha, alpha) of the places, equal shares of all axes, wherever it fits.

        The share that counts is that of the places it leaves.
        """
        size = tuple(x.shape[2:])
        side = (1.0 - params.share) ** (1.0 / len(size))
        widths = [torch.where(params.active, (side * length).round().to(torch.int64), 0) for length in size]
        starts = [draws.whole(3 + axis, size[axis] - width + 1) for axis, width in enumerate(widths)]
        taken = torch.ones_like(params.share)
        for length, width in zip(size, widths, strict=True):
            taken = taken * (width / length)
        return CutParams(
            params.active, params.partner, 1.0 - taken, torch.stack(starts, dim=1), torch.stack(widths, dim=1)
        )

    def change(self, x: Tensor, params: CutParams) -> Tensor:
        """The same box of all channels."""
        is_inside = inside_boxes(tuple(x.shape[2:]), params.start, params.width)
        return torch.where(is_inside[:, None], x[params.partner], x)


def _partners(ranks: Tensor) -> Tensor:
    """(B,) random numbers in, the position of another sample for each out: its neighbour in their order."""
    order = ranks.argsort(stable=True)
    return torch.empty_like(order).scatter(0, order, order.roll(1))
