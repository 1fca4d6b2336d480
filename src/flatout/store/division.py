"""Which split and which group each manifest row belongs to, by the columns that the settings name."""

from __future__ import annotations

from typing import Any

from flatout.config.source import SplitSection
from flatout.errors import ConfigError
from flatout.source import Manifest, assign_splits, key_hashes
from flatout.types import Array


def divide(manifest: Manifest, hashes: Array, settings: SplitSection) -> tuple[Any, Array]:
    """(split name of each row, 64-bit group of each row; its own key's hash where it has none).

    Raises:
        ConfigError: a column that the settings name is not there.
    """
    groups = _column(manifest, settings.group, "splits.group")
    splits = assign_splits(
        manifest.keys,
        settings,
        hashes=hashes,
        column=_column(manifest, settings.column or manifest.split_column, "splits.column"),
        groups=groups,
        classes=_column(manifest, settings.stratify, "splits.stratify"),
    )
    return splits, _group_hashes(hashes, groups)


def _column(manifest: Manifest, name: str | None, setting: str) -> Any:
    if name is None:
        return None
    if name not in manifest.table.column_names:
        raise ConfigError(
            f"{setting}: the manifest has no column '{name}'; it has: "
            f"{', '.join(manifest.table.column_names)}. Set another; if an earlier prepare chose it, --force "
            "divides anew"
        )
    return manifest.table[name]


def _group_hashes(hashes: Array, groups: Any) -> Array:
    """Hash of each row's group; of its own key where it has none."""
    if groups is None:
        return hashes
    hashes = hashes.copy()
    texts = groups.to_pylist()
    named = [at for at, text in enumerate(texts) if text is not None]
    hashes[named] = key_hashes([str(texts[at]) for at in named])
    return hashes
