"""Parquet: a row a sample; numbers as columns, arrays as lists with a `FIELD_shape` column beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flatout.store.export.export import Sample, Samples
from flatout.types import FieldSpec

GROUP_BYTES = 64 << 20
"""A row group is written once its arrays reach this size."""


def write(samples: Samples, path: Path) -> None:
    """Write one Parquet file; text fields become strings, labels stay numbers."""
    fields = samples.store.fields
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


def _schema(fields: dict[str, FieldSpec]) -> Any:
    columns = [("key", pa.string()), ("split", pa.string())]
    for name, spec in fields.items():
        if spec.kind == "text":
            columns.append((name, pa.string()))
        elif not spec.shape:
            columns.append((name, pa.from_numpy_dtype(np.dtype(spec.dtype))))
        else:
            columns.append((name, pa.large_list(pa.from_numpy_dtype(np.dtype(spec.dtype)))))
            columns.append((f"{name}_shape", pa.list_(pa.int64())))
    return pa.schema(columns)


def _table(samples: list[Sample], fields: dict[str, FieldSpec], schema: Any) -> Any:
    columns: dict[str, Any] = {"key": [s.key for s in samples], "split": [s.split for s in samples]}
    for name, spec in fields.items():
        arrays = [sample.arrays[name] for sample in samples]
        if spec.kind == "text":
            columns[name] = [array.tobytes().decode() for array in arrays]
        elif not spec.shape:
            columns[name] = pa.array(np.array(arrays))
        else:
            offsets = np.concatenate([[0], np.cumsum([array.size for array in arrays])])
            flat = np.concatenate([array.reshape(-1) for array in arrays])
            columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))
            columns[f"{name}_shape"] = [list(array.shape) for array in arrays]
    return pa.table(columns).cast(schema)
