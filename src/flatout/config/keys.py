"""Every key a config may have, with its documentation and default: what suggestions and docs are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from flatout.config.section import Section


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its path ("*" stands for a name the user chooses), and what is known about it."""

    path: tuple[str, ...]
    doc: str
    default: Any
    """None for a section, whose keys have their own, and for a key that has to be given."""
    is_section: bool = False
    is_required: bool = False


def list_keys(model: type[Section]) -> list[Key]:
    """Every key of `model`, sections before their keys; keys that kinds of field share come once."""
    return list({key.path: key for key in _walk(model, ())}.values())


def _walk(model: type[Section], path: tuple[str, ...]) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        here = (*path, name)
        sections = list(_sections(info.annotation))
        yield Key(here, _one_line(info), _default(info, sections), bool(sections), info.is_required())
        for section in sections:
            yield from _walk(section, (*here, "*") if get_origin(info.annotation) is dict else here)


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """The sections that a value of this annotation may be."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)


def _default(info: FieldInfo, sections: list[type[Section]]) -> Any:
    if sections or info.is_required():
        return None
    return info.get_default(call_default_factory=True, validated_data={})


def _one_line(info: FieldInfo) -> str:
    return " ".join((info.description or "").split())
