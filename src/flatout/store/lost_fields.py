"""Lost fields: what a store has and a guess no longer finds. One odd cell must not cost all samples a field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flatout.config import Config
from flatout.errors import ConfigError
from flatout.store.fingerprint import Fingerprint
from flatout.store.job import Job

Sections = Mapping[str, Mapping[str, Any]]
"""Settings of each field by its name."""


def refuse_lost_fields(
    folder: Path, made_by: Fingerprint, settings: Mapping[str, Any], config: Config, job: Job
) -> None:
    """Where fields are guessed, all that the store was made of must be found again.

    Whose name or column the settings now speak of otherwise than before (`settings`, the store's) is meant to
    change; so is everything with --force.

    Raises:
        ConfigError: one is gone, or of another kind.
    """
    if config.manifest is None or not config.guesses_fields:
        return
    before, now = _sections(made_by), _sections(job.fingerprint)
    meant = set(_spoken_of(settings, job.settings))
    lost = [name for name, section in before.items() if meant.isdisjoint({name, *_columns(name, section)})]
    told = [f"'{name}' ({before[name]['kind']}) is not found any more" for name in lost if name not in now]
    told += [
        f"'{name}' was a {before[name]['kind']} and would be a {now[name]['kind']}"
        for name in lost
        if name in now and now[name]["kind"] != before[name]["kind"]
    ]
    if told:
        raise ConfigError(
            f"{folder}: of its fields {'; '.join(told)}. The notes say how the source is read now, and why. "
            "Mend the source, or drop a field (--set fields.NAME=null), or say what it is "
            "(fields.NAME.kind=KIND), or use --force to have the store as it would be made now"
        )


def _sections(fingerprint: Fingerprint) -> Sections:
    """The fields as they were settled, guessed ones among them."""
    sections: Sections = fingerprint.params.get("fields", {})
    return sections


def _columns(name: str, section: Mapping[str, Any]) -> list[str]:
    return list(section.get("columns") or [section.get("column") or name])


def _spoken_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Fields and columns of which the settings say something else than before."""
    old, new = before.get("fields") or {}, now.get("fields") or {}
    for name in {*old, *new}:
        if old.get(name) != new.get(name):
            yield name
            yield from _columns(name, new.get(name) or {})
    for place in ("column", "group"):
        if (column := (now.get("splits") or {}).get(place)) != (before.get("splits") or {}).get(place):
            yield str(column)
    if now.get("key_column") != before.get("key_column"):
        yield str(now.get("key_column"))
