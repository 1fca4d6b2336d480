"""Text of config files: nested settings with their lines out of YAML, JSON or Python; YAML out of settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import yaml

from flatout.config.jsonc import parse_jsonc
from flatout.config.layer import Layer, Path, dotted
from flatout.config.literals import parse_assignments
from flatout.errors import ConfigError

Parsed = tuple[Any, dict[Path, int]]


class _Loader(yaml.SafeLoader):
    """Safe YAML in which only true and false are booleans and 1e-4 is a number."""

    # YAML 1.1 reads `crc: off` as false, 1e-4 as text, 010 as 8, 1:30 as 90 and 2026-01-25 as a date.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?", "-+0123456789."),
    ("float", r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the loader above would read as something else ('1e4')."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")


def read_file(path: FilePath) -> Layer:
    """The settings that a config file holds, before any renaming.

    Raises:
        ConfigError: no such file, not a config file, not readable, empty, or not a mapping of settings.
    """
    parse = PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(
            f"{path}: '{path.suffix}' is no config file; wanted one of {', '.join(sorted(PARSERS))}"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    values, lines = parse(text, str(path))
    return Layer(str(path), _mapping(values, str(path)), lines)


def parse_yaml(text: str, origin: str) -> Parsed:
    """The value that YAML `text` holds, and the line of each key.

    Raises:
        ConfigError: the text is no YAML, a key stands twice, or a value contains itself.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[Path, int] = {}
        if node is None:
            return None, lines
        _check(node, (), lines, origin, ())
        return loader.construct_document(node), lines
    except ConfigError:
        raise  # a ValueError that has said where
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{origin}, line {mark.line + 1}" if mark else origin
        raise ConfigError(f"{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{origin}: {error}") from error


def to_yaml(document: Any) -> str:
    """YAML text of plain values, in their order, which `parse_yaml` reads back as they are."""
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    if _LINE_BREAKS.search(text):
        # PyYAML writes these unescaped and reads them as the end of a line.
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=100)
    return str(text)


def _check(node: Any, path: Path, lines: dict[Path, int], origin: str, around: tuple[int, ...]) -> None:
    """Note the line of every key below `node`; refuse keys that stand twice and values inside themselves."""
    if id(node) in around:
        raise ConfigError(f"{origin}, line {node.start_mark.line + 1}: '{dotted(path)}' contains itself")
    around = (*around, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check(item, (*path, index), lines, origin, around)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key, line = _key(key_node), key_node.start_mark.line + 1
        if key in seen:
            name = dotted((*path, key))
            raise ConfigError(f"{origin}, line {line}: '{name}' stands here and in line {seen[key]}; keep one")
        seen[key] = lines[*path, key] = line
        _check(value_node, (*path, key), lines, origin, around)


def _key(node: Any) -> Any:
    """A key as the mapping will hold it: numbers as numbers, other scalars as text."""
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int":
        return int(node.value.replace("_", ""), 0)
    return node.value if isinstance(node, yaml.ScalarNode) else id(node)


def _mapping(values: Any, origin: str) -> dict[Any, Any]:
    if values is None or values == {}:
        raise ConfigError(f"{origin}: is empty; wanted settings such as 'batch_size: 8'")
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise ConfigError(f"{origin}: holds a {kind} at its top level; wanted settings such as 'batch_size: 8'")
    return values


def _parse_json(text: str, origin: str) -> Parsed:
    return parse_jsonc(text, origin) if text.strip() else (None, {})


PARSERS: dict[str, Callable[[str, str], Parsed]] = {
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".json": _parse_json,
    ".jsonc": _parse_json,
    ".py": parse_assignments,
}
"""How each kind of config file is read."""
