"""Parquet: a row a sample; numbers as columns, arrays as lists with a `FIELD_shape` column beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flatout.store.export.export import Sample, Samples
from flatout.store.view import free_name
from flatout.types import FieldSpec

GROUP_BYTES = 64 << 20
"""A row group is written once its arrays reach this size."""


def write(samples: Samples, path: Path) -> None:
    """Write one Parquet file; text fields become strings, labels stay numbers."""
    fields = samples.store.meta.fields
    schema = _schema(fields)
    waiting: list[Sample] = []
    num_bytes = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for sample in samples:
            waiting.append(sample)
            num_bytes += sum(array.nbytes for array in sample.arrays.values())
            if num_bytes > GROUP_BYTES:
                writer.write_table(_table(waiting, fields, schema))
                waiting, num_bytes = [], 0
        if waiting:
            writer.write_table(_table(waiting, fields, schema))


def _schema(fields: tuple[FieldSpec, ...]) -> Any:
    columns = [(free_name(name, fields), pa.string()) for name in ("key", "split")]
    for spec in fields:
        kind = pa.string() if spec.kind == "text" else pa.from_numpy_dtype(np.dtype(spec.dtype))
        if spec.kind == "text" or not spec.shape:
            columns.append((spec.name, kind))
        else:
            columns.append((spec.name, pa.large_list(kind)))
            columns.append((free_name(f"{spec.name}_shape", fields), pa.list_(pa.int64())))
    return pa.schema(columns)


def _table(samples: list[Sample], fields: tuple[FieldSpec, ...], schema: Any) -> Any:
    """Columns in the order of the schema."""
    columns: list[Any] = [[sample.key for sample in samples], [sample.split for sample in samples]]
    for spec in fields:
        arrays = [sample.arrays[spec.name] for sample in samples]
        if spec.kind == "text":
            columns.append([array.tobytes().decode() for array in arrays])
        elif not spec.shape:
            columns.append(np.array(arrays))
        else:
            offsets = np.concatenate([[0], np.cumsum([array.size for array in arrays])])
            flat = np.concatenate([array.reshape(-1) for array in arrays])
            columns.append(pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat)))
            columns.append([list(array.shape) for array in arrays])
    kinds = zip(columns, schema.types, strict=True)
    return pa.table([c if isinstance(c, pa.Array) else pa.array(c, kind) for c, kind in kinds], schema=schema)
