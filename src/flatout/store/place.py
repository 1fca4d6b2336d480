"""Where a store may stand: in a folder of its own, not among the files that it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flatout.errors import ConfigError


def refuse_source_folder(manifest: str | Mapping[str, str] | None, folder: Path) -> None:
    """Refuse a place that is itself the folder of the source files.

    The next prepare would find the store among its sources, and whoever deletes one deletes the other.

    Raises:
        ConfigError: it is.
    """
    if is_source_folder(manifest, folder):
        raise ConfigError(
            f"{folder} holds the source files; a store needs a folder of its own. Choose another "
            f"(--output-dir, preprocessed_data_dir), such as {folder.absolute().name}_store"
        )


def is_source_folder(manifest: str | Mapping[str, str] | None, folder: Path) -> bool:
    """Whether a manifest, or one of a split, is this very folder, by whatever name."""
    paths = [manifest] if isinstance(manifest, str) else list((manifest or {}).values())
    sources = [Path(path).expanduser() for path in paths]
    return folder.is_dir() and any(source.is_dir() and source.samefile(folder) for source in sources)
