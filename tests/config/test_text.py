"""Config files become settings with lines; broken ones are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.text import parse_yaml, read_file, to_yaml
from flatout.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-1.5e+3", -1500.0),
        (".5", 0.5),
        ("8", 8),
        ("-8", -8),
        ("1_000", 1000),
        ("0x10", 16),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2026-01-25", "2026-01-25"),
        ("16-32", "16-32"),
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("~", None),
        ("[1, a]", [1, "a"]),
        ("16-mixed", "16-mixed"),
        ("package.module:function", "package.module:function"),
    ],
)
def test_yaml_scalars(text: str, value: Any) -> None:
    found = parse_yaml(text, "x")[0]

    assert found == value
    assert type(found) is type(value)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(categories=["L", "N", "P"]), min_size=1),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.lists(st.integers()),
    )
)
def test_yaml_reads_what_yaml_wrote(values: dict[str, Any]) -> None:
    assert parse_yaml(to_yaml(values), "x")[0] == values


def test_lines_of_keys_at_every_depth() -> None:
    _, lines = parse_yaml("a: 1\nb:\n  c: 2\n\n  d: [{e: 3}]\n", "x")

    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "d"): 5, ("b", "d", 0, "e"): 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 1\n", "x, line 3: 'a' stands here and in line 1"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "x, line 4: 'a.b' stands here and in line 2"),
        ("a: [{b: 1, b: 2}]", "x, line 1: 'a.0.b' stands here and in line 1"),
        ('a: 1\n"a": 2\n', "x, line 2: 'a' stands here"),
        ("a: 1\nb: [1,\n", "x, line 3: "),
        ("a: 1\n\tb: 2", "x, line 2: "),
        ("a: &a [*a]", "x, line 1: 'a.0' contains itself"),
        ("a: !!python/object/apply:os.system [ls]", "x, line 1: could not determine a constructor"),
        ("a: 1\n---\nb: 2", "x, line 2: but found another document"),
        ("{[1]: 2}", "x, line 1: found unhashable key"),
    ],
)
def test_broken_yaml_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "x")
    assert str(caught.value).startswith(message)


def test_anchors_and_merge_keys_work() -> None:
    text = "base: &base {a: 1, b: 2}\nown:\n  <<: *base\n  b: 3\n"

    assert parse_yaml(text, "x")[0]["own"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("name", ["c.yaml", "c.yml", "c.json", "c.jsonc", "C.YAML", "c.py"])
def test_every_kind_of_file(tmp_path: Path, name: str) -> None:
    text = {"py": "a = 1", "yaml": "a: 1", "yml": "a: 1"}.get(name.lower().rsplit(".")[-1], '{"a": 1}')
    file = tmp_path / name
    file.write_text("\ufeff" + text, encoding="utf-8")

    layer = read_file(file)

    assert layer.values == {"a": 1}
    assert layer.describe(("a",)) == f"{file}, line 1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.toml", b"a = 1", "'.toml' is no config file; wanted one of .json"),
        ("config", b"a: 1", "'' is no config file"),
        ("c.yaml", b"", "is empty"),
        ("c.yaml", b"# nothing\n", "is empty"),
        ("c.json", b" \n", "is empty"),
        ("c.json", b"{}", "is empty"),
        ("c.py", b"# nothing", "is empty"),
        ("c.yaml", b"- a\n- b\n", "holds a list at its top level"),
        ("c.json", b"[1]", "holds a list at its top level"),
        ("c.yaml", b"just words", "holds a str at its top level"),
        ("c.yaml", b"a: \xff\xfe", "is not UTF-8 text"),
        ("c.yaml", b"a: \x00", "special characters are not allowed"),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=message) as caught:
        read_file(file)

    assert str(file) in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_file(tmp_path / "none.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path / "folder.yaml")
