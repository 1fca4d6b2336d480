"""Which datasets a shard has, in which order: a function of the field specifications alone.

Small tables come first, then each field's data. `docs/format.md` is the normative description.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.errors import ConfigError
from flatout.store.encode import QUANTISED
from flatout.types import FieldSpec, is_field_name

KEY_HASH = "flatout/key_hash"
DIGEST = "flatout/digest"
PART = "flatout/part"
KEY_BYTES = "flatout/key_bytes"
KEY_OFFSETS = "flatout/key_offsets"

FIXED_TABLES = {KEY_HASH: "<u8", DIGEST: "<u8", PART: "<i4", KEY_BYTES: "|u1", KEY_OFFSETS: "<i8"}
"""Tables of every shard and their dtypes."""

STORABLE = "biufc"
"""Kinds of dtypes that a store holds: booleans and numbers."""
ENCODINGS = ("none", "float16", "bfloat16", *QUANTISED)
COMPRESSIONS = ("none", "zstd", "gzip")


def check_field_name(name: str) -> None:
    """A field's name is an HDF5 path and a Parquet column: letters, digits, `_` and `-`."""
    if not is_field_name(name):
        raise ConfigError(
            f"field name '{name}' cannot be used: a letter, then up to 63 letters, digits, '_' or '-'; "
            "'flatout' is taken"
        )


def check_spec(spec: FieldSpec) -> None:
    """What a root says of a field is something that a shard can hold.

    Raises:
        ValueError, TypeError: it is not.
    """
    check_field_name(spec.name)
    sizes = [n for n in spec.shape if n is not None]
    if not all(type(n) is int and n >= 0 for n in sizes) or np.dtype(spec.dtype).kind not in STORABLE:
        raise ValueError(f"field '{spec.name}' cannot be {spec.dtype} of shape {spec.shape}")
    if spec.encoding not in ENCODINGS or spec.compression not in COMPRESSIONS:
        raise ValueError(f"field '{spec.name}': unknown encoding or compression")


def crc_path(name: str) -> str:
    return f"flatout/crc/{name}"


def scale_path(name: str) -> str:
    return f"flatout/scale/{name}"


def chunks_path(name: str) -> str:
    return f"flatout/chunks/{name}"


def offsets_path(name: str) -> str:
    return f"{name}/offsets"


def shapes_path(name: str) -> str:
    return f"{name}/shapes"


def data_path(spec: FieldSpec) -> str:
    """Where the samples themselves stand."""
    return f"{spec.name}/values" if spec.is_ragged else spec.name


def has_shapes(spec: FieldSpec) -> bool:
    """A number of elements alone does not give the shape back: two axes vary, or one is always empty."""
    return spec.shape.count(None) > 1 or (spec.is_ragged and 0 in spec.shape)


def is_quantised(spec: FieldSpec) -> bool:
    return spec.encoding in QUANTISED


def table_dtypes(fields: Sequence[FieldSpec]) -> dict[str, str]:
    """Path -> dtype of every small table, in file order."""
    tables = dict(FIXED_TABLES)
    for spec in fields:
        tables[crc_path(spec.name)] = "<u4"
        if is_quantised(spec):
            tables[scale_path(spec.name)] = "<f4"
        if spec.compression != "none":
            tables[chunks_path(spec.name)] = "<i8"
        if spec.is_ragged:
            tables[offsets_path(spec.name)] = "<i8"
        if has_shapes(spec):
            tables[shapes_path(spec.name)] = "<i4"
    return tables


def dataset_paths(fields: Sequence[FieldSpec]) -> list[str]:
    """Every dataset of a shard in file order; the root lists their offsets in this order."""
    return [*table_dtypes(fields), *(data_path(spec) for spec in fields)]
