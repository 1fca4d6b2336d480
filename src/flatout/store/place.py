"""Where a store may stand: in a folder of its own, not among the files that it is made from, or others."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from flatout.errors import ConfigError
from flatout.store.commit import QUARANTINE, STATS
from flatout.store.companions import PENDING
from flatout.store.files import is_leftover
from flatout.store.journal import PLANS
from flatout.store.lock import OWNER
from flatout.store.log import LOG
from flatout.store.metadata import INDEX_NAME, JOURNAL, ROOT, SHARD_FOLDER
from flatout.store.view import VIEW

_OWN = frozenset({ROOT, SHARD_FOLDER, JOURNAL, VIEW, QUARANTINE, STATS, LOG, OWNER, PENDING})
_NOBODYS = (".*", "*.log", "lost+found")
"""Hidden files, the log of the job that prepares, what a new disk has: no sources."""


def refuse_source_folder(manifest: str | Mapping[str, str] | None, folder: Path) -> None:
    """Refuse a place that is itself the folder of the source files, and a new one among files of others.

    The next prepare would find the store among its sources, or take a folder of them for a store and leave it
    out; and whoever deletes one deletes the other. What came to a store that stands already is let be.

    Raises:
        ConfigError: it is.
    """
    if is_source_folder(manifest, folder):
        raise _taken(folder, "the source files")
    others = [] if _is_begun(folder) else foreign_names(folder)
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise _taken(folder, f"what is no store's ('{others[0]}'{more})")


def is_source_folder(manifest: str | Mapping[str, str] | None, folder: Path) -> bool:
    """Whether a manifest, or one of a split, is this very folder, by whatever name."""
    paths = [manifest] if isinstance(manifest, str) else list((manifest or {}).values())
    sources = [Path(path).expanduser() for path in paths]
    return folder.is_dir() and any(source.is_dir() and source.samefile(folder) for source in sources)


def foreign_names(folder: Path) -> list[str]:
    """What stands in a folder that no prepare put there, in order."""
    return sorted(path.name for path in folder.iterdir() if not _may_be(path.name)) if folder.is_dir() else []


def _is_begun(folder: Path) -> bool:
    """Whether there is a store, or a prepare of one that was cut off."""
    return (folder / ROOT).is_file() or (folder / JOURNAL).is_file()


def _may_be(name: str) -> bool:
    """Whether it is a name of a store's, or of a file that stands in any folder."""
    patterns = (*_NOBODYS, PLANS)
    is_own = name in _OWN or INDEX_NAME.fullmatch(name) is not None or is_leftover(name)
    return is_own or any(fnmatch(name, pattern) for pattern in patterns)


def _taken(folder: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{folder} holds {what}; a store needs a folder of its own. Choose another "
        f"(--output-dir, preprocessed_data_dir), such as {folder.absolute().name}_store"
    )
