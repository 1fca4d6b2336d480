"""Batches that a worker has ready: what their way to the training thread takes, and nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

from flatout.doctor.ceiling.batches import copy_of, tensors_of
from flatout.doctor.ceiling.sources import LoaderSource

NUM_SENT = 10_000
"""Batches of an epoch: more than anybody asks for."""


class Ready(Dataset[Any]):
    """Batches in memory; each is copied, as a collate function would have made it."""

    def __init__(self, kept: list[Any]) -> None:
        self._kept = kept

    def __len__(self) -> int:
        return NUM_SENT

    def __getitem__(self, index: int) -> Any:
        return copy_of(self._kept[index % len(self._kept)])


def unchanged(batch: Any) -> Any:
    """A collate function for what is a batch already."""
    return batch


def sent_source(base: LoaderSource, loader: DataLoader[Any], kept: list[Any]) -> LoaderSource | None:
    """A source of batches that one worker only sends; None where that cannot be.

    A worker that is not forked runs the script again, which one without workers may not be made for; and memory
    of a device, or for it, is not to be touched in a fork.
    """
    context = loader.multiprocessing_context or torch.multiprocessing
    if context.get_start_method() != "fork" or not all(_is_plain(each) for each in tensors_of(kept)):
        return None
    ready: DataLoader[Any] = DataLoader(
        Ready(kept),
        batch_size=None,
        collate_fn=unchanged,
        num_workers=1,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
    )
    source = base.like("sent", ready._get_iterator)
    with suppress(OSError, RuntimeError):
        source.next()  # the worker starts before the first block
        source.settle()
        return source
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and not tensor.is_pinned()
