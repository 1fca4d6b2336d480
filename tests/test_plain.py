"""Plain: what a dataclass writes it reads back, and anything else is refused with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import RecordError
from flatout.plain import build, parse


@dataclass(frozen=True)
class Inner:
    name: str
    share: float


@dataclass(frozen=True)
class Outer:
    num: int
    is_kept: bool
    inner: tuple[Inner, ...]
    seconds: Mapping[str, float]
    maybe: Inner | None = None
    loose: Mapping[str, Any] = field(default_factory=dict)


INNER = st.builds(Inner, st.text(), st.floats(allow_nan=False, allow_infinity=False))
OUTER = st.builds(
    Outer,
    st.integers(-(2**62), 2**62),
    st.booleans(),
    st.lists(INNER, max_size=3).map(tuple),
    st.dictionaries(st.text(), st.floats(-1e9, 1e9), max_size=3),
    st.none() | INNER,
    st.dictionaries(st.text(), st.integers() | st.text(), max_size=2),
)


@given(OUTER)
def test_what_was_written_is_read(value: Outer) -> None:
    document = parse(json.dumps(asdict(value)).encode(), "x.json")
    assert build(Outer, document, "x.json") == value


def outer(**changes: Any) -> dict[str, Any]:
    good = {"num": 1, "is_kept": True, "inner": [{"name": "a", "share": 1}], "seconds": {"wait": 0.5}}
    return {**good, **changes}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "the whole: got [], wanted an object"),
        (outer(num="1"), 'num: got "1", wanted a whole number'),
        (outer(num=True), "num: got true"),
        (outer(num=1 << 70), "wanted a whole number"),
        (outer(num=1.5), "wanted a whole number"),
        (outer(is_kept=1), "is_kept: got 1, wanted true or false"),
        (outer(inner=[{"name": "a", "share": "<b>"}]), 'inner[0].share: got "<b>", wanted a number'),
        (outer(inner={"a": 1}), "wanted a list"),
        (outer(inner=[{"share": 1.0}]), "inner[0]: got nothing, wanted a value for name"),
        (outer(inner=[{"name": None, "share": 1.0}]), "inner[0].name: got null, wanted text"),
        (outer(seconds={"a\x1b[31m": "x"}), "seconds.a\\u001b[31m: got"),
        (outer(seconds=[1]), "seconds: got [1], wanted an object"),
        (outer(num="x" * 999), "..., wanted"),
    ],
)
def test_what_is_wrong_is_named(document: Any, told: str) -> None:
    with pytest.raises(RecordError) as error:
        build(Outer, document, "x.json")
    assert told in str(error.value)
    assert str(error.value).startswith("x.json is no record")
    assert "\x1b" not in str(error.value)


def test_null_is_no_number_and_strangers_are_left_out() -> None:
    made = build(Outer, outer(inner=[{"name": "a", "share": None}], newer="value", maybe=None), "x")
    assert math.isnan(made.inner[0].share)
    assert made.maybe is None
    assert math.isnan(build(Inner, {"name": "a", "share": 10**400}, "x").share)
    assert build(Outer, outer(num=3.0), "x").num == 3


@pytest.mark.parametrize(
    "text",
    [b"", b"  \n", b'{"a": 1', b"\xff\xfe", b"nonsense", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"],
)
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(RecordError, match=r"^x\.json is"):
        parse(text, "x.json")


def test_a_mark_of_the_encoding_is_no_content() -> None:
    assert parse(b'\xef\xbb\xbf{"a": 1}', "x") == {"a": 1}
