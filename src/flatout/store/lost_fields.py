"""Lost fields: what a store has and a guess no longer finds. One odd cell must not cost all samples a field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.config import Config
from flatout.errors import ConfigError
from flatout.store.job import Job
from flatout.store.metadata import StoreMeta


def refuse_lost_fields(folder: Path, meta: StoreMeta, config: Config, job: Job) -> None:
    """Where fields are guessed, all that the store has must be found again.

    Who changes `fields`, or what a column divides or names, has said what is meant; so has who says --force.

    Raises:
        ConfigError: one is gone, or of another kind.
    """
    if config.manifest is None or not config.guesses_fields:
        return
    if _meant(meta.settings) != _meant(job.settings):
        return
    found = job.kinds
    gone = [spec for spec in meta.fields if spec.name not in found]
    turned = [spec for spec in meta.fields if spec.name in found and spec.kind != found[spec.name]]
    if not gone and not turned:
        return
    told = [f"'{spec.name}' ({spec.kind}) is not found any more" for spec in gone]
    told += [f"'{spec.name}' was a {spec.kind} and would be a {found[spec.name]}" for spec in turned]
    raise ConfigError(
        f"{folder}: of its fields {'; '.join(told)}. The notes say how the source is read now, and why. Mend "
        "the source, or drop a field (--set fields.NAME=null), or say what it is (fields.NAME.kind=KIND), or "
        "use --force to have the store as it would be made now"
    )


def _meant(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the settings say of columns."""
    splits = settings.get("splits") or {}
    return settings.get("fields"), settings.get("key_column"), splits.get("column"), splits.get("group")
