"""Plain values: equal values give equal bytes, different ones (also of another type) different bytes."""

from __future__ import annotations

import enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.store.code.plain import encode_plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab1é") | st.binary()
law = settings(deadline=None)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@law
@given(SCALARS, SCALARS)
def test_scalars_are_equal_when_type_and_value_are(one: object, other: object) -> None:
    same = type(one) is type(other) and repr(one) == repr(other)
    assert (encode_plain(one) == encode_plain(other)) == same


VALUES = [
    None,
    ...,
    True,
    1,
    1.0,
    -0.0,
    1j,
    "1",
    b"1",
    Path("1"),
    Colour.RED,
    Colour.BLUE,
    np.int64(1),
    np.float32(1),
    np.zeros(3),
    np.zeros((3, 1)),
    np.zeros(3, np.float32),
    np.zeros(3, ">f8"),
    np.zeros(3, [("a", "f8")]),
    np.zeros(3, [("b", "f8")]),
    np.array([], "f4"),
    np.array(["", ""], "U0"),
    np.dtype("f4"),
    np.dtype("f8"),
]


def test_values_of_different_kinds_differ() -> None:
    encoded = [encode_plain(value) for value in VALUES]
    assert None not in encoded
    assert len(set(encoded)) == len(VALUES)


def test_the_layout_in_memory_does_not_count() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert encode_plain(np.asfortranarray(array)) == encode_plain(array)
    assert encode_plain(array[:, ::2]) == encode_plain(array[:, ::2].copy())


def test_objects_are_left_to_the_caller() -> None:
    assert encode_plain(np.array([{}], object)) is None
    assert encode_plain(np.ma.masked_array([1, 2], [True, False])) is None
    assert encode_plain([1]) is None


def test_a_mapped_file_counts_by_size_and_time(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "a", "f4", "w+", shape=4)
    before = encode_plain(mapped)
    assert encode_plain(np.memmap(tmp_path / "a", "f4", "r", shape=4)) == before
    with open(tmp_path / "a", "ab") as file:
        file.write(b"more")
    assert encode_plain(mapped) != before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int64"])
def test_tensors_count_by_content(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    one = torch.ones(2, 3).to(getattr(torch, dtype))
    assert encode_plain(one.clone()) == encode_plain(one)
    assert encode_plain(one.T.contiguous().T) == encode_plain(one)
    changed = one.clone()
    changed[1, 2] = 0
    assert encode_plain(changed) != encode_plain(one)
    assert encode_plain(one[0, 0]) is not None
