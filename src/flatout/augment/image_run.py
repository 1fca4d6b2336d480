"""ImageRun: one field on its way through a chain, resampled and altered only where its values are needed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flatout.augment.image_transform import Intensity, Kind, Padding, Spatial, warped
from flatout.augment.straight import Curve, Straight, straightened
from flatout.augment.transform import Augmentation
from flatout.augment.warp import Warp, followed_by


class ImageRun:
    """One field on its way through a chain; movements are collected until something needs the values, and so
    are straight curves behind them."""

    def __init__(self, x: Tensor, kind: Kind, is_own: bool) -> None:
        self.x = x
        self.kind = kind
        self.is_own = is_own
        self.warp: Warp | None = None
        self.padding: Padding | None = None
        self.curves: list[Curve] = []

    def move(self, member: Spatial, params: Any) -> None:
        """Note where everything goes; resample only what cannot wait for it."""
        if self.curves or (self.warp is not None and not self._can_follow(member)):
            self._catch_up()
        size = tuple(self.x.shape[2:]) if self.warp is None else self.warp.size
        step = member.warp(params, size)
        self.warp = step if self.warp is None else followed_by(self.warp, step)
        self.padding = member.padding or self.padding

    def alter(self, member: Augmentation, params: Any) -> None:
        """Change the values, in place if they are the run's own."""
        if isinstance(member, Straight) and type(member).alter is Straight.alter:  # not of a subclass of it
            self.curves.append(member.curve(params))
            if self.curves[-1].states is not None:
                self._catch_up()
            return
        self._catch_up()
        if isinstance(member, Intensity):
            self._become(member.alter(self.x, params, self.is_own))
        else:
            self.x, self.is_own = member.change(self.x, params), False

    def finish(self) -> Tensor:
        """The field as it has become."""
        self._catch_up()
        return self.x

    def _can_follow(self, member: Spatial) -> bool:
        is_bent = self.warp is not None and self.warp.moved is not None
        return not is_bent and (None in (self.padding, member.padding) or self.padding == member.padding)

    def _catch_up(self) -> None:
        if self.warp is not None:
            self.x, self.is_own = warped(self.x, self.warp, self.kind, self.padding), True
        if self.curves:
            self._become(straightened(self.x, self.curves, self.is_own))
        self.warp, self.padding, self.curves = None, None, []

    def _become(self, made: Tensor) -> None:
        self.x, self.is_own = made, self.is_own or made is not self.x
