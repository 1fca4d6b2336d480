"""One typed config: schema, presets, load, overrides."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.config.load import load_config as load_config
    from flatout.config.load import resolve_config as resolve_config
    from flatout.config.loader import LoaderSettings as LoaderSettings
    from flatout.config.presets import describe_preset as describe_preset
    from flatout.config.presets import list_presets as list_presets
    from flatout.config.presets import list_tasks as list_tasks
    from flatout.config.schema import Config as Config
    from flatout.config.schema import config_schema as config_schema
    from flatout.config.text import to_yaml as to_yaml

# Lazily, because a worker needs the field sections alone: they are imported in half the time of all of it.
_HOMES = {
    "Config": "schema",
    "LoaderSettings": "loader",
    "load_config": "load",
    "resolve_config": "load",
    "config_schema": "schema",
    "to_yaml": "text",
    "list_presets": "presets",
    "describe_preset": "presets",
    "list_tasks": "presets",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
