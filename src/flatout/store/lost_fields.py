"""Lost fields: what a store has and a guess no longer finds. One odd cell must not cost all samples a field."""

from __future__ import annotations

from pathlib import Path

from flatout.config import Config
from flatout.errors import ConfigError
from flatout.store.job import Job
from flatout.store.metadata import StoreMeta


def refuse_lost_fields(folder: Path, meta: StoreMeta, config: Config, job: Job) -> None:
    """Where fields are guessed, all that the store has must be found again.

    Who changes `fields` has said what is meant; so has who says --force, or names all fields.

    Raises:
        ConfigError: one is gone, or of another kind.
    """
    if config.manifest is None or not config.guesses_fields:
        return
    if meta.settings.get("fields") != job.settings.get("fields"):
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
        "what was added to it, or say what is meant (--set fields.NAME.kind=KIND), or use --force to have the "
        "store as it would be made now"
    )
