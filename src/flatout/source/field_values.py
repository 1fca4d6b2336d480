"""A field's settings as plain values: what a worker needs of a config section, without pydantic.

To import the config's types takes 0.15 s, a third of what a worker took to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from flatout.config.fields import AnyField


class FieldValues:
    """Has the attributes of the section that it was made of; `kind` tells which one that was."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"FieldValues({self.__dict__})"


def plain_field(section: AnyField) -> AnyField:
    """The section's values under their names; steps cannot tell it from the section itself."""
    if isinstance(section, FieldValues):
        return section
    return cast("AnyField", FieldValues(dict(section)))
