"""A job for a store that is there already: by the keys and splits that its first run chose, where they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.config import Config
from flatout.errors import ConfigError, ManifestError
from flatout.store.job import Job, job_from_config, kept_settings, with_recorded


def job_of_store(
    config: Config, settings: Mapping[str, Any], known_classes: Mapping[str, Sequence[str]]
) -> Job:
    """The job of a config, with what the store's settings record of earlier choices.

    A manifest that no longer fits them is refused; another manifest starts anew, and that is said.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used.
    """
    before, now = settings.get("manifest"), kept_settings(config)["manifest"]
    recorded = with_recorded(config, settings)
    if before is None or before == now:
        return job_from_config(recorded, known_classes)
    told = f"this store was made from {before}, now it is filled from {now}"
    try:
        job = job_from_config(recorded, known_classes)
        told += f": keys go on by its key_rule '{job.settings['key_rule']}'; --force chooses anew"
    except (ConfigError, ManifestError) as error:
        job = job_from_config(config, known_classes)
        told += f", which its keys or splits do not fit: they are chosen anew ({error})"
    return replace(job, notes=[told, *job.notes])
