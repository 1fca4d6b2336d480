"""The layout: which datasets, in which order, as a function of the fields alone."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.errors import ConfigError
from flatout.store.layout import check_field_name, check_spec, dataset_paths, has_shapes, table_dtypes
from flatout.types import FieldSpec

FIXED = ["flatout/key_hash", "flatout/digest", "flatout/part", "flatout/key_bytes", "flatout/key_offsets"]


def test_the_datasets_of_each_kind_of_field_in_order() -> None:
    fields = [
        FieldSpec("a", "array", "float32", (2,)),
        FieldSpec("b", "array", "float32", (None,), encoding="uint8", compression="zstd"),
        FieldSpec("c", "image", "uint8", (1, None, None)),
    ]
    assert dataset_paths(fields) == [
        *FIXED,
        "flatout/crc/a",
        "flatout/crc/b",
        "flatout/scale/b",
        "flatout/chunks/b",
        "b/offsets",
        "flatout/crc/c",
        "c/offsets",
        "c/shapes",
        "a",
        "b/values",
        "c/values",
    ]


def test_tables_have_little_endian_dtypes() -> None:
    spec = FieldSpec("x", "array", "float32", (None, None), encoding="int16", compression="gzip")
    assert table_dtypes([spec]) == {
        "flatout/key_hash": "<u8",
        "flatout/digest": "<u8",
        "flatout/part": "<i4",
        "flatout/key_bytes": "|u1",
        "flatout/key_offsets": "<i8",
        "flatout/crc/x": "<u4",
        "flatout/scale/x": "<f4",
        "flatout/chunks/x": "<i8",
        "x/offsets": "<i8",
        "x/shapes": "<i4",
    }


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), False),
        ((2, 0), False),
        ((None,), False),
        ((None, 3), False),
        ((None, None), True),
        ((None, 0), True),
    ],
)
def test_shapes_are_kept_where_a_length_does_not_tell_them(shape: Any, expected: bool) -> None:
    assert has_shapes(FieldSpec("x", "array", "float32", shape)) is expected


@pytest.mark.parametrize("name", ["x", "image", "Image_2-left", "offsets", "values", "a" * 64])
def test_good_names(name: str) -> None:
    check_field_name(name)


@pytest.mark.parametrize(
    "name", ["", "1x", "a/b", "..", "a b", "flatout", "a" * 65, "é", "x\n", "_x", "x.y", "/x"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        check_field_name(name)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"dtype": "object"},
        {"dtype": "datetime64[s]"},
        {"dtype": "no such"},
        {"dtype": "S8"},
        {"shape": (-1,)},
        {"shape": (1.5,)},
        {"shape": (True,)},
        {"encoding": "pickle"},
        {"compression": "lzo"},
    ],
)
def test_a_field_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "x", "kind": "array", "dtype": "float32", "shape": (2, None)}
    check_spec(FieldSpec(**good))
    with pytest.raises((ValueError, TypeError)):
        check_spec(FieldSpec(**{**good, **change}))
