"""TFRecord: one tf.train.Example a sample, written without TensorFlow.

Floats become float_list, which is float32, integers int64_list, text bytes_list; the shape stands beside as
`FIELD/shape`.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from flatout.errors import StoreError
from flatout.store.export.export import Sample, Samples
from flatout.store.view import free_name
from flatout.types import Array, FieldSpec

_MASK_DELTA = 0xA282EAD8
_LARGEST = 2**63 - 1


def write(samples: Samples, path: Path) -> None:
    """Write `SPLIT.tfrecord` files into a folder."""
    path.mkdir()
    files: dict[str, BinaryIO] = {}
    with ExitStack() as opened:  # closes every one, though closing one fails on a full disk
        for sample in samples:
            if sample.split not in files:
                files[sample.split] = opened.enter_context(open(path / f"{sample.split}.tfrecord", "wb"))
            _write_record(files[sample.split], _example(sample, samples.store.meta.fields))


def _write_record(file: BinaryIO, data: bytes) -> None:
    head = struct.pack("<Q", len(data))
    file.write(head + struct.pack("<I", _masked_crc(head)) + data + struct.pack("<I", _masked_crc(data)))


def _masked_crc(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _example(sample: Sample, fields: tuple[FieldSpec, ...]) -> bytes:
    """The protocol-buffer bytes of Example{features{feature{name: value}}}."""
    texts = {"key": sample.key, "split": sample.split}
    features = {free_name(name, fields): _bytes_list(text.encode()) for name, text in texts.items()}
    for spec in fields:
        array = sample.arrays[spec.name]
        features[spec.name] = _bytes_list(array.tobytes()) if spec.kind == "text" else _number_list(array)
        features[f"{spec.name}/shape"] = _int64_list(array.shape)
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value)) for name, value in sorted(features.items())
    )
    return _field(1, entries)


def _bytes_list(data: bytes) -> bytes:
    return _field(1, _field(1, data))


def _number_list(array: Array) -> bytes:
    if array.dtype.kind == "f":
        return _field(2, _field(1, array.astype("<f4").tobytes()))
    if array.dtype == np.uint64 and array.size and int(array.max()) > _LARGEST:
        raise StoreError(
            f"a value of {array.max()} does not fit the int64 of tfrecord; export to another format"
        )
    return _int64_list(np.asarray(array, np.int64).reshape(-1).tolist())


def _int64_list(values: list[int] | tuple[int, ...]) -> bytes:
    return _field(3, _field(1, b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values)))


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protocol-buffer field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
