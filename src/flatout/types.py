"""Nouns shared by all packages: the manifest row, the decoded file, the field specification."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flatout.source.files import SourceFile
    from flatout.source.sight import Found

Array = NDArray[Any]
"""Any NumPy array."""

Shape = tuple[int | None, ...]
"""A stored shape; None marks an axis that differs between samples."""

LONGEST_NAME = 64
"""Characters of a field's name."""

_FIELD_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}")


def is_field_name(name: str) -> bool:
    """Whether a store can hold a field of this name: it is an HDF5 path and a Parquet column."""
    return bool(_FIELD_NAME.fullmatch(name)) and name != "flatout"


@dataclass(slots=True)
class Row:
    """One row of a manifest: a unique, stable key and the values of its columns."""

    key: str
    values: Mapping[str, Any]
    digest: int = 0
    """64 bits of the values that its samples depend on, where somebody wants to know what it was made from."""
    key_hash: int = 0
    """The key's, where whoever sends the row knows it."""
    found: Found | None = None
    """Where its maker notes the files that it finds; None: nobody wants to know."""


@dataclass(slots=True)
class RowBlock:
    """Rows as columns: so they travel, at a third of what a dict a row costs."""

    keys: list[str]
    columns: dict[str, list[Any]]
    digests: Array | None = None
    key_hashes: Array | None = None
    """One a row, where they are known; see `Row`."""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, some: slice) -> RowBlock:
        columns = {name: cells[some] for name, cells in self.columns.items()}
        numbers = [None if part is None else part[some] for part in (self.digests, self.key_hashes)]
        return RowBlock(self.keys[some], columns, *numbers)

    def rows(self) -> list[Row]:
        names = tuple(self.columns)
        values = [dict(zip(names, cells, strict=True)) for cells in zip(*self.columns.values(), strict=True)]
        values = values if names else [{} for _ in self.keys]
        numbers = (repeat(0) if part is None else part.tolist() for part in (self.digests, self.key_hashes))
        return list(map(Row, self.keys, values, *numbers))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a decoder may take at the most; over it the sample is refused before memory is allocated."""

    max_sample_bytes: int = 2 << 30


@dataclass(slots=True)
class Decoded:
    """What a decoder found in a file: the array as stored, and what places it in the world."""

    array: Array
    affine: Array | None = None
    """Volumes: 4 x 4 voxel -> world (RAS, mm)."""
    rate: float | None = None
    """Signals: samples a second."""
    info: dict[str, Any] = field(default_factory=dict)
    """Anything else a step may want (pixel mode, column names, ...)."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Several samples out of one row (windows, cycles), in order; all other fields are repeated."""

    arrays: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """How one field stands in the store: what is written down once and holds for every sample."""

    name: str
    kind: str
    dtype: str
    """NumPy dtype of a restored sample."""
    shape: Shape
    """Shape of a sample; None for each axis that varies."""
    encoding: str = "none"
    compression: str = "none"
    range: tuple[float, float] | None = None
    """Fixed value range of a quantised field; None: each sample has its own."""
    classes: tuple[str, ...] | None = None
    """Class names of a label, in the order of their numbers."""

    @property
    def is_ragged(self) -> bool:
        return None in self.shape

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Dtype on disk, after encoding."""
        names = {"none": self.dtype, "bfloat16": "uint16"}
        return np.dtype(names.get(self.encoding, self.encoding))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape (without channels) and placement of an image or volume before any step; masks must match."""

    shape: tuple[int, ...]
    affine: Array | None = None


@dataclass(slots=True)
class Context:
    """What the fields of one row share while they are built."""

    row: Row
    geometry: dict[str, Geometry] = field(default_factory=dict)
    """Geometry of each image and volume decoded so far, by field name."""
    resolve: Callable[[str], SourceFile] | None = None
    """Finds a further file that the row names (an annotation), under the same rules as its main one."""
    limits: Limits = field(default_factory=Limits)
    """What one sample may take, on its way through the steps, too."""


Outputs = Mapping[str, Array | Pieces]
"""What the steps of one field give: its own array, and fields derived from it (mask -> distance)."""

Steps = Callable[[Decoded, Context], Outputs]
"""Planned once from a field's config, run for each row; raises SampleError."""
