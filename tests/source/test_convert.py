"""Whatever a transform or dataset returns for a field, as an array."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from flatout.errors import SampleError
from flatout.source.convert import TextBytes, to_array


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (5, "int64", ()),
        (0.5, "float64", ()),
        (np.float64(0.5), "float64", ()),  # a Python float as well
        (np.float32(0.5), "float32", ()),
        (np.float16(0.5), "float16", ()),
        (True, "bool", ()),
        (np.bool_(False), "bool", ()),
        (1 + 2j, "complex128", ()),
        ([1, 2, 3], "int64", (3,)),
        ([[1.0], [2.0]], "float64", (2, 1)),
        ((1, 2), "int64", (2,)),
        (np.zeros((2, 3), np.int8), "int8", (2, 3)),
        (np.zeros((2, 0), np.float32), "float32", (2, 0)),
        (b"\x00\xff", "uint8", (2,)),
        ("é", "uint8", (2,)),
        ("", "uint8", (0,)),
        (range(4), "int64", (4,)),
    ],
)
def test_values(value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    array = to_array("x", value)
    assert (array.dtype, array.shape) == (np.dtype(dtype), shape)


def test_a_moment_keeps_its_second_and_is_what_torch_collates() -> None:
    collate = pytest.importorskip("torch.utils.data").default_collate
    for moment in (1_700_000_123.0, np.float64(1_700_000_123.0)):
        array = to_array("x", moment)
        assert array.item() == moment
        assert np.stack([array]).dtype == collate([moment]).numpy().dtype


def test_a_string_is_its_utf8_and_known_as_text() -> None:
    array = to_array("x", "größe")
    assert array.tobytes().decode() == "größe"
    assert isinstance(array, TextBytes)
    assert not isinstance(to_array("x", b"bytes"), TextBytes)


@pytest.mark.parametrize(
    "value", [None, object(), {"a": 1}, {1}, ["a"], [[1], [1, 2]], np.array(["x"]), np.array([None])]
)
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(SampleError, match="field 'x'") as caught:
        to_array("x", value)
    assert caught.value.stage == "transform"


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    np.testing.assert_array_equal(to_array("x", tensor), np.arange(6).reshape(2, 3))
    assert to_array("x", tensor).dtype == np.float32
    assert to_array("x", torch.tensor(True)).dtype == np.bool_
    assert to_array("x", tensor.t()).tolist() == np.arange(6).reshape(2, 3).T.tolist()


def test_pictures() -> None:
    images = pytest.importorskip("PIL.Image")
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    np.testing.assert_array_equal(to_array("x", images.fromarray(pixels)), pixels)
    np.testing.assert_array_equal(to_array("x", images.fromarray(pixels[..., 0])), pixels[..., 0])


def test_neither_torch_nor_pillow_is_imported() -> None:
    code = (
        "import sys; from flatout.source.convert import to_array; to_array('x', 1.0)\n"
        "assert not {'torch', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_array_is_a_copy_because_a_transform_may_use_its_memory_again() -> None:
    memory = np.zeros(3)
    kept = to_array("x", memory)
    memory[:] = 1
    assert kept.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_float_type_that_numpy_lacks_is_float32(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([0.5, -1.5, 3.0], dtype=getattr(torch, dtype))
    array = to_array("x", tensor)
    assert (array.dtype, array.tolist()) == (np.float32, [0.5, -1.5, 3.0])


def test_a_tensor_without_an_array_is_named() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(SampleError, match=r"field 'x': a tensor of torch\.float32 has no array"):
        to_array("x", torch.eye(2).to_sparse())
