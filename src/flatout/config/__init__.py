"""One typed config: schema, presets, load, overrides."""

from flatout.config.load import load_config, resolve_config
from flatout.config.loader import LoaderSettings
from flatout.config.presets import describe_preset, list_presets, list_tasks
from flatout.config.schema import Config, config_schema
from flatout.config.text import to_yaml

__all__ = [
    "Config",
    "LoaderSettings",
    "load_config",
    "resolve_config",
    "config_schema",
    "to_yaml",
    "list_presets",
    "describe_preset",
    "list_tasks",
]
