"""Places that users name, looked at before work begins, so that a slip is told in one plain sentence."""

from __future__ import annotations

from pathlib import Path

from flatout.config.text import PARSERS
from flatout.errors import ConfigError, ManifestMissingError, StoreMissingError
from flatout.store.lock import GUARD
from flatout.store.metadata import JOURNAL, ROOT, SHARD_FOLDER, has_index, is_store, why_no_root

_PATTERN = ("*", "_OP_", "{", "://")
"""Parts of a manifest's name that stand for several files, or for no file of this machine."""


def check_store(folder: Path) -> None:
    """Say plainly why `folder` is no store.

    Raises:
        StoreMissingError: it does not exist, is a file, is unfinished, or is some other folder.
    """
    if is_store(folder):
        return
    if not folder.exists():
        raise StoreMissingError(f"{folder}: there is no such file or folder")
    if not folder.is_dir():
        raise StoreMissingError(f"{folder} is a file; a store is a folder, made by 'flatout prepare'")
    check_finished(folder)
    raise StoreMissingError(
        f"{folder} is not a store: it has no data_metadata.json. 'flatout prepare' makes one"
    )


def check_finished(folder: Path) -> None:
    """Refuse a store's folder that has no root yet.

    Raises:
        StoreMissingError: a prepare began here and never finished.
    """
    if (folder / JOURNAL).exists() or ((folder / SHARD_FOLDER).is_dir() and (folder / GUARD).exists()):
        if has_index(folder):
            raise StoreMissingError(f"{folder} has no {ROOT}: {why_no_root(folder)}")
        raise StoreMissingError(
            f"{folder}: its first prepare did not finish; run the same 'flatout prepare' again to continue it"
        )


def check_manifest(place: str) -> None:
    """Refuse a manifest that is not there, or is a config.

    Raises:
        ManifestMissingError: there is no such file or folder. ConfigError: it looks like a config.
    """
    path = Path(place).expanduser()
    if path.suffix.lower() in PARSERS and path.suffix.lower() != ".json" and not path.is_dir():
        raise ConfigError(f"{place} is no manifest; is that a config? Then use --config {place}")
    if not path.exists() and not any(part in place for part in _PATTERN):
        raise ManifestMissingError(f"{place}: there is no such file or folder")


def check_output(folder: Path) -> None:
    """Refuse a store's place that is a file.

    Raises:
        ConfigError: it is.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a folder is wanted for the store (--output-dir)")
