"""ViewDataset: a bank's views as a map-style dataset, for any torch DataLoader and its workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch.utils.data import Dataset

from flatout.bank.bank import ViewBank
from flatout.bank.diversity import Diversity
from flatout.bank.fields import find_signal
from flatout.bank.place import PrivateFolder
from flatout.bank.served import Served, tell_served
from flatout.errors import LoaderError
from flatout.loader import FastDataset
from flatout.store import StoreReader


class ViewDataset(Dataset[dict[str, torch.Tensor]]):
    """Samples of one split as dicts with view1, view2, subs1, subs2, `key` and the other fields.

    Call `refresh_view_cache(epoch)` at the start of each epoch, in the process that iterates the DataLoader.
    Workers, persistent ones too, follow by themselves.

    Args:
        store, split: as of `FastDataset`.
        cache_in_memory: as of `FastDataset`; the views themselves are in memory unless there is a `folder`.
        use_gpu_augment: make no views; view1, view2, ... are the sample itself, to be augmented on the device.
        view_cache_refresh_epochs: epochs that a set of views is used for.
        bank: everything else that a `ViewBank` takes.

    Raises:
        ConfigError: there is no such split or field, or a setting is impossible.

    Example:
        >>> dataset = ViewDataset("store", "train", transform=my_filtfilt)          # doctest: +SKIP
        >>> for epoch in range(100):                                                # doctest: +SKIP
        ...     dataset.refresh_view_cache(epoch)
        ...     for batch in loader: step(batch["view1"], batch["view2"])
    """

    def __init__(
        self,
        store: StoreReader | str | Path,
        split: str | None = None,
        *,
        field: str | None = None,
        cache_in_memory: bool = False,
        use_gpu_augment: bool = False,
        view_cache_refresh_epochs: int | None = None,
        **bank: Any,
    ) -> None:
        store = store if isinstance(store, StoreReader) else StoreReader(store)
        self.field = find_signal(store, field)
        self.use_gpu_augment = use_gpu_augment
        fields = list(store.fields) if use_gpu_augment else [n for n in store.fields if n != self.field]
        self._samples = FastDataset(store, split, fields=fields, cache_in_memory=cache_in_memory)
        self._num_views = int(bank.get("num_views", 2))
        self._bank: ViewBank | None = None
        self._served: Served | None = None
        self._place: PrivateFolder | None = None
        if not use_gpu_augment:
            every = view_cache_refresh_epochs
            self._bank = ViewBank(store, split, field=self.field, view_cache_refresh_epochs=every, **bank)
            self._place = PrivateFolder(0)
            self._served = Served(self._place.path, self._bank.folder)

    def refresh_view_cache(self, epoch: int, force: bool = False) -> None:
        """Serve the views of this epoch from now on, drawn anew if it is their turn, or with `force`.

        Raises:
            LoaderError: this is a worker's copy of the dataset, or the views could not be made.
        """
        if self.use_gpu_augment:
            return
        if self._bank is None:
            raise LoaderError("refresh_view_cache is called where the DataLoader is iterated, not in a worker")
        self._bank.refresh_view_cache(epoch, force)
        assert self._place is not None
        tell_served(self._place.path, self._bank.drawn_in(epoch))

    @property
    def bank(self) -> ViewBank | None:
        """What makes the views; None in a worker, and where the device makes them."""
        return self._bank

    @property
    def diversity(self) -> Diversity | None:
        """How many distinct views each sample has been seen as; None where the bank is not here."""
        return None if self._bank is None else self._bank.diversity

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: SupportsIndex) -> dict[str, torch.Tensor]:
        """One sample; negative indices count from the end.

        Raises:
            IndexError: there is no such sample. LoaderError: there are no views yet.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, torch.Tensor]]:
        """Several samples with one gather a field: what a DataLoader calls for a batch."""
        samples: list[dict[str, torch.Tensor]] = self._samples.__getitems__(indices)
        if self._served is None:
            return [self._as_views(sample) for sample in samples]
        views = self._served.generation().fetch(torch.stack([sample["key"] for sample in samples]))
        rows = zip(*views.values(), strict=True)
        return [
            {**sample, **dict(zip(views, row, strict=True))} for sample, row in zip(samples, rows, strict=True)
        ]

    def _as_views(self, sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        signal = sample.pop(self.field)
        return {**sample, **{f"view{number}": signal for number in range(1, self._num_views + 1)}}

    def close(self) -> None:
        """Stop making views and give their memory back."""
        if self._bank is not None:
            self._bank.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bank": None, "_place": None}
