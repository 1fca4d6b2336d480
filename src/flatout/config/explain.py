"""A failed validation in plain words: which key, where it was given, what it is and what was wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flatout.config.fields import AnyField, AutoField
from flatout.config.layer import MISSING, Layer, Path, dotted, leaves, lookup, word
from flatout.config.merge import winner
from flatout.config.overrides import PREFIX
from flatout.config.source import SourceSettings
from flatout.config.suggest import nearest_key, nearest_name

_KINDS: Sequence[type[BaseModel]] = get_args(get_args(AnyField)[0])
"""The section of each kind of field."""


def explain(error: ValidationError, merged: Mapping[Any, Any], layers: Sequence[Layer]) -> list[str]:
    """A sentence for each wrong key of `merged`, one for each of the `layers` that give an unknown key."""
    wrong: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        wrong.setdefault(_path(details, merged), []).append(details)
    # A value that may be of several types fails once as a whole and once inside; the inside says more.
    outer = {path[:end] for path in wrong for end in range(len(path))}
    sentences: list[str] = []
    for path in [path for path in wrong if path not in outer]:
        if wrong[path][0]["type"] == "extra_forbidden":
            sentences += [_unknown(path, layer, merged) for layer in layers if layer.holds(path)]
        else:
            sentences.append(_unfit(path, wrong[path], merged, layers))
    return sorted(sentences, key=_in_file_order)


def refuse_switches(config: BaseModel, merged: Mapping[Any, Any], layers: Sequence[Layer]) -> list[str]:
    """One sentence for each number that was given as true or false, which pydantic takes for 1 and 0."""
    accepted = config.model_dump()
    return [
        f"{_where(path, layers)} is {word(value)}; wanted a number"
        for path, value in leaves(merged)
        if isinstance(value, bool) and type(lookup(accepted, path)) in (int, float)
    ]


def refuse_strangers(config: SourceSettings, merged: Mapping[Any, Any], layers: Sequence[Layer]) -> list[str]:
    """One sentence for each key of a field without a kind that no kind of field has."""
    known = {key for model in _KINDS for key in model.model_fields}
    strangers = [
        ("fields", name, key)
        for name, section in config.fields.items()
        if isinstance(section, AutoField)
        for key in section.model_extra or ()
        if key not in known
    ]
    return [_unknown(path, layer, merged) for path in strangers for layer in layers if layer.holds(path)]


def _in_file_order(sentence: str) -> list[str]:
    """Sorts "line 9" before "line 10"."""
    return [part.zfill(8) if part.isdigit() else part for part in re.split(r"(\d+)", sentence)]


def _unfit(path: Path, found: list[ErrorDetails], merged: Mapping[Any, Any], layers: Sequence[Layer]) -> str:
    wanted = " or ".join(dict.fromkeys(_wanted(details) for details in found))
    value = lookup(merged, path, MISSING)
    got = "is missing" if value is MISSING else f"is {word(value)}"
    return f"{_where(path, layers)} {got}; wanted {wanted}{_likely(value, found)}"


def _likely(value: Any, found: Sequence[ErrorDetails]) -> str:
    """The name that was likely meant, where only some names will do."""
    expected = (details.get("ctx", {}) for details in found)
    told = (context.get("expected") or context.get("expected_tags") or "" for context in expected)
    names = [name for text in told for name in re.findall(r"'([^']+)'", str(text))]
    nearest = nearest_name(value, names) if isinstance(value, str) else None
    return f"; did you mean '{nearest}'?" if nearest else ""


def _unknown(path: Path, layer: Layer, merged: Mapping[Any, Any]) -> str:
    nearest, keys = nearest_key(path), _keys_of_kind(path, merged)
    if keys and nearest and nearest.rpartition(".")[2] not in keys:  # another kind has that
        nearest = None
    if nearest and layer.origin == "environment":
        nearest = PREFIX + nearest.replace(".", "__").upper()
    hint = f"did you mean '{nearest}'?" if nearest else "'flatout config' lists the known ones"
    if keys and not nearest:  # no printed config has them
        hint = f"a field of this kind has {', '.join(keys)}"
    hint = _of_other_kinds(path, merged) or hint
    return f"{layer.describe(path)}: unknown key '{dotted(layer.spelling(path))}'; {hint}"


def _keys_of_kind(path: Path, merged: Mapping[Any, Any]) -> list[str]:
    """What may stand in a field's section, by its kind; none where the path is no key of one."""
    if len(path) != 3 or path[0] != "fields":
        return []
    kind = lookup(merged, (*path[:2], "kind"), MISSING)
    models = [model for model in _KINDS if model.model_fields["kind"].default == kind]
    return [key for model in models for key in model.model_fields if key != "kind"]


def _of_other_kinds(path: Path, merged: Mapping[Any, Any]) -> str | None:
    """What to say of a field's key that other kinds of field have."""
    if len(path) != 3 or path[0] != "fields":
        return None
    kind, key = lookup(merged, (*path[:2], "kind"), MISSING), path[2]
    having = [model.model_fields["kind"].default for model in _KINDS if key in model.model_fields]
    if not having:
        return None
    if kind == "mask" and {"image", "volume"} & set(having):
        return f"a mask follows its image: give '{key}' to the image or volume that it belongs to"
    return f"a field of kind '{kind}' has no '{key}'; {_listed(having)}"


def _listed(kinds: Sequence[str]) -> str:
    return f"only kind {kinds[0]} has it" if len(kinds) == 1 else f"kinds {', '.join(kinds)} have it"


def _where(path: Path, layers: Sequence[Layer]) -> str:
    layer = winner(layers, path) or winner(layers, path[:1])
    return f"{layer.describe(path)}: '{dotted(layer.spelling(path))}'" if layer else f"'{dotted(path)}'"


def _wanted(details: ErrorDetails) -> str:
    context = details.get("ctx", {})
    if details["type"] == "missing":
        return "a value"
    if details["type"] == "union_tag_not_found":
        kinds = [kind.model_fields["kind"].default for kind in _KINDS]
        return ", ".join(f"'{kind}'" for kind in kinds)
    if details["type"] == "union_tag_invalid":
        return str(context["expected_tags"])
    noun, should, rest = details["msg"].partition(" should ")
    if not should:
        return details["msg"]
    rest = rest.partition(", unable to")[0].partition(" or instance of")[0]
    return _PLAIN.get(rest, rest.removeprefix("be ")) if noun == "Input" else f"a {noun.lower()} to {rest}"


_PLAIN = {
    "be a valid integer": "a whole number",
    "be a valid number": "a number",
    "be a valid string": "text",
    "be a valid boolean": "true or false",
    "be a valid dictionary": "keys with values",
    "be a valid dictionary or object to extract fields from": "keys with values",
    "be a valid list": "a list",
    "be a valid tuple": "a list",
}
"""What pydantic wants after "should", in words of a config file."""


def _path(details: ErrorDetails, merged: Mapping[Any, Any]) -> Path:
    """The key that an error is about: pydantic's location without the names of union members in it."""
    path: Path = ()
    for part in details["loc"]:
        if lookup(merged, (*path, part), MISSING) is not MISSING:
            path = (*path, part)
    if details["type"].startswith("union_tag"):
        return (*path, "kind")
    return (*path, details["loc"][-1]) if details["type"] == "missing" else path
