"""An item of a dataset as named arrays, and the form that tells which items can stand in one shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.source import hash_key
from flatout.store.shard_writer import EncodedSample
from flatout.types import Array, FieldSpec, Shape


@dataclass(frozen=True)
class FieldForm:
    """What all items of a form share in one field; shapes may differ, the number of axes may not."""

    name: str
    dtype: str
    """NumPy dtype of the field as others read it."""
    kind: str = "array"
    encoding: str = "none"
    is_ragged: bool = False
    """One axis of any length, even if all items seen so far agree (text, lists of numbers)."""


@dataclass(frozen=True)
class Form:
    """A structure of items: `text` is what gives the item back, `fields` is what the store keeps."""

    text: str
    fields: tuple[FieldForm, ...]


@dataclass(frozen=True)
class Item:
    """One item taken apart: an array a field, in the order of the form, as they will be stored."""

    form: Form
    arrays: Sequence[Array]

    def encoded(self, index: int) -> EncodedSample:
        """As the shard writer takes it, under the key that a prepare of the dataset would give it."""
        return sample_of(index, [field.name for field in self.form.fields], self.arrays)


def sample_of(index: int, names: Sequence[str], arrays: Sequence[Array]) -> EncodedSample:
    """A stored item as the shard writer takes it."""
    key = str(index)
    return EncodedSample.of(key, hash_key(key), -1, dict(zip(names, arrays, strict=True)), {})


def specify(form: Form, samples: Sequence[EncodedSample]) -> tuple[FieldSpec, ...]:
    """The fields of a shard with these items: fixed where all shapes agree, else ragged."""
    return tuple(
        FieldSpec(
            name=field.name,
            kind=field.kind,
            dtype=field.dtype,
            shape=(None,) if field.is_ragged else common_shape([s.stored[field.name].shape for s in samples]),
            encoding=field.encoding,
        )
        for field in form.fields
    )


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that holds all of these: None for each axis that differs."""
    distinct = set(shapes)
    if len(distinct) == 1:
        return distinct.pop()
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*distinct, strict=True))
