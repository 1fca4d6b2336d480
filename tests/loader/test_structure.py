"""Items come back from their arrays with the same containers, types and values."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.loader.caching import Made

import flatout
from flatout.errors import CacheError
from flatout.loader.dataset import FastDataset
from flatout.loader.fetch import KEY, LENGTH, VALID
from flatout.loader.loader import FastDataLoader
from flatout.loader.structure import plan_build, take_apart
from flatout.store.fill.item import Item

DTYPES = st.sampled_from(["?", "u1", "<i2", ">i4", "<i8", "<u8", "<f2", ">f4", "<f8", "<c8", "<c16"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
TENSORS = ARRAYS.map(lambda array: torch.from_numpy(array.astype(array.dtype.newbyteorder("="))))
HALVES = TENSORS.filter(lambda tensor: tensor.is_floating_point()).map(lambda tensor: tensor.bfloat16())
NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers(allow_nan=False))
SCALARS = st.sampled_from([np.float32(1.5), np.int16(-3), np.bool_(True), np.str_("one"), np.uint64(2**64 - 1)])
TEXTS = st.one_of(st.text(), st.binary())
LEAVES = st.one_of(ARRAYS, TENSORS, HALVES, NUMBERS, SCALARS, TEXTS)
NAMES = ["flatout", "key", "valid", "a/b", "x", "x_extra", "x_length", "x_extra_length", "1"]
KEYS = st.one_of(st.text(max_size=5), st.integers(), st.sampled_from(NAMES))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
    )


ITEMS = st.recursive(LEAVES, containers, max_leaves=8)


def taken(item: Any) -> Item:
    """Taken apart; an item of nothing but empty containers is no case."""
    try:
        return take_apart(item, 0)
    except CacheError as error:
        assume("has no fields" not in str(error))
        raise


def assert_same(one: Any, other: Any) -> None:
    """Equal in type and value all the way down; NaNs are equal."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        assert [type(key) for key in one] == [type(key) for key in other]
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert_bits(one.view(torch.int16) if one.dtype is torch.bfloat16 else one, other)
    elif isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, Image.Image):
        assert (one.mode, one.size, one.tobytes(), one.info) == (
            other.mode,
            other.size,
            other.tobytes(),
            other.info,
        )
        assert one.getpalette() == other.getpalette()
    else:
        assert one == other or (one != one and other != other)


def assert_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    bits = other.view(torch.int16) if other.dtype is torch.bfloat16 else other
    assert one.numpy().tobytes() == bits.numpy().tobytes()


def there_and_back(item: Any) -> Any:
    parts = taken(item)
    return plan_build(parts.form.text)([array.copy() for array in parts.arrays])


@given(ITEMS)
@settings(max_examples=300, deadline=None)
def test_every_item_comes_back_as_it_was(item: Any) -> None:
    assert_same(there_and_back(item), item)


@given(ITEMS)
@settings(max_examples=100, deadline=None)
def test_field_names_are_unique_and_fit_a_store(item: Any) -> None:
    names = [field.name for field in taken(item).form.fields]
    assert len({*names, "flatout"}) == len(names) + 1
    assert all(name[0].isalpha() and len(name) < 64 for name in names)


def test_names_are_those_of_a_prepare() -> None:
    def names(item: Any) -> list[str]:
        return [field.name for field in take_apart(item, 0).form.fields]

    assert names((1, 2)) == ["input", "target"]
    assert names((1, 2, "x")) == ["field0", "field1", "field2"]
    assert names(np.zeros(3)) == ["input"]
    assert names({"image": 1, "label": {"kind": 2, "box": [1.0, 2.0]}}) == ["image", "label_kind", "label_box"]


def test_arrays_are_copies_of_their_own() -> None:
    array, tensor = np.zeros(3), torch.zeros(3)
    parts = take_apart((array, tensor), 0)
    array += 1
    tensor += 1
    assert [stored.sum() for stored in parts.arrays] == [0, 0]


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "I", "F", "I;16", "I;16B", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"]
)
def test_images_keep_mode_size_and_pixels(mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    base = Image.fromarray(noise)
    image = base.convert("L").convert(mode) if mode in ("1", "LA", "I", "F") else base.convert("RGB")
    if mode.startswith("I;16"):
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 200)
        image = image if mode == "I;16" else Image.frombytes(mode, image.size, image.tobytes())
    elif image.mode != mode:
        image = image.convert(mode)
    assert image.mode == mode
    assert_same(there_and_back(image), image)


def test_images_keep_palette_and_information() -> None:
    image = Image.new("P", (4, 3), 2)
    image.putpalette(bytes(range(48)))
    image.info = {"transparency": 3, "dpi": (72, 72), "exif": b"Exif\x00", "odd": object()}
    back = there_and_back((image, "label"))[0]
    assert back.getpalette() == image.getpalette()
    assert back.info == {"transparency": 3, "dpi": (72, 72), "exif": b"Exif\x00"}
    assert back.convert("RGB").tobytes() == image.convert("RGB").tobytes()


def test_a_file_that_is_still_closed_is_read(tmp_path: Path) -> None:
    Image.new("RGB", (6, 5), (9, 8, 7)).save(tmp_path / "a.png")
    back = there_and_back(Image.open(tmp_path / "a.png"))
    assert back.getpixel((0, 0)) == (9, 8, 7)


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (None, ["item 7", "it is None"]),
        ({"a": {"b": None}}, ["item 7", "field 'a.b' is None"]),
        ((1, object()), ["field 'target'", "builtins.object"]),
        ((1, Path("x")), ["field 'target'", "pathlib"]),
        ({"colour": Colour.RED}, ["field 'colour'", "Colour"]),
        (Point(1, 2), ["Point", "named tuple"]),
        ({"a": np.array(["x"])}, ["field 'a'", "<U1"]),
        ({"a": np.zeros(2, np.longdouble)}, ["field 'a'", "float128"]),
        ({"a": np.ma.masked_array([1])}, ["field 'a'", "MaskedArray", "subclass"]),
        (torch.zeros(2, requires_grad=True), ["requires grad"]),
        (torch.zeros(2).to_sparse(), ["layout"]),
        (torch.nn.Parameter(torch.zeros(1)), ["Parameter"]),
        ({(1, 2): 3}, ["key of type tuple"]),
        ((), ["has no fields"]),
        ({"a": {}}, ["has no fields"]),
    ],
)
def test_what_cannot_be_stored_is_named(item: Any, words: list[str]) -> None:
    with pytest.raises(CacheError) as caught:
        take_apart(item, 7)
    assert all(word in str(caught.value) for word in words), caught.value


def test_endless_nesting_is_refused() -> None:
    item: dict[str, Any] = {}
    item["again"] = item
    with pytest.raises(CacheError, match="deep"):
        take_apart(item, 0)


@pytest.mark.parametrize("text", ["", "[]", '["tensor"]', '["unknown",0]', '{"a":1}', '["dict",[1]]'])
def test_a_damaged_form_is_refused(text: str) -> None:
    with pytest.raises(CacheError, match="unknown way"):
        plan_build(text)


@given(ITEMS)
@settings(max_examples=100, deadline=None)
def test_no_field_has_a_name_that_a_batch_has_already(item: Any) -> None:
    """Any field may turn out to be ragged, and then its lengths stand beside it."""
    names = {field.name for field in taken(item).form.fields}
    assert not {KEY, VALID, *(f"{name}{LENGTH}" for name in names)} & names


@pytest.mark.parametrize("turn", [1, -1])
def test_a_cache_of_names_that_a_batch_has_can_be_loaded(tmp_path: Path, turn: int) -> None:
    def make(at: int) -> dict[str, Any]:
        item = {"key": at, "valid": at % 2, "x": np.ones(at + 1), "x_length": at + 1, "x_2": 5.0}
        return dict([*item.items()][::turn])

    dataset = flatout.cached(Made(make), tmp_path / "cache", check=False)
    for _ in range(2):
        for at in range(len(dataset)):
            assert_same(dataset[at], make(at))
    assert dataset.is_complete
    assert len(FastDataset(tmp_path / "cache")) == 12
    (batch,) = FastDataLoader(tmp_path / "cache", 12, num_workers=0)
    assert {"key", "field_key", "field_valid"} <= batch.keys()
    assert sorted(batch["field_key"].tolist()) == list(range(12))
