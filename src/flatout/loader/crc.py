"""Checksums at read time: each sample's bytes are compared with their crc the first time they are delivered.

What has been seen once is not compared again (`first`), or every time (`always`): disk, page cache and copy
are checked, and after the first epoch `first` costs one look at a counter. The index is believed as little:
the row that it names must be of the sample that it names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flatout.errors import StoreCorruptError
from flatout.loader.places import Places
from flatout.store import ShardReader, StoreReader, layout
from flatout.store.checks import crc32c
from flatout.types import Array, FieldSpec


class _Tables(NamedTuple):
    """What a shard says of its samples."""

    key_hashes: Array
    crcs: Array | None
    """Of each sample; None: small samples share them, a block at a time."""


class CrcCheck:
    """The checks of one field of a split. Threads may share it: at worst two check the same sample."""

    def __init__(self, store: StoreReader, spec: FieldSpec, places: Places, *, always: bool = False) -> None:
        self._store = store
        self._spec = spec
        self._places = places
        self._always = always
        self._seen = np.zeros(len(places), bool)
        self._good_blocks: set[tuple[int, int]] = set()
        """Shard and number of blocks that were compared; small samples share them."""
        self._is_done = False
        self._known: dict[int, _Tables] = {}

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to compare."""
        self._is_done = self._is_done or (not self._always and bool(self._seen.all()))
        return self._is_done

    def bad_rows(self, positions: Array, samples: Any) -> list[int]:
        """Places in this batch whose bytes are not what was written; `samples[i]` is as stored."""
        if self._is_done:
            return []
        fresh = np.arange(len(positions)) if self._always else np.flatnonzero(~self._seen[positions])
        bad = self._bad_of(fresh, positions[fresh], samples)
        good = fresh[~np.isin(fresh, bad)] if bad else fresh
        self._seen[positions[good]] = True  # never of a bad one, be it for a moment: others may look
        # Looked at only where nothing was new: a scan a batch would cost as much as the first epoch itself.
        self._is_done = not self._always and not len(fresh) and bool(self._seen.all())
        return bad

    def _bad_of(self, fresh: Array, positions: Array, samples: Any) -> list[int]:
        """Those of the fresh places that are bad. A sample of 16 KB takes 4 us, of which 2.4 are its crc."""
        shards, rows = self._places.shards[positions].tolist(), self._places.rows[positions].tolist()
        named = self._store.numbers["key_hash"][self._places.positions[positions]].tolist()
        bad = []
        for at, shard, row, key_hash in zip(fresh.tolist(), shards, rows, named, strict=True):
            known = self._known.get(shard) or self._look_at(shard)
            if known.key_hashes[row] != key_hash:
                bad.append(at)
            elif known.crcs is None:
                if not self._blocks_are_good(shard, self._store.shard(shard), row):
                    bad.append(at)
            elif known.crcs[row] != crc32c(samples[at]):
                bad.append(at)
        return bad

    def _look_at(self, number: int) -> _Tables:
        shard = self._store.shard(number)
        has_blocks = shard.has_block_crcs(self._spec.name)
        crcs = None if has_blocks else shard.tables[layout.crc_path(self._spec.name)]
        known = self._known[number] = _Tables(shard.tables[layout.KEY_HASH], crcs)
        return known

    def require(self, positions: Array, samples: Any) -> None:
        """Raise for the first bad sample of the batch, if there is one."""
        for at in self.bad_rows(positions, samples)[:1]:
            raise self.error(int(positions[at]))

    def error(self, position: int) -> StoreCorruptError:
        """What to raise for a bad sample: shard, sample, field, and how to mend it."""
        shard, row = self._find(position)
        if not self._is_named(position, shard, row):
            return shard.damaged(f"the index has another sample at row {row}, where it has '{shard.key(row)}'")
        return shard.damaged_sample(self._spec.name, row, "its bytes do not match their checksum")

    def _find(self, position: int) -> tuple[ShardReader, int]:
        return self._store.shard(int(self._places.shards[position])), int(self._places.rows[position])

    def _is_named(self, position: int, shard: ShardReader, row: int) -> bool:
        """Whether index and shard have the same key."""
        named = self._store.numbers["key_hash"][self._places.positions[position]]
        return bool(shard.tables[layout.KEY_HASH][row] == named)

    def _blocks_are_good(self, number: int, shard: ShardReader, row: int) -> bool:
        """Small samples share a crc: the blocks that hold this one are compared where they stand."""
        return all(self._block_is_good(number, shard, at) for at in shard.blocks(self._spec.name, row))

    def _block_is_good(self, number: int, shard: ShardReader, at: int) -> bool:
        if (number, at) in self._good_blocks and not self._always:
            return True
        is_good = shard.block_is_good(self._spec.name, at)
        if is_good:
            self._good_blocks.add((number, at))
        return is_good
