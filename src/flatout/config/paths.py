"""Paths in a config: `~` and `$VAR` are expanded, and files beside the config file are found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from glob import escape
from os import PathLike, fspath
from pathlib import Path as FilePath
from typing import Any

from flatout.config.findings import Findings
from flatout.config.layer import Layer, dotted, leaves, put

PATH_KEYS = frozenset(
    {"code_dir", "manifest", "base_path", "preprocessed_data_dir", "output_dir", "pretrained"}
)
"""Top-level keys whose text is a path; `manifest` may hold one path a split."""

PATTERN_KEYS = frozenset({"tarred_audio_filepaths"})
"""Top-level keys whose text, or each of several, is a path with ranges in it: audio_{0..15}.tar."""

_RANGE = re.compile(r"(?:_OP_|[(\[<{])\d+\.\.\d+(?:_CL_|[)\]>}])|\{[^{}]*,[^{}]*\}")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def resolve_paths(
    layer: Layer, folder: FilePath | None, environ: Mapping[str, str], findings: Findings
) -> Layer:
    """The layer with its paths expanded, and relative ones joined to `folder` where they exist there.

    A relative path that `folder` does not have stays relative to the current folder. A path that names a
    variable that is not set is a problem.
    """
    values: dict[Any, Any] = {}
    for path, value in leaves(layer.values):
        if path[0] in PATH_KEYS | PATTERN_KEYS and isinstance(value, str | PathLike | list):
            given = value
            try:
                value = _resolved(given, folder, environ)
                if value != given and _is_here(given):
                    taken = f"took {value}, beside the config; there is one in the current folder, too"
                    findings.notes.append(f"{dotted(layer.spelling(path))}: {taken}")
            except KeyError as error:
                findings.problems.append(
                    f"{layer.describe(path)}: '{dotted(layer.spelling(path))}' is {value!r}, "
                    f"but the variable {error.args[0]} is not set"
                )
        put(values, path, value)
    return replace(layer, values=values)


def _is_here(given: Any) -> bool:
    """Whether a relative path leads somewhere from the current folder as well."""
    return isinstance(given, str) and not FilePath(given).is_absolute() and _exists(FilePath.cwd(), given)


def absolute_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose paths also hold for a file in another folder."""
    found = {name: _absolute(value) if name in PATH_KEYS else value for name, value in values.items()}
    for name in PATTERN_KEYS & values.keys():
        found[name] = _absolute_pattern(values[name], _bases(found))
    return found


def _bases(values: Mapping[str, Any]) -> list[FilePath]:
    """Folders that patterns start from, before the current one."""
    if (base := values.get("base_path")) is not None:
        return [FilePath(base)]
    named = values.get("manifest") or ()
    return [FilePath(path).parent for path in ([named] if isinstance(named, str) else dict(named).values())]


def _absolute_pattern(value: Any, bases: list[FilePath]) -> Any:
    if isinstance(value, list):
        return [_absolute_pattern(each, bases) for each in value]
    is_here = isinstance(value, str) and not any(_exists(base, value) for base in bases)
    return str(FilePath.cwd() / value) if is_here and _exists(FilePath.cwd(), value) else value


def _absolute(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _absolute(inner) for name, inner in value.items()}
    is_path = isinstance(value, str | PathLike) and "://" not in str(value)
    return str(FilePath(value).expanduser().absolute()) if is_path else value


def _resolved(value: Any, folder: FilePath | None, environ: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_resolved(each, folder, environ) for each in value]
    return _beside(_expand(fspath(value), environ), folder) if isinstance(value, str | PathLike) else value


def _expand(text: str, environ: Mapping[str, str]) -> str:
    text = _VARIABLE.sub(
        lambda match: match[0] if _is_name(text, match) else environ[match[1] or match[2]], text
    )
    if text == "~" or text.startswith(("~/", "~\\")):
        return environ.get("HOME", str(FilePath.home())) + text[1:]
    return text


def _is_name(text: str, match: re.Match[str]) -> bool:
    """Whether a `$` belongs to the name of a file or folder that is there.

    Whole paths only: those of a config that was resolved, which is read again, are.
    """
    end = next((at for at in range(match.end(), len(text)) if text[at] in "/\\"), len(text))
    return FilePath(text).is_absolute() and FilePath(text[:end]).exists()


def _beside(text: str, folder: FilePath | None) -> str:
    # From the config's own folder both readings are one; the short form is kept.
    if not text or folder is None or "://" in text or folder == FilePath.cwd():
        return text
    is_there = not FilePath(text).is_absolute() and _exists(folder, text)
    return str(folder / text) if is_there else text


def _exists(folder: FilePath, text: str) -> bool:
    """Whether the path, or any file that its ranges may stand for, is below the folder."""
    parts = _RANGE.split(text)
    if len(parts) == 1:
        return (folder / text).exists()
    return (folder / text).exists() or any(folder.glob("*".join(map(escape, parts))))
