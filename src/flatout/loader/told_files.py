"""ToldFiles: samples that are read by calls one by one are named to the system ahead, by their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.loader.places import Places
from flatout.loader.pread import Files
from flatout.loader.ranges import split_ranges
from flatout.store import StoreReader
from flatout.store.metadata import SHARD_FOLDER
from flatout.types import Array, FieldSpec


@dataclass(frozen=True)
class ToldFiles:
    """One ragged or compressed field of a split. Several threads may call at once."""

    files: Files
    paths: list[Path]
    shards: Array
    ranges: Array
    """First byte and end of each sample: 16 bytes a sample."""

    @classmethod
    def of(cls, store: StoreReader, spec: FieldSpec, places: Places, files: Files) -> ToldFiles:
        paths = [store.folder / SHARD_FOLDER / meta.file for meta in store.meta.shards]
        return cls(files, paths, places.shards, split_ranges(store, spec, places))

    def announce(self, positions: Array) -> None:
        """Ask the system to fetch these samples; returns at once."""
        shards, ranges = self.shards[positions].tolist(), self.ranges[positions].tolist()
        for shard, (start, stop) in zip(shards, ranges, strict=True):
            if stop > start:  # a length of 0 would mean: up to the end of the file
                self.files.announce(self.paths[shard], start, stop - start)
