"""What transforms of images and volumes share: three kinds of fields, and what each kind goes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flatout.augment.precision import narrowed, widened
from flatout.augment.transform import Transform
from flatout.augment.warp import Warp, resampled
from flatout.config.image_augmentation import Padding as Padding
from flatout.errors import AugmentError

Kind = Literal["image", "mask", "distance"]
"""An image is interpolated and changes its values; a mask moves by nearest neighbour and keeps its labels; a
distance map is interpolated, and continued at the border instead of filled with zeros: 0 would be a
distance."""


class ImageTransform(Transform):
    """(B, C, H, W) or (B, C, D, H, W) in, the same dtype and device out; the very same tensor in `eval()`.

    Images are of floating point or uint8, masks of any dtype, distance maps of floating point.
    """

    def apply(self, x: Tensor | Callable[[nn.Module], None], params: Any = None, kind: Kind = "image") -> Any:
        """`x`, a field of this kind, changed as the parameters say, in `eval()` too: they have been drawn.

        Raises:
            AugmentError: `x` is not (B, C, H, W) or (B, C, D, H, W), or of a dtype that this kind cannot have.
        """
        if not isinstance(x, Tensor):
            return super().apply(x)
        check_field(type(self).__name__, x, kind)
        return self.change(x, params, kind)

    def check(self, x: Tensor, owner: str) -> None:
        """Refuse what is no batch of images."""
        check_field(owner, x, "image")

    def change(self, x: Tensor, params: Any, kind: Kind = "image") -> Tensor:
        """Apply the parameters to a field of this kind."""
        raise NotImplementedError


class Spatial(ImageTransform):
    """Moves places; every field of a sample goes along."""

    padding: Padding | None = None
    """None: nothing can come from outside."""

    def change(self, x: Tensor, params: Any, kind: Kind = "image") -> Tensor:
        """One resampling."""
        return warped(x, self.warp(params, tuple(x.shape[2:])), kind, self.padding)

    def warp(self, params: Any, size: tuple[int, ...]) -> Warp:
        """What the parameters do to fields of this size."""
        raise NotImplementedError


class Intensity(ImageTransform):
    """Changes the values of images; masks and distance maps stay the tensors they are."""

    def change(self, x: Tensor, params: Any, kind: Kind = "image") -> Tensor:
        """Inactive samples come out equal to what they were."""
        if kind != "image":
            return x
        wide = widened(x)
        return narrowed(self.alter(wide, params, may_overwrite=wide is not x), x.dtype)

    def alter(self, x: Tensor, params: Any, may_overwrite: bool = False) -> Tensor:
        """A float32 or float64 image in, one with its active samples changed out; `x` may be it."""
        raise NotImplementedError


def warped(x: Tensor, warp: Warp, kind: Kind, padding: Padding | None) -> Tensor:
    """A field of this kind seen through a warp."""
    return resampled(x, warp, nearest=kind == "mask", border=padding == "border" or kind == "distance")


def each(values: Tensor, x: Tensor) -> Tensor:
    """(B,) in, (B, 1, ...) out: one value for all of a sample."""
    return values.view(-1, *(1,) * (x.dim() - 1))


def can_overwrite(x: Tensor, may_overwrite: bool) -> bool:
    """Whether results may go to the memory of `x`: not where a gradient may still need its values."""
    return may_overwrite and not (x.requires_grad and torch.is_grad_enabled())


def check_field(owner: str, x: Tensor, kind: Kind) -> None:
    """Refuse what is no field of this kind.

    Raises:
        AugmentError: the kind is unknown, or shape or dtype do not fit it.
    """
    check_kind(owner, kind)
    fits = kind == "mask" or x.is_floating_point() or (kind == "image" and x.dtype == torch.uint8)
    if x.dim() not in (4, 5) or not fits or 0 in x.shape[1:]:
        dtypes = {"image": "floating point or uint8", "mask": "any dtype", "distance": "floating point"}[kind]
        raise AugmentError(
            f"{owner}: got {tuple(x.shape)} {x.dtype}, wanted (B, C, H, W) or (B, C, D, H, W) of {dtypes}: "
            "samples, channels, space; x[:, None] adds a channel"
        )


def check_kind(owner: str, kind: Kind) -> None:
    """Refuse a kind that there is not.

    Raises:
        AugmentError: it is none of the three.
    """
    if kind not in get_args(Kind):
        raise AugmentError(f"{owner}: kind: got {kind!r}, wanted one of {', '.join(get_args(Kind))}")


def checked_padding(padding: Padding) -> Padding:
    """One of the two.

    Raises:
        AugmentError: it is not.
    """
    if padding not in get_args(Padding):
        raise AugmentError(f"padding: got {padding!r}, wanted one of {', '.join(get_args(Padding))}")
    return padding


def checked_axes(name: str, axes: Sequence[int]) -> tuple[int, ...]:
    """Different axes of space, counted from the last.

    Raises:
        AugmentError: there are none, or others.
    """
    if len(set(axes)) != len(axes) or not axes or any(axis not in (-3, -2, -1) for axis in axes):
        raise AugmentError(
            f"{name}: got {tuple(axes)}, wanted different ones of -3 (depth), -2 (height), -1 (width)"
        )
    return tuple(axes)


def check_axes(owner: str, axes: tuple[int, ...], x: Tensor) -> None:
    """Refuse axes that these images do not have.

    Raises:
        AugmentError: an axis is not one of space.
    """
    num_axes = x.dim() - 2
    if min(axes) < -num_axes:
        raise AugmentError(
            f"{owner}: axes: got {axes} for {tuple(x.shape)}, wanted axes from {-num_axes} to -1: "
            "-1 is the width, -2 the height, -3 the depth"
        )
