"""Fetcher: positions within a split in, one batch of tensors out. Planned once, then one gather a field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from flatout.errors import ConfigError, LoaderError
from flatout.loader.announce import TablesAhead
from flatout.loader.buffers import BufferPool, PinnedPool
from flatout.loader.cache import CacheRule, SampleCache
from flatout.loader.crc import CrcCheck
from flatout.loader.damage import Batch, DamageLog, Skipper
from flatout.loader.fixed import OneRange, is_small, load_rows, load_table, open_fixed
from flatout.loader.lengths import RaggedRule
from flatout.loader.mount import open_as
from flatout.loader.parts import GatheredPart, LoadedPart, Part, Wanted
from flatout.loader.places import Places
from flatout.loader.ragged import RaggedRows
from flatout.loader.restored import RestoredPart, can_restore
from flatout.loader.rows import FixedRows
from flatout.loader.stored import StoredRows, StoredSamples
from flatout.loader.values import open_values
from flatout.store import StoreReader, layout
from flatout.types import Array, FieldSpec

KEY = "key"
VALID = "valid"
LENGTH = "_length"
"""Suffix of the lengths that accompany a ragged field."""
SCALE = "/scale"
"""Suffix of scale and offset of a quantised field until it is restored; no field's name has a slash."""


@dataclass(frozen=True)
class ReadRule:
    """How samples are read, checked and kept."""

    crc: str = "first"
    """`first`, `always` or `off`."""
    io: str = "auto"
    """`mmap`, `pread`, or `auto`: by where the store lies."""
    ragged: RaggedRule = RaggedRule()  # noqa: RUF009  frozen
    on_damage: str = "raise"
    """`raise`, or `skip`: a good sample stands in for a damaged one, and `valid` is false for it."""
    cache: CacheRule | None = None
    """How many decompressed samples of compressed fields are kept; None: none."""
    on_device: bool = False
    """Hold the whole split in the device's memory."""
    fields: tuple[str, ...] | None = None
    """Which fields a loader's batches have; None: all."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} '{getattr(self, name)}': wanted one of {', '.join(known)}")


_CHOICES = {
    "crc": ("first", "always", "off"),
    "io": ("auto", "mmap", "pread"),
    "on_damage": ("raise", "skip"),
}


UNIT_BYTES = 3 << 20
"""Small batches are gathered and handed over together up to this size. Batches of 1 MB, as a share of the bare
gather: one at a time 0.55, three at once 0.76, eight 0.62, because they leave the CPU's cache."""
MAX_UNIT = 16


class Fetcher:
    """Reads batches of one split of one store. Several threads may call `fetch` at once.

    Args:
        restores: hand out as numbers what `can_restore`.
        caches: where decompressed samples are kept, by field.
        damage: where damaged samples are noted; only with `on_damage="skip"`.
    """

    def __init__(
        self,
        store: StoreReader,
        positions: Array,
        batch_size: int,
        rule: ReadRule,
        *,
        is_pinned: bool = False,
        restores: bool = False,
        caches: Mapping[str, SampleCache] | None = None,
        damage: DamageLog | None = None,
    ) -> None:
        lengths = {f"{name}{LENGTH}" for name, spec in store.fields.items() if spec.is_ragged}
        if clash := {KEY, VALID, *lengths} & set(store.fields):
            raise ConfigError(f"a field called '{clash.pop()}' clashes with what a batch always has; rename it")
        self.batch_size = batch_size
        self.skips = rule.on_damage == "skip"
        self.store, self._files = open_as(store, rule.io)
        self.is_blind = self._files is not None  # read calls have no page faults to count
        self._caches = caches or {}
        self._damage = damage or DamageLog()
        self._rule = rule
        self._places = Places.of(store, positions)
        self._tables = None if rule.crc == "off" else TablesAhead(self.store, self._places)
        self._is_pinned = is_pinned
        self._make_pool = PinnedPool if is_pinned else BufferPool
        self._restores = restores
        self._fixed: dict[str, Part] = {}
        self._ragged: dict[str, RaggedRows] = {}
        for name in store.fields if rule.fields is None else rule.fields:
            self._open(store.fields[name])
        self.announces = bool(self._ragged) or not all(
            isinstance(part, LoadedPart) for part in self._fixed.values()
        )
        if not self.announces and rule.crc != "off":
            for _ in self.store.announced():  # all is loaded, but the checksums of it
                pass
        self._fixed[KEY] = LoadedPart(store.numbers["key_hash"][positions].view(np.int64))
        self.unit = self.unit_of(UNIT_BYTES)

    @property
    def num_samples(self) -> int:
        return len(self._places)

    def unit_of(self, num_bytes: int) -> int:
        """Batches that together have so many bytes."""
        return max(1, min(MAX_UNIT, num_bytes // max(1, self.batch_bytes)))

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch of samples of mean size."""
        return self.bytes_per_row * self.batch_size

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one sample's fixed fields, and of a ragged one's mean length."""
        fixed = sum(part.row_bytes for part in self._fixed.values())
        return fixed + sum(ragged.mean_bytes for ragged in self._ragged.values())

    def fetch(self, positions: Array, crop_seed: int = 0) -> Batch:
        """One batch, see `look_up` and `fetch_run`."""
        return self.fetch_run(self.look_up(positions), [len(positions)], [crop_seed])[0]

    def look_up(self, positions: Array) -> Wanted:
        """What can be known of samples before they are fetched.

        Raises:
            IndexError: a position lies outside the split: NumPy's clip mode would serve a wrong sample.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self._places)):
            raise IndexError(f"positions {positions.min()}..{positions.max()} of {len(self._places)} samples")
        return Wanted(positions, {name: part.look_up(positions) for name, part in self._fixed.items()})

    def fetch_run(self, wanted: Wanted, sizes: Sequence[int], crop_seeds: Sequence[int]) -> list[Batch]:
        """Batches of these sizes: a tensor a field, in the order of the positions; with `skip` also `valid`.

        Args:
            crop_seeds: what random crops of each batch's epoch are drawn from.

        Raises:
            StoreCorruptError: a sample's bytes do not match their checksum.
            LoaderError: they cannot be read (`pread` only); naming the sample.
        """
        if self.skips:
            run = zip(_cut(wanted.positions, sizes), crop_seeds, strict=True)
            return [self._fetch_readable(positions, seed) for positions, seed in run]
        try:
            return self._gather(wanted, sizes, crop_seeds)
        except LoaderError as error:
            raise self._named(error, wanted.positions) from error

    @property
    def parts(self) -> Mapping[str, Part]:
        """The fields of one shape."""
        return self._fixed

    @property
    def is_plain(self) -> bool:
        """Whether a batch is nothing but rows of memory, some of it mapped, once they have been checked."""
        is_other = self._ragged or self.skips or not self.announces or self._rule.crc == "always"
        return not is_other and all(map(_is_plain, self._fixed.values()))

    @property
    def is_checked(self) -> bool:
        """Whether there are no checksums left to compare."""
        checks = [part.check for part in self._fixed.values() if isinstance(part, GatheredPart | LoadedPart)]
        return all(check is None or check.is_done for check in checks)

    def announce(self, wanted: Wanted) -> None:
        """Tell the system which rows are wanted soon, where that helps; their checksums before them."""
        if self._tables is not None:
            self._tables.announce(wanted.positions)
        for name, part in self._fixed.items():
            part.announce(wanted.found[name])
        for ragged in self._ragged.values():
            ragged.announce(wanted.positions)

    def _gather(self, wanted: Wanted, sizes: Sequence[int], crop_seeds: Sequence[int]) -> list[Batch]:
        """Fields of one shape are gathered for all batches at once, ragged ones for each batch."""
        batches: list[Batch] = [{} for _ in sizes]
        for name, part in self._fixed.items():
            for batch, rows in zip(
                batches, part.gather(wanted.positions, wanted.found[name], sizes), strict=True
            ):
                batch[name] = rows
        if self._ragged:
            for batch, positions, seed in zip(batches, _cut(wanted.positions, sizes), crop_seeds, strict=True):
                for name, ragged in self._ragged.items():
                    batch[name], batch[f"{name}{LENGTH}"] = ragged.gather(positions, seed)
        return batches

    def _gather_one(self, positions: Array, crop_seed: int = 0) -> Batch:
        return self._gather(self.look_up(positions), [len(positions)], [crop_seed])[0]

    def _fetch_readable(self, positions: Array, crop_seed: int) -> Batch:
        """A batch with stand-ins for samples that cannot be read."""
        gather = partial(self._gather_one, crop_seed=crop_seed)
        batch, is_own = Skipper(gather, len(self._places), self._note, self._damage.among).fetch(positions)
        batch[VALID] = torch.from_numpy(is_own)
        return batch

    def _open(self, spec: FieldSpec) -> None:
        """Plan how one field is gathered."""
        store, places, rule = self.store, self._places, self._rule
        check = None if rule.crc == "off" else CrcCheck(store, spec, places, always=rule.crc == "always")
        if spec.is_ragged:
            values = open_values(store, spec, places, self._files, self._caches.get(spec.name))
            self._ragged[spec.name] = RaggedRows(
                store, spec, places, rule.ragged, check, values, self._is_pinned
            )
            return
        shape = tuple(n or 0 for n in spec.shape)
        check = check if math.prod(shape) else None  # an empty sample has no bytes to check
        scales = self._scales(spec) if layout.is_quantised(spec) else None
        if is_small(spec):
            self._fixed[spec.name] = LoadedPart(load_rows(store, spec, places), check)
        else:
            stored = self._open_stored(spec, shape, check)
            if self._restores and can_restore(spec):
                pool = self._make_pool(shape, np.dtype(spec.dtype))
                self._fixed[spec.name] = RestoredPart(spec, stored, pool, scales)
                return
            self._fixed[spec.name] = stored
        if scales is not None:
            self._fixed[f"{spec.name}{SCALE}"] = LoadedPart(scales)

    def _open_stored(self, spec: FieldSpec, shape: tuple[int, ...], check: CrcCheck | None) -> GatheredPart:
        store, places, files = self.store, self._places, self._files
        rows: FixedRows
        if spec.compression == "none":
            rows = open_fixed(store, spec, places, files, self.batch_size)
        else:
            rows = StoredRows(StoredSamples.of(store, spec, places, files, self._caches.get(spec.name)))
        return GatheredPart(rows, self._make_pool(shape, spec.stored_dtype), check)

    def _scales(self, spec: FieldSpec) -> Array:
        path = layout.scale_path(spec.name)
        tables = [self.store.shard(number).tables[path] for number in self.store.announced()]
        return load_table(tables, self._places).astype("<f4", copy=False)

    def _note(self, position: int, error: Exception) -> None:
        self._damage.add(position, self._places.key_of(self.store, position), error)

    def _named(self, error: LoaderError, positions: Array) -> LoaderError:
        """The error of the first sample that cannot be read, with its key."""
        for position in positions.tolist():
            try:
                self._gather_one(np.array([position]))
            except LoaderError as own:
                return LoaderError(f"sample '{self._places.key_of(self.store, position)}': {own}")
        return error


def _is_plain(part: Part) -> bool:
    return isinstance(part, LoadedPart) or (isinstance(part, GatheredPart) and isinstance(part.rows, OneRange))


def _cut(positions: Array, sizes: Sequence[int]) -> list[Array]:
    return np.split(positions, np.cumsum(sizes[:-1]))


def restore(batch: Mapping[str, torch.Tensor], fields: Mapping[str, FieldSpec]) -> dict[str, torch.Tensor]:
    """Encoded fields as numbers again, on whatever device the batch is."""
    restored = {name: value for name, value in batch.items() if not name.endswith(SCALE)}
    for name, spec in fields.items():
        if spec.encoding == "none" or name not in restored:
            continue
        values = restored[name]
        if spec.encoding == "bfloat16":
            values = values.view(torch.bfloat16)
        scale = batch.get(f"{name}{SCALE}")
        if scale is not None:
            shape = (-1, *(1,) * (values.dim() - 1))
            # Two steps, each rounded: fused to one, the bits would not be the store's own.
            values = values.to(torch.float32).mul_(scale[:, 0].view(shape)).add_(scale[:, 1].view(shape))
        restored[name] = values.to(getattr(torch, spec.dtype))
    return restored
