"""A field whose kind has been found: its settings checked, and told in the words of a config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flatout.config.explain import explain
from flatout.config.fields import AnyField
from flatout.config.layer import Layer
from flatout.config.source import SourceSettings
from flatout.errors import ConfigError


def complete_field(name: str, settings: Mapping[str, Any], kind: str, why: str) -> AnyField:
    """The field of these settings as `kind`.

    Args:
        why: where the kind comes from, for the message: "guessed from column 'age'".

    Raises:
        ConfigError: the kind does not take a setting, or not this value.
    """
    values = {"fields": {name: {**settings, "kind": kind}}}
    try:
        return SourceSettings.model_validate(values).fields[name]
    except ValidationError as error:
        sentences = explain(error, values, [Layer(f"field '{name}' ({kind}, {why})", values)])
        raise ConfigError("; ".join(sentences)) from error
