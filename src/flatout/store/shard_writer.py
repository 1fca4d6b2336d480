"""ShardWriter: samples in, one immutable shard file out.

Peak memory is the shard itself: samples are kept as they come, or laid into slabs, and written one after
another, in file order, hashed on the way. The file is checked through libhdf5 before it gets its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from flatout.store import checks, layout, past_cache
from flatout.store.block import Block, EncodedBlock, are_plain, plain_digests, row_bytes
from flatout.store.column import ROOM_BYTES, Column, SlabColumn, Slabs
from flatout.store.compress import compress
from flatout.store.encode import encode, largest_error
from flatout.store.files import sync_file, sync_folder, temporary_beside
from flatout.store.metadata import FORMAT_VERSION, ShardMeta
from flatout.store.shard_file import check_through_libhdf5, in_file_order, write_hashed
from flatout.store.skeleton import DatasetPlan, Skeleton, lay_out
from flatout.types import Array, FieldSpec

PAST_CACHE_BYTES = 1 << 30
"""Shards of a run that writes so much go past the page cache. The first epoch of a smaller store comes at once,
and finds it in memory."""


@dataclass(slots=True)
class EncodedSample:
    """One sample as it will stand in the shard; nobody changes it. (To make a frozen one takes 1 us more.)"""

    key: str
    key_hash: int
    part: int
    """Number of the piece if the row gave several samples, else -1."""
    stored: Mapping[str, Array]
    scales: Mapping[str, tuple[float, float]]
    crcs: Mapping[str, int]

    @classmethod
    def of(
        cls,
        key: str,
        key_hash: int,
        part: int,
        stored: Mapping[str, Array],
        scales: Mapping[str, tuple[float, float]],
    ) -> EncodedSample:
        """With the crc of each stored array."""
        return cls(key, key_hash, part, stored, scales, {n: checks.crc32c(a) for n, a in stored.items()})

    @property
    def num_bytes(self) -> int:
        return sum([array.nbytes for array in self.stored.values()])

    def digest(self) -> int:
        """64-bit identity of the content: fields, dtypes, shapes, crcs, scales."""
        parts = {n: f"{a.dtype.str},{a.shape},{self.crcs[n]}" for n, a in self.stored.items()}
        for name, pair in self.scales.items():
            parts[f"{name}.scale"] = f"<f4,(2,),{checks.crc32c(np.array(pair, np.float32))}"
        return checks.sample_digest(parts)


class ShardWriter:
    """Collects encoded samples; `write` makes the file, once. `safe=False` (benchmarks only) checks nothing."""

    def __init__(self, fields: Sequence[FieldSpec], *, safe: bool = True, slabs: Slabs | None = None) -> None:
        """Without `slabs` samples stay in the memory that they come in: for whoever holds them anyway."""
        self.fields = fields
        self.num_bytes = 0
        self.largest_errors = {spec.name: 0.0 for spec in fields if spec.encoding != "none"}
        self._safe = safe
        self._keys: list[str] = []
        self._hashes: list[int] = []
        self._parts: list[int] = []
        self._digests: list[int] = []
        self._is_plain = are_plain(fields)
        """Whether digests follow from crcs: then they are made together, at the end."""
        self._slabs = slabs
        raw = [spec.name for spec in fields if spec.compression == "none"]
        self._columns = {name: Column() if slabs is None else SlabColumn(slabs) for name in raw}
        self._is_put = False
        self._samples: dict[str, list[Array]] = {s.name: [] for s in fields if s.compression != "none"}
        self._shapes: dict[str, list[tuple[int, ...]]] = {s.name: [] for s in fields if s.is_ragged}
        self._scales: dict[str, list[tuple[float, float]]] = {spec.name: [] for spec in fields}
        self._crcs: dict[str, list[int]] = {spec.name: [] for spec in fields}
        self._padded = [spec for spec in fields if spec.is_ragged and spec.compression != "none"]
        self._longest = {spec.name: 0 for spec in self._padded}

    def __len__(self) -> int:
        return len(self._keys)

    def encode(self, key: str, key_hash: int, part: int, arrays: Mapping[str, Array]) -> EncodedSample:
        """What `append` takes; nothing is kept yet, so a row of several samples can still be dropped.

        Raises:
            SampleError: a value does not fit the field's encoding.
        """
        stored: dict[str, Array] = {}
        scales: dict[str, tuple[float, float]] = {}
        for spec in self.fields:
            encoded, scale = encode(spec, arrays[spec.name])
            stored[spec.name] = np.asarray(encoded, order="C")  # ascontiguousarray makes () into (1,)
            if scale is not None:
                scales[spec.name] = scale
            if spec.encoding != "none":
                error = largest_error(spec, arrays[spec.name], encoded, scale)
                self.largest_errors[spec.name] = max(self.largest_errors[spec.name], error)
        if not self._safe:
            return EncodedSample(key, key_hash, part, stored, scales, dict.fromkeys(stored, 0))
        return EncodedSample.of(key, key_hash, part, stored, scales)

    def padded_bytes(self, samples: Sequence[EncodedSample]) -> int:
        """Bytes of the compressed ragged fields, padding included, if these samples joined the shard."""
        total = 0
        for spec in self._padded:
            longest = max(self._longest[spec.name], *(s.stored[spec.name].size for s in samples))
            total += longest * spec.stored_dtype.itemsize * (len(self) + len(samples))
        return total

    def append(self, sample: EncodedSample) -> None:
        """Keep an encoded sample."""
        self._keys.append(sample.key)
        self._hashes.append(sample.key_hash)
        self._parts.append(sample.part)
        if not self._is_plain:
            self._digests.append(sample.digest() if self._safe else 0)
        for name, array in sample.stored.items():
            (self._columns.get(name) or self._samples[name]).append(array)
            self._crcs[name].append(sample.crcs[name])
        for name, shapes in self._shapes.items():
            shapes.append(sample.stored[name].shape)
        for name, scale in sample.scales.items():
            self._scales[name].append(scale)
        for name in self._longest:
            self._longest[name] = max(self._longest[name], sample.stored[name].size)
        self.num_bytes += sample.num_bytes

    def block(self, most: int) -> Block:
        """Where the next samples of plain fields will stand, at most so many; `append_block` takes them."""
        sizes = {spec.name: row_bytes(spec) for spec in self.fields}
        rooms = {name: self._columns[name].room(size, most) for name, size in sizes.items()}
        fitting = [len(room) // sizes[name] for name, room in rooms.items() if room is not None]
        num_rows = min([most, *fitting])
        if 2 * num_rows < most:  # a slab's end: to check so few costs more than to copy many once more
            return Block(self.fields, most, dict.fromkeys(sizes))
        return Block(self.fields, num_rows, rooms)

    def append_block(self, block: EncodedBlock) -> None:
        """Keep a block of encoded samples; all fields are plain."""
        self._keys += block.keys
        self._hashes += block.key_hashes
        self._parts += [-1] * len(block.keys)
        for name, array in block.stored.items():
            column = self._columns[name]
            keep = column.collect if array.nbytes < ROOM_BYTES else column.append
            keep(array)
            self._crcs[name] += block.crcs[name]
        self.num_bytes += block.num_bytes

    def write(self, folder: Path, number: int) -> ShardMeta:
        """Write `NNNNNN-<hash>.h5` into `folder`, so that it lasts."""
        return self.put(folder, number).settle()

    def put(self, folder: Path, number: int, *, planned_bytes: float = 0.0) -> WrittenShard:
        """Hand every byte to the system; what is left to do waits for the disk, not for this process.

        Args:
            planned_bytes: of all samples of the run, before compression. If they are many, their shards go
                straight to the disk, so that this waits for it, too.
        """
        if self._is_put:
            raise AssertionError("a shard is written once: its samples are gone")
        self._is_put = True
        temporary = temporary_beside(folder / f"{number:06d}.h5")
        try:
            tables = self._tables()
            chunked = {s.name: self._compressed(s) for s in self.fields if s.compression != "none"}
            skeleton, data = self._lay_out(tables, chunked)
            is_large = planned_bytes * skeleton.size >= PAST_CACHE_BYTES * max(self.num_bytes, 1)
            digest = write_hashed(
                temporary,
                in_file_order(skeleton, data),
                safe=self._safe,
                past_cache=is_large and past_cache.suits(folder),
            )
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            taken = [slab for column in self._columns.values() for slab in column.clear()]
            if self._slabs is not None:
                self._slabs.give(taken)
        meta = ShardMeta(
            file=f"{number:06d}-{digest[:16]}.h5",
            xxh3=digest,
            size=skeleton.size,
            rows=len(self),
            crc=checks.tables_crc(tables.values()),
            at=tuple(skeleton.offsets[path] for path in layout.dataset_paths(self.fields)),
        )
        return WrittenShard(temporary, meta, self.fields, self._safe)

    def _tables(self) -> dict[str, Array]:
        """Every small table in file order; chunk places are filled in after the layout is known."""
        encoded_keys = [key.encode() for key in self._keys]
        digests: Sequence[int] | Array = self._digests
        if self._is_plain:
            digests = plain_digests(self.fields, self._crcs) if self._safe else [0] * len(self)
        known: dict[str, Any] = {
            layout.KEY_HASH: self._hashes,
            layout.DIGEST: digests,
            layout.PART: self._parts,
            layout.KEY_BYTES: np.frombuffer(b"".join(encoded_keys), np.uint8),
            layout.KEY_OFFSETS: np.cumsum([0, *map(len, encoded_keys)]),
        }
        for spec in self.fields:
            known[layout.crc_path(spec.name)] = self._crc_table(spec)
            known[layout.scale_path(spec.name)] = np.array(self._scales[spec.name]).reshape(-1, 2)
            known[layout.chunks_path(spec.name)] = np.zeros((len(self), 2))
            if spec.is_ragged:
                shapes = self._shapes[spec.name]
                known[layout.offsets_path(spec.name)] = np.cumsum([0, *map(math.prod, shapes)])
            if layout.has_shapes(spec):
                known[layout.shapes_path(spec.name)] = np.array(shapes).reshape(-1, len(spec.shape))
        dtypes = layout.table_dtypes(self.fields)
        # Straight to the dtype: by way of float64 a 64-bit hash would lose its last bits.
        return {path: np.asarray(known[path], dtype) for path, dtype in dtypes.items()}

    def _crc_table(self, spec: FieldSpec) -> Array:
        column = self._columns.get(spec.name)
        if column is not None and checks.uses_blocks(len(self), column.num_bytes):
            return checks.block_crcs(column.buffers()) if self._safe else np.zeros(0, np.uint32)
        return np.array(self._crcs[spec.name], dtype=np.uint32)

    def _compressed(self, spec: FieldSpec) -> DatasetPlan:
        """One compressed chunk a sample; ragged ones are padded to the longest, as HDF5 chunks are equal."""
        samples = self._samples[spec.name]
        shape = tuple(n or 0 for n in spec.shape)
        if spec.is_ragged:
            shape = (max((array.size for array in samples), default=0),)
        chunks = self._chunks(spec, shape)
        return DatasetPlan(
            layout.data_path(spec), spec.stored_dtype, (len(samples), *shape), spec.compression, chunks
        )

    def _chunks(self, spec: FieldSpec, shape: tuple[int, ...]) -> Iterator[bytes]:
        """Each sample compressed; the compressed copy replaces it, so that peak memory stays one shard."""
        samples = self._samples[spec.name]
        for at, array in enumerate(samples):
            samples[at] = np.empty(0, array.dtype)
            yield compress(spec.compression, _padded(array, shape) if spec.is_ragged else array)

    def _lay_out(
        self, tables: dict[str, Array], chunked: Mapping[str, DatasetPlan]
    ) -> tuple[Skeleton, dict[int, Iterable[Any]]]:
        """The skeleton, and what goes into the places it reserved: offset -> buffers."""
        plans = [DatasetPlan(path, table.dtype, table.shape, is_table=True) for path, table in tables.items()]
        raw = [spec for spec in self.fields if spec.name not in chunked]
        plans += [chunked.get(spec.name) or self._contiguous(spec) for spec in self.fields]
        skeleton = lay_out(plans, {"format": "flatout-shard", "version": FORMAT_VERSION})
        for name, plan in chunked.items():
            tables[layout.chunks_path(name)][:] = skeleton.chunk_places[plan.path]
        data: dict[int, Iterable[Any]] = {}
        for path, table in tables.items():
            if (offset := skeleton.offsets[path]) is not None:
                data[offset] = [table]
        for spec in raw:
            if (offset := skeleton.offsets[layout.data_path(spec)]) is not None:
                data[offset] = self._columns[spec.name].buffers()
        return skeleton, data

    def _contiguous(self, spec: FieldSpec) -> DatasetPlan:
        if spec.is_ragged:
            shape: tuple[int, ...] = (sum(map(math.prod, self._shapes[spec.name])),)
        else:
            shape = (len(self), *(n or 0 for n in spec.shape))
        assert self._columns[spec.name].num_bytes == math.prod(shape) * spec.stored_dtype.itemsize
        return DatasetPlan(layout.data_path(spec), spec.stored_dtype, shape)


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose bytes the system has, under a temporary name."""

    temporary: Path
    meta: ShardMeta
    fields: Sequence[FieldSpec]
    safe: bool

    def settle(self) -> ShardMeta:
        """Make it last and give it its name: fsync -> check -> rename -> fsync(folder)."""
        folder = self.temporary.parent
        try:
            with open(self.temporary, "rb+", buffering=0) as file:
                if self.safe:
                    sync_file(file.fileno())
                self._fetch_head(file)
            if self.safe:
                check_through_libhdf5(self.temporary, self.fields, self.meta)
            self.temporary.replace(folder / self.meta.file)
        except BaseException:
            self.drop()
            raise
        if self.safe:
            sync_folder(folder)
        return self.meta

    def _fetch_head(self, file: IO[bytes]) -> None:
        """Read what stands before the samples, HDF5's own and the tables, from the disk into the page cache.

        A shard that went past the cache would be fetched by whoever reads it next: libhdf5, which holds the
        interpreter's lock while it waits, and prepare at its end, when nobody else is at work.
        """
        left = self.meta.head_bytes(self.fields)
        while left > 0 and (piece := file.read(min(left, past_cache.PIECE_BYTES))):
            left -= len(piece)

    def drop(self) -> None:
        """Remove what has no name yet."""
        with suppress(OSError):
            self.temporary.unlink()


def _padded(array: Array, shape: tuple[int, ...]) -> Array:
    padded = np.zeros(shape, dtype=array.dtype)
    padded[: array.size] = array.reshape(-1)
    return padded
