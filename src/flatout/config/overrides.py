"""Settings from outside the file: FLATOUT_* variables, `--set a.b=c`, and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.config.layer import Layer, Path, put
from flatout.config.text import parse_yaml
from flatout.errors import ConfigError

PREFIX = "FLATOUT_"
"""What a variable's name starts with to be a setting."""


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """FLATOUT_BATCH_SIZE=4 sets batch_size, FLATOUT_CACHE_CONFIG__CACHE_SIZE=9 cache_config.cache_size."""
    values: dict[Any, Any] = {}
    spelled: dict[Path, Path] = {}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name != PREFIX:
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            put(values, path, _scalar(environ[name], name))
            spelled[path] = (name,)
    return Layer("environment", values, spelled=spelled)


def sets_layer(sets: Sequence[str]) -> Layer:
    """Each "a.b=c" sets a.b to c, read as YAML; a later one wins.

    Raises:
        ConfigError: there is no "=", no name, or c is no YAML.
    """
    values: dict[Any, Any] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or not all(path):
            raise ConfigError(f"--set {text}: wanted KEY=VALUE, such as --set cache_config.cache_size=2000")
        put(values, path, _scalar(value, f"--set {name}"))
    return Layer("--set", values)


def options_layer(options: Mapping[str, Any]) -> Layer:
    """Options by dotted name; None means that the option was not given."""
    values: dict[Any, Any] = {}
    for name, value in options.items():
        if value is not None:
            put(values, tuple(name.split(".")), value)
    return Layer("options", values)


def _scalar(text: str, origin: str) -> Any:
    return parse_yaml(text, origin)[0]
