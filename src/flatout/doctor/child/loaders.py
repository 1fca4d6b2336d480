"""SeenLoader: a DataLoader of the script: its settings, and whether the script trains on its batches."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from flatout.doctor.ceiling.batches import bytes_of

NUM_WEIGHED = 3
"""Batches whose bytes are counted."""


class SeenLoader:
    """One loader, or several that a script makes anew for each epoch, with the dataset or without."""

    def __init__(self, number: int, loader: DataLoader[Any], file: str, line: int) -> None:
        self.number = number
        self.loader = loader
        self.place = f"{file}:{line}" if file else ""
        self.num_batches = 0
        self.num_followed = 0
        self.num_without_grad = 0
        self.is_pending = False
        """A batch was handed out, and neither the next one nor a backward came since."""
        self._num_together = 0
        """Batches that were asked for one after the other, and no backward between them."""
        self._num_backward = 0
        """Backwards since then."""
        self.num_epochs = 0
        self.position = 0
        """Batches of this epoch so far."""
        self.epoch_steps: int | None = None
        self.batch_bytes = 0

    @property
    def is_train(self) -> bool:
        """Most of its batches are followed by a backward before the next one."""
        asked = self.num_batches - self.is_pending
        return 2 * self.num_followed > max(asked - 1, 1) and 2 * self.num_without_grad < max(
            self.num_batches, 1
        )

    def is_followed_by(self, made: SeenLoader) -> bool:
        """Whether another is this one made anew: alike, read from by the same line, and this one is dropped."""
        is_alike = self.place == made.place and _kind_of(self.loader) == _kind_of(made.loader)
        # Held by this object, and by the call; with persistent workers also by its own iterator.
        num_known = 2 + (self.loader._iterator is not None)
        return is_alike and bool(self.place) and sys.getrefcount(self.loader) <= num_known

    def begin_epoch(self) -> None:
        """`iter(loader)` was called."""
        self.count_group()
        self.drop_group()
        self.num_epochs += 1
        self.position = 0

    def hand_out(self, batch: Any, has_grad: bool) -> None:
        """One more batch for the script."""
        self.num_batches += 1
        self._num_together += 1
        self.position += 1
        self.is_pending = True
        self.num_without_grad += not has_grad
        if self.num_batches <= NUM_WEIGHED:
            self.batch_bytes = max(self.batch_bytes, bytes_of(batch))

    def note_backward(self) -> None:
        """The script learns from the last batch."""
        if self.is_pending:
            self.num_followed += 1
            self.is_pending = False
        self._num_backward += self._num_together > 0

    def count_group(self) -> None:
        """Several batches that came first were then trained on one by one, as by trainers that accumulate."""
        if self._num_backward:  # the first of them was counted at once
            self.num_followed += min(self._num_backward, self._num_together) - 1
            self.drop_group()

    def drop_group(self) -> None:
        """The epoch is over, or another loader is asked: backwards that come now are not for these batches."""
        self._num_together = self._num_backward = 0

    def describe(self) -> dict[str, Any]:
        """Settings and counts as plain values."""
        loader = self.loader
        return {
            "number": self.number,
            "is_train": self.is_train,
            "num_batches": self.num_batches,
            "num_epochs": self.num_epochs,
            "epoch_steps": self.epoch_steps or steps_of(loader),
            "batch_bytes": self.batch_bytes or None,
            "place": self.place,
            "num_workers": loader.num_workers,
            "batch_size": _batch_size(loader),
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "pin_memory": bool(loader.pin_memory),
            "start_method": _start_method(loader),
            "is_iterable": isinstance(loader.dataset, IterableDataset),
            "num_samples": length_of(loader.dataset),
            "dataset": f"{type(loader.dataset).__module__}.{type(loader.dataset).__qualname__}",
        }


def key_of(loader: DataLoader[Any]) -> tuple[Any, ...]:
    """The same for loaders that a script makes anew from one dataset."""
    return (id(loader.dataset), *_kind_of(loader))


def _kind_of(loader: DataLoader[Any]) -> tuple[Any, ...]:
    kinds = type(loader.dataset), type(loader.sampler).__name__
    return (*kinds, loader.num_workers, loader.batch_size, loader.persistent_workers)


def steps_of(loader: DataLoader[Any]) -> int | None:
    """Batches of an epoch; an iterable dataset is not asked, because torch would remember that it was."""
    return None if isinstance(loader.dataset, IterableDataset) else length_of(loader)


def _batch_size(loader: DataLoader[Any]) -> int | None:
    size = loader.batch_size
    return getattr(loader.batch_sampler, "batch_size", None) if size is None else size


def length_of(sized: Any) -> int | None:
    """`len`, where there is one: it is code of the script's, which may raise anything."""
    try:
        return len(sized)
    except Exception:
        return None


def _start_method(loader: DataLoader[Any]) -> str | None:
    if not loader.num_workers:
        return None
    import torch.multiprocessing

    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method())
