"""FastDataset: a prepared split as a map-style dataset, for any torch DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from torch.utils.data import Dataset

from flatout.errors import ConfigError, LoaderError
from flatout.loader.collate import Collate
from flatout.loader.fetch import KEY, ReadRule
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.memory import check_preload
from flatout.loader.preload import preload
from flatout.loader.samples import SampleReader, mean_bytes
from flatout.store import StoreReader
from flatout.types import Array


class FastDataset(Dataset[Any]):
    """Samples of one split (all by default) as dicts of tensors, restored, with `key` (int64) beside them.

    For a per-sample Python transform, or a sampler of your own; without these `FastDataLoader` is faster.
    Travels to spawned workers as the store's path, and is safe to fork.

    Args:
        store: an open store, or its folder.
        split: train, val, test, ...; None takes every sample.
        fields: names of the fields to read; all by default.
        transform: sample in, sample out; runs on each sample when it is read.
        cache_in_memory: read the split into the page cache now, and keep decompressed copies of compressed
            fields. Spawned workers decompress for themselves.
        use_gpu_augment: samples are augmented in batches on the device, so `transform` is not run here.
        view_cache_refresh_epochs: how long a `ViewBank` of this dataset uses a set of views.
        crc: when a sample's checksum is compared: the `first` time it is read, `always`, or `off`.
        io: `mmap`, `pread`, or `auto`: by where the store lies.
        machine: what `cache_in_memory` must fit into; this one by default.

    Raises:
        ConfigError: there is no such split or field.
        LoaderError: `cache_in_memory` does not fit.

    Example:
        >>> dataset = FastDataset("store", split="train")                           # doctest: +SKIP
        >>> loader = DataLoader(dataset, batch_size=64, shuffle=True)               # doctest: +SKIP
    """

    def __init__(
        self,
        store: StoreReader | str | Path,
        split: str | None = None,
        *,
        fields: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        cache_in_memory: bool = False,
        use_gpu_augment: bool = False,
        view_cache_refresh_epochs: int = 5,
        crc: str = "first",
        io: str = "auto",
        machine: Machine | None = None,
    ) -> None:
        self.store = store if isinstance(store, StoreReader) else StoreReader(store)
        self.split = split
        self.fields = tuple(checked_fields(self.store, fields))
        self.transform = transform
        self.cache_in_memory = cache_in_memory
        self.use_gpu_augment = use_gpu_augment
        self.view_cache_refresh_epochs = view_cache_refresh_epochs
        self._rule = ReadRule(crc=crc, io=io)
        self.positions = split_positions(self.store, split)
        self._reader: SampleReader | None = None
        if cache_in_memory:
            self._fill(machine or describe_machine(look_for_gpu=False))

    @property
    def read_rule(self) -> ReadRule:
        """How a loader reads the same samples.

        Raises:
            ConfigError: there is a transform of single samples, which a loader does not run.
        """
        if self.transform is not None and not self.use_gpu_augment:
            raise ConfigError(
                "FastDataLoader makes whole batches and would not run the dataset's transform. Give the "
                "dataset to a torch DataLoader, or transform batches"
            )
        return replace(self._rule, fields=self.fields)

    @property
    def sample_bytes(self) -> int:
        """Mean bytes of a sample as stored."""
        return mean_bytes(self.store, self.positions, self.fields)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One sample; negative indices count from the end.

        Raises:
            IndexError: there is no such sample. StoreCorruptError: its bytes are damaged.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Several samples with one gather a field: what a DataLoader calls for a batch."""
        samples: list[Any] = list(self._open().read(self._positions(indices)))
        if self.transform is None or self.use_gpu_augment:
            return samples
        return [self.transform(sample) for sample in samples]

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A `collate_fn` for fields whose samples differ in length: padded with zeros to the longest of the
        batch, the lengths beside them as `NAME_length`. Others are stacked as torch does it."""
        return Collate({name: self.store.fields[name] for name in self.fields})(samples)

    def __getstate__(self) -> dict[str, Any]:
        store = {"store": self.store.folder, "_index": self.store.meta.index}
        return {**self.__dict__, "_reader": None, "positions": None, **store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        index = state.pop("_index")
        self.__dict__.update(state)
        self.store = StoreReader(state["store"])
        if self.store.meta.index != index:
            raise LoaderError(
                f"{self.store.folder} was prepared again while a process that reads it was starting: "
                "its samples have other numbers now. Start the training again"
            )
        self.positions = split_positions(self.store, self.split)

    def _open(self) -> SampleReader:
        if self._reader is None:
            self._reader = SampleReader(self.store, self.positions, self.fields, self._rule)
        return self._reader

    def _positions(self, indices: Sequence[SupportsIndex]) -> Array:
        """Positions within the split, none negative."""
        wanted = np.array([operator.index(index) for index in indices], np.int64)
        found = np.where(wanted < 0, wanted + len(self), wanted)
        outside = (found < 0) | (found >= len(self))
        if outside.any():
            raise IndexError(f"sample {wanted[outside][0]} of a dataset with {len(self):,} samples")
        return found

    def _fill(self, machine: Machine) -> None:
        what = f"cache_in_memory of split '{self.split}'" if self.split else "cache_in_memory"
        packed = [name for name in self.fields if self.store.fields[name].compression != "none"]
        copies = mean_bytes(self.store, self.positions, packed) * len(self)
        check_preload(copies, machine, what)
        preload(self.store, self.positions, machine, what, self.fields)
        self._open().keep()


def split_positions(store: StoreReader, split: str | None) -> Array:
    """Positions of a split's samples in the store; all without a split.

    Raises:
        ConfigError: the split has no samples.
    """
    if split is None:
        return np.arange(len(store))
    found = store.positions(split)
    if not len(found):
        raise ConfigError(
            f"{store.folder} has no samples in split '{split}'; it has: {', '.join(store.meta.splits)}"
        )
    return found


def checked_fields(store: StoreReader, fields: Sequence[str] | None) -> Sequence[str]:
    """The fields that are read; all by default.

    Raises:
        ConfigError: the store has no such field, or one that clashes with `key`.
    """
    if KEY in store.fields:
        raise ConfigError(f"a field called '{KEY}' clashes with what every sample has; rename it")
    if fields is None:
        return list(store.fields)
    if unknown := [name for name in fields if name not in store.fields]:
        raise ConfigError(f"{store.folder} has no field '{unknown[0]}'; it has: {', '.join(store.fields)}")
    return fields
