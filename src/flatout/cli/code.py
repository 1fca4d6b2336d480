"""Code that a command's options name: found beside the config and in the current folder, then imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flatout.config import Config
from flatout.errors import ConfigError
from flatout.source import load_object


def load_code(target: str, config: Config) -> Any:
    """The callable that "package.module:name" names.

    Raises:
        ConfigError: it cannot be imported, has no such name, or cannot be called.
    """
    for folder in (Path.cwd(), config.config_dir):
        if folder is not None and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    found = load_object(target)
    if not callable(found):
        raise ConfigError(f"'{target}' is a {type(found).__name__}; something that can be called is wanted")
    return found
