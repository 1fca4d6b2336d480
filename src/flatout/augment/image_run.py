"""ImageRun: one field on its way through a chain, resampled only where its values are needed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flatout.augment.image_transform import Intensity, Kind, Padding, Spatial, warped
from flatout.augment.transform import Augmentation
from flatout.augment.warp import Warp, followed_by


class ImageRun:
    """One field on its way through a chain; movements are collected until something needs the values."""

    def __init__(self, x: Tensor, kind: Kind, is_own: bool) -> None:
        self.x = x
        self.kind = kind
        self.is_own = is_own
        self.warp: Warp | None = None
        self.padding: Padding | None = None

    def move(self, member: Spatial, params: Any) -> None:
        """Note where everything goes; resample only what cannot wait for it."""
        if self.warp is not None and not self._can_follow(member):
            self._resample()
        size = tuple(self.x.shape[2:]) if self.warp is None else self.warp.size
        step = member.warp(params, size)
        self.warp = step if self.warp is None else followed_by(self.warp, step)
        self.padding = member.padding or self.padding

    def alter(self, member: Augmentation, params: Any) -> None:
        """Change the values, in place if they are the run's own."""
        self._resample()
        if isinstance(member, Intensity):
            made = member.alter(self.x, params, self.is_own)
            self.x, self.is_own = made, self.is_own or made is not self.x
        else:
            self.x, self.is_own = member.change(self.x, params), False

    def finish(self) -> Tensor:
        """The field as it has become."""
        self._resample()
        return self.x

    def _can_follow(self, member: Spatial) -> bool:
        is_bent = self.warp is not None and self.warp.moved is not None
        return not is_bent and (None in (self.padding, member.padding) or self.padding == member.padding)

    def _resample(self) -> None:
        if self.warp is not None:
            self.x, self.is_own = warped(self.x, self.warp, self.kind, self.padding), True
        self.warp = self.padding = None
