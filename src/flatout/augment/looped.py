"""LoopedTransform: a transform with a compiled loop for batches in the host's memory."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from flatout.augment.host import host_kernels
from flatout.augment.transform import Transform


class LoopedTransform(Transform):
    """`loop` and `alter` do the same; the former has kernels and may look at values."""

    def change(self, x: Tensor, params: Any) -> Tensor:
        """Every active sample changed, the others as they were, bit for bit."""
        kernels = self._kernels_for(x, params)
        return super().change(x, params) if kernels is None else self.loop(kernels, x.contiguous(), params)

    def loop(self, kernels: ModuleType, x: Tensor, params: Any) -> Tensor:
        """A contiguous (B, C, T) float32 batch in, a new one out; inactive samples come as they were."""
        raise NotImplementedError

    def _kernels_for(self, x: Tensor, params: Any) -> ModuleType | None:
        # Kernels do not check bounds: parameters of another batch go to torch, which says what is wrong.
        if x.dtype != torch.float32 or len(x) == 0 or any(len(value) != len(x) for value in params):
            return None
        return host_kernels(x, *params)
