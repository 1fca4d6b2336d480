"""Values: whole samples of a ragged or compressed field as stored, flat, by position within the split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flatout.loader.announce import announce_stretches
from flatout.loader.cache import SampleCache
from flatout.loader.fixed import load_table
from flatout.loader.mapped import Extent, can_map, map_rows
from flatout.loader.places import Places
from flatout.loader.pread import Files
from flatout.loader.stored import StoredSamples
from flatout.store import StoreReader, layout
from flatout.types import Array, FieldSpec


class Values(Protocol):
    """A field of a split."""

    def whole(self, positions: Array) -> list[Array]:
        """All elements of each sample, flat; whoever asks does not write to them."""

    def announce(self, positions: Array) -> None:
        """These samples are wanted soon."""


@dataclass(frozen=True)
class RangeValues:
    """The flat values of all shards mapped into one range: a sample is a slice of it."""

    flat: Array
    starts: Array
    stops: Array

    def whole(self, positions: Array) -> list[Array]:
        flat = self.flat
        starts, stops = self.starts[positions].tolist(), self.stops[positions].tolist()
        return [flat[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def announce(self, positions: Array) -> None:
        announce_stretches(self.flat, self.starts[positions], self.stops[positions])


@dataclass(frozen=True)
class ShardValues:
    """One sample after the other from its shard: compressed ones, and those that are read by read calls."""

    samples: StoredSamples

    def whole(self, positions: Array) -> list[Array]:
        return [self.samples.read(position).reshape(-1) for position in positions.tolist()]

    def announce(self, positions: Array) -> None:
        self.samples.announce(positions)


def open_values(
    store: StoreReader,
    spec: FieldSpec,
    places: Places,
    files: Files | None = None,
    cache: SampleCache | None = None,
) -> Values:
    """The fastest reader that this field and system allow.

    Args:
        files: what the store is read with, if by calls; None: it is mapped.
        cache: where decompressed samples are kept.
    """
    if not spec.is_ragged or spec.compression != "none" or files is not None:
        return ShardValues(StoredSamples.of(store, spec, places, files, cache))
    shards = [store.shard(number) for number in range(len(store.meta.shards))]
    offsets = [shards[number].tables[layout.offsets_path(spec.name)] for number in store.announced()]
    extents = [
        Extent(shard.path, shard.offset_of(spec.name) or 0, int(edges[-1]))
        for shard, edges in zip(shards, offsets, strict=True)
    ]
    if not any(extent.num_rows for extent in extents) or not can_map(extents, spec.stored_dtype.itemsize):
        return ShardValues(StoredSamples.of(store, spec, places))
    mapped = map_rows(extents, spec.stored_dtype, ())
    first = mapped.first_row[places.shards]
    starts = first + load_table([edges[:-1] for edges in offsets], places)
    stops = first + load_table([edges[1:] for edges in offsets], places)
    return RangeValues(mapped.rows, starts.astype(np.int64), stops.astype(np.int64))
