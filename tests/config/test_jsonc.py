"""JSON with comments, trailing commas and duplicate keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.jsonc import parse_jsonc
from flatout.errors import ConfigError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(VALUES, st.sampled_from([None, 0, 2]))
def test_plain_json_is_read_as_json_reads_it(value: Any, indent: int | None) -> None:
    assert parse_jsonc(json.dumps(value, indent=indent), "x")[0] == value


def test_comments_and_trailing_commas_are_skipped() -> None:
    text = """{
      // before
      "a": 1, /* between,
      two lines */ "b": [1, 2,], // after
      "c": {"d": null,},
    }"""

    values, lines = parse_jsonc(text, "x")

    assert values == {"a": 1, "b": [1, 2], "c": {"d": None}}
    assert lines == {("a",): 3, ("b",): 4, ("c",): 5, ("c", "d"): 5}


def test_slashes_and_commas_inside_strings_stay() -> None:
    text = r'{"url": "s3://bucket/*x*/", "b": "quote \" // ,}", "c": "\ud83d\ude00"}'

    assert parse_jsonc(text, "x")[0] == {"url": "s3://bucket/*x*/", "b": 'quote " // ,}', "c": "\U0001f600"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b": {"c": 1,\n\n "c": 2}}', "x, line 4: 'b.c' stands here and in line 2"),
        ('{"a": 1,\n "a": 1}', "x, line 2: 'a' stands here and in line 1"),
        ('{"a": 1\n "b": 2}', "x, line 2: wanted ',' or '}'"),
        ('{"a" 1}', "x, line 1: wanted ':'"),
        ("{a: 1}", "x, line 1: wanted a key in double quotes"),
        ('{"a": \n', "x, line 2: .*got 'the end'"),
        ('{"a": [1, 2', "x, line 1: wanted ',' or ']', got 'the end'"),
        ('{"a": 1} {', "x, line 1: wanted the end of the file"),
        ('{"a": NaN}', "x, line 1: NaN is no number"),
        ('{"a": "open}', "x, line 1: unterminated string"),
        ('{,"a": 1}', "x, line 1: wanted a key"),
        ("[" * 100_000, "x, line 1: nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_jsonc(text, "x")
