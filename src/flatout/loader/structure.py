"""Structure of items: an item taken apart into arrays, and put together again with the same types.

A form is JSON: nested nodes with the containers' types and keys, and at each leaf the field that holds it and
the type that it had. Nothing in it is executed or imported.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from flatout.errors import CacheError
from flatout.loader.fetch import KEY, LENGTH, VALID
from flatout.loader.leaves import UnstorableError, leaf_of, value_of
from flatout.store.fill.item import FieldForm, Form, Item
from flatout.types import Array

DICTS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict"}
MAX_DEPTH = 32
RESERVED = {"flatout", KEY, VALID}
"""Names that no field of a store that can be loaded has: of its own group, and of what every batch has."""


def take_apart(item: Any, index: int) -> Item:
    """An item in, its form and private copies of its arrays out.

    Raises:
        CacheError: a part of it cannot be stored; the message names item, field and type.
    """
    taker = _Taker()
    try:
        node = taker.take(item, (), 0)
        if not taker.fields:
            raise UnstorableError("has no fields")
    except UnstorableError as error:
        where = f"field '{taker.at}'" if taker.at else "it"
        raise CacheError(
            f"item {index} cannot be cached: {where} {error}. Items are tensors, arrays, PIL images, numbers "
            "and strings, in dicts, tuples and lists; change what the dataset returns, or cache a part of it"
        ) from error
    text = json.dumps(node, separators=(",", ":"))
    return Item(Form(text, tuple(taker.fields)), taker.arrays)


Build = Callable[[Sequence[Array]], Any]
"""Arrays in the order of the form's fields in, the item out; the arrays become its own."""


def plan_build(text: str) -> Build:
    """What puts items of a form together.

    Raises:
        CacheError: the form is damaged or of a later release.
    """
    try:
        return _plan(json.loads(text))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CacheError(f"a cache describes its items in an unknown way: {text[:200]}") from error


def _plan(node: list[Any]) -> Build:
    kind, inner, *details = node
    if kind in DICTS.values():
        container = next(known for known, name in DICTS.items() if name == kind)
        keys, builds = [key for key, _ in inner], [_plan(child) for _, child in inner]
        return lambda arrays: container(zip(keys, [build(arrays) for build in builds], strict=True))
    if kind in ("tuple", "list"):
        builds = [_plan(child) for child in inner]
        if kind == "list":
            return lambda arrays: [build(arrays) for build in builds]
        return lambda arrays: tuple([build(arrays) for build in builds])
    make, first = value_of(kind, details), int(inner)
    if kind == "image":
        return lambda arrays: make(arrays[first : first + 2])
    return lambda arrays: make((arrays[first],))


class _Taker:
    """Walks one item; fields and arrays come out in order."""

    def __init__(self) -> None:
        self.fields: list[FieldForm] = []
        self.arrays: list[Array] = []
        self.at = ""
        self._names: set[str] = set()

    def take(self, value: Any, path: tuple[str, ...], depth: int) -> list[Any]:
        self.at = ".".join(path)
        if depth > MAX_DEPTH:
            raise UnstorableError(f"is nested more than {MAX_DEPTH} deep")
        kind = type(value)
        if kind in DICTS:
            keys = [_key(key) for key in value]
            nodes = [self.take(item, (*path, str(key)), depth + 1) for key, item in value.items()]
            return [DICTS[kind], list(zip(keys, nodes, strict=True))]
        is_container = kind is tuple and not path
        if not is_container and (leaf := self._leaf(value, path)) is not None:
            return leaf
        if kind is tuple or kind is list:
            names = _names_of(len(value), path)
            return [kind.__name__, [self.take(v, n, depth + 1) for v, n in zip(value, names, strict=True)]]
        raise UnstorableError(f"is {_described(value)}")

    def _leaf(self, value: Any, path: tuple[str, ...]) -> list[Any] | None:
        leaf = leaf_of(value)
        if leaf is None:
            return None
        first = len(self.fields)
        name = self._free_name("_".join(path or ("input",)))
        for part, array in zip(leaf.parts, leaf.arrays, strict=True):
            field_name = name + part.suffix
            self._names.add(field_name)
            self.fields.append(FieldForm(field_name, part.dtype, part.kind, part.encoding, part.is_ragged))
            self.arrays.append(array)
        return [leaf.kind, first, *leaf.details]

    def _free_name(self, wanted: str) -> str:
        """A name that a store's field may have, and that is not taken: the form knows the real one."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)[:48]
        plain = plain if plain[:1].isalpha() and plain not in RESERVED else f"field_{plain}"
        name, number = plain, 2
        while self._is_taken(name):
            name, number = f"{plain}_{number}", number + 1
        return name

    def _is_taken(self, name: str) -> bool:
        """By a field, or by the lengths that a batch has beside a ragged one: any may turn out to be ragged."""
        own = {name, f"{name}_extra"}
        return bool({*own, *(each + LENGTH for each in own), name.removesuffix(LENGTH)} & self._names)


def _key(key: Any) -> str | int | bool:
    if type(key) not in (str, int, bool):
        raise UnstorableError(f"has a key of type {type(key).__name__}; strings and integers can be kept")
    return key  # type: ignore[no-any-return]


def _names_of(count: int, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """As a prepare names them: a pair is input and target, more are field0, field1, ..."""
    if path:
        return ((*path, str(at)) for at in range(count))
    return ((name,) for name in (("input", "target") if count == 2 else map("field{}".format, range(count))))


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"a {type(value).__name__}, a subclass whose extra information would be lost"
    if isinstance(value, tuple):
        return f"a {type(value).__name__}: a plain tuple or a dict can be given back, a named tuple cannot"
    return f"of type {type(value).__module__}.{type(value).__qualname__}"
