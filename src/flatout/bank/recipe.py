"""ViewRecipe: samples and their keys in, views and their parts out; a pure function of seed, epoch and key."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.augment import SampleKeys, draw_keys, split_substructures_batch
from flatout.augment.transform import Augmentation
from flatout.bank.seeded import seeded
from flatout.errors import AugmentError

SampleTransform = Callable[..., Any]
"""(C, T) array in, array out; with a parameter `rng` it gets a NumPy generator. Anything that runs on a CPU."""


@dataclass(frozen=True)
class ViewRecipe:
    """How views are made; travels to the processes that make them.

    View v of a sample depends on (seed, epoch, sample key, v) alone. `transform` runs sample by sample, with
    Python's, NumPy's and torch's global streams set for each view; then comes `chain`, on whole batches.
    """

    transform: SampleTransform | None = None
    chain: Augmentation | None = None
    seed: int = 0
    num_views: int = 2
    num_substructures: int = 4
    """Parts that each view is cut into, kept beside it; 0: none."""

    def __post_init__(self) -> None:
        if self.num_views < 1 or self.num_substructures < 0:
            raise AugmentError(
                f"got num_views {self.num_views} and num_substructures {self.num_substructures}, wanted at "
                "least 1 and 0"
            )
        if self.transform is None and self.chain is None:
            raise AugmentError("a recipe for views needs a transform or a chain; both are absent")
        if self.chain is not None:  # a copy: the caller's own may be on a device, or go into eval()
            object.__setattr__(self, "chain", copy.deepcopy(self.chain).to("cpu").train())

    @property
    def is_batched(self) -> bool:
        """Whether all of it works on whole batches."""
        return self.transform is None

    @property
    def names(self) -> list[str]:
        """What `make` gives: view1, view2, ..., subs1, subs2, ..."""
        numbers = range(1, self.num_views + 1)
        return [f"view{n}" for n in numbers] + [f"subs{n}" for n in numbers if self.num_substructures]

    def make(self, samples: Tensor, hashes: Tensor, epoch: int) -> dict[str, Tensor]:
        """(B, C, T) and (B,) sample keys in; viewN (B, C, T) and subsN (B, S, C, L) out.

        Raises:
            AugmentError: the samples are no signals, or the transform gave something that cannot be a view.
        """
        keys = draw_keys(hashes, seed=self.seed, epoch=epoch)
        views = [self._view(samples, keys.view(number)) for number in range(self.num_views)]
        found = {f"view{number}": view for number, view in enumerate(views, start=1)}
        if self.num_substructures:
            _check_parts(views[0])
            for number, view in enumerate(views, start=1):
                found[f"subs{number}"] = split_substructures_batch(view, self.num_substructures)
        return found

    def _view(self, samples: Tensor, keys: SampleKeys) -> Tensor:
        if self.transform is not None:
            samples = torch.stack(list(self._transformed(samples, keys)))
        if self.chain is None:
            return samples
        with torch.no_grad():
            return self.chain(samples, keys)  # type: ignore[no-any-return]

    def _transformed(self, samples: Tensor, keys: SampleKeys) -> Iterator[Tensor]:
        assert self.transform is not None
        wants_rng = "rng" in _parameters(self.transform)
        for sample, state in zip(samples, keys.states.tolist(), strict=True):
            with seeded(state) as rng:
                run = partial(self.transform, rng=rng) if wants_rng else self.transform
                yield _as_view(run(sample.numpy().copy()), sample)


def _parameters(function: SampleTransform) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C do not tell
        return frozenset()


def _as_view(made: Any, sample: Tensor) -> Tensor:
    """In the dtype of a sample of floating point; whole numbers may have become any other."""
    if not isinstance(made, Tensor):
        array = np.asarray(made)
        if array.dtype.kind not in "fiu":
            raise AugmentError(f"the transform gave {type(made).__name__} of {array.dtype}, wanted an array")
        made = torch.from_numpy(np.array(array))  # a copy: it may run backwards, or be the sample itself
    if sample.is_floating_point():
        dtype = sample.dtype
    else:  # a share of a whole number would be cut off
        dtype = torch.float32 if made.is_floating_point() else made.dtype
    found: Tensor = made.detach().to("cpu", dtype)
    return found


def _check_parts(view: Tensor) -> None:
    if view.dim() != 3:
        raise AugmentError(
            f"got views of {tuple(view.shape[1:])}, wanted (C, T) to cut parts of: stretches of time. "
            "num_substructures 0 leaves them out (--num-substructures 0)"
        )


def as_chain(found: Any) -> Augmentation:
    """An augmentation, or a class or function that makes one without arguments, in; the augmentation out.

    Raises:
        AugmentError: it is something else.
    """
    try:
        made = found if isinstance(found, Augmentation) else found()
    except TypeError as error:
        raise AugmentError(f"transforms cannot be made without arguments: {error}") from error
    if not isinstance(made, Augmentation):
        raise AugmentError(f"got a {type(made).__name__}, wanted transforms of flatout.augment")
    return made
