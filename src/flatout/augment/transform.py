"""Transform: draw parameters for a whole batch, then apply them; what every augmentation shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flatout.augment.checks import check_keys, check_signal, checked_share
from flatout.augment.draws import Draws
from flatout.augment.keys import SampleKeys, random_keys

_HALF = (torch.float16, torch.bfloat16)


class Augmentation(nn.Module):
    """(B, C, T) in, the same shape, dtype and device out; the very same tensor in `eval()`.

    `params = t.sample(x, keys)` and `y = t.apply(x, params)` are what `t(x, keys)` does in training; they may
    be called apart, to look at the parameters or to use them again. Without keys a generator decides.
    """

    def forward(
        self, x: Tensor, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The augmented batch.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point, or the keys do not belong to it.
        """
        if not self.training:
            return x
        return self.change(x, self.sample(x, keys, generator))

    def sample(
        self, x: Tensor, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> Any:
        """Parameters for each sample of `x`, of which only shape, dtype and device count.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point, or the keys do not belong to it.
        """
        return self.draw(x, self.keys_for(x, keys, generator))

    def apply(self, x: Tensor | Callable[[nn.Module], None], params: Any = None) -> Any:
        """`x` changed as the parameters say, in `eval()` too: they have been drawn.

        A function in place of `x` is what `nn.Module.apply` takes, so that models that hold an augmentation can
        still be initialised with it.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point.
        """
        if not isinstance(x, Tensor):
            return super().apply(x)
        self.check(x, type(self).__name__)
        return self.change(x, params)

    def check(self, x: Tensor, owner: str) -> None:
        """Refuse, in the name of `owner`, what this cannot take.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point.
        """
        check_signal(owner, x)

    def keys_for(self, x: Tensor, keys: SampleKeys | None, generator: torch.Generator | None) -> SampleKeys:
        """The keys given, checked, or new ones from the generator."""
        self.check(x, type(self).__name__)
        if keys is None:
            return random_keys(x.shape[0], x.device, generator)
        check_keys(type(self).__name__, keys, x)
        return keys

    def draw(self, x: Tensor, keys: SampleKeys) -> Any:
        """Parameters of this augmentation; a named tuple of (B, ...) tensors."""
        raise NotImplementedError

    def like(self, x: Tensor) -> Tensor:
        """A tensor of the shape that `x` has afterwards; its values do not count."""
        return x

    def change(self, x: Tensor, params: Any) -> Tensor:
        """Apply them."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The settings, for `print`."""
        public = ((name, value) for name, value in vars(self).items() if not name.startswith("_"))
        return ", ".join(f"{name}={value}" for name, value in public if name not in ("training", "num_draws"))


class Transform(Augmentation):
    """One transform that changes each sample with probability `p`.

    A subclass says how many draws it wants beside that one, makes parameters of them (`choose`) and applies
    these to every sample (`alter`), in float32 or float64.
    """

    num_draws = 0

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = checked_share("p", p)

    def forward(
        self, x: Tensor, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The batch with a share `p` of its samples changed.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point, or the keys do not belong to it.
        """
        return super().forward(x, keys, generator) if self.p > 0 else x

    def draw(self, x: Tensor, keys: SampleKeys) -> Any:
        """The parameters, with `active` saying which samples are changed."""
        draws = Draws(keys, 1 + self.num_draws)
        return self.choose(x, draws, draws.chance(0, self.p))

    def change(self, x: Tensor, params: Any) -> Tensor:
        """Every sample changed, then the inactive ones taken back as they were, bit for bit."""
        if x.shape[0] == 0:  # MKL's FFT refuses an empty batch
            return x
        # Half precision is widened: spectra and interpolation would lose most of their digits in it.
        wide = x.to(torch.float32) if x.dtype in _HALF else x
        changed = self.alter(wide, params).to(x.dtype)
        return torch.where(params.active[:, None, None], changed, x)

    def choose(self, x: Tensor, draws: Draws, active: Tensor) -> Any:
        """Parameters for all samples from columns 1 .. num_draws of `draws`."""
        raise NotImplementedError

    def alter(self, x: Tensor, params: Any) -> Tensor:
        """All samples changed, the inactive ones too."""
        raise NotImplementedError
