"""Is the store what the config would make now: settings, code, splits and rows compared, decoding nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config import Config
from flatout.errors import ConfigError, MissingDependencyError, SourceError
from flatout.source import hash_key, load_object
from flatout.store import StoreReader
from flatout.store.commit import read_quarantine
from flatout.store.field_parts import code_params, field_parts
from flatout.store.fingerprint import (
    Fingerprint,
    explain_difference,
    fingerprint_callable,
    fingerprint_settings,
)
from flatout.store.index import read_index
from flatout.store.job import Job, import_folders, job_from_config, with_recorded
from flatout.store.metadata import ROOT
from flatout.store.samples import RowFinder, row_hashes
from flatout.store.versions import classes_of_root


@dataclass(frozen=True)
class Freshness:
    """What differs between a store and a config."""

    changes: tuple[str, ...] = ()
    """The config asks for other samples, or divides them in another way."""
    doubts: tuple[str, ...] = ()
    """Other libraries, another manifest, rows that came or went, or what could not be compared."""


def compare_with_config(store: StoreReader, config: Config) -> Freshness:
    """What a prepare with this config would change; raw files are not looked at.

    A config that says nothing of how samples are made (no manifest, fields or transform) differs in nothing.
    """
    comparison = _Comparison(store, config)
    return Freshness(tuple(comparison.changes()), tuple(comparison.doubts()))


class _Comparison:
    """The manifest is read only where an answer needs it: it may be long, or not be on this machine."""

    def __init__(self, store: StoreReader, config: Config) -> None:
        self._store = store
        self._config = config
        self._old = Fingerprint.from_json(store.meta.fingerprint)
        self._doubts: list[str] = []
        self._job: Job | None = None

    def changes(self) -> Iterator[str]:
        new = self._try(self._fingerprint)
        if new is not None and new.digest != self._old.digest:
            lines = explain_difference(self._old, new)
            if _libraries_aside(self._old, new):
                self._doubts.append(f"it was made with other libraries: {'; '.join(lines)}")
            else:
                yield from lines
        if self._has_other_splits() and self._try(self._divides_differently):
            yield "splits divides the samples in another way"

    def doubts(self) -> Iterator[str]:
        yield from self._doubts
        made_from, named = self._store.meta.settings.get("manifest"), self._config.manifest
        if isinstance(named, str) and isinstance(made_from, str) and str(Path(named).resolve()) != made_from:
            gone = "" if Path(named).exists() else ", which is not there"
            yield f"the store was made from {made_from}, the config names {named}{gone}"
        elif self._manifest_is_newer():
            found = self._try(self._moved_rows)
            yield from found or ()

    def _fingerprint(self) -> Fingerprint | None:
        config = self._config
        if config.transform is not None:
            target: Any = config.transform
            if config.transform_version is None:  # otherwise its code does not count, and need not be here
                import_folders(config)
                target = load_object(config.transform)
            params = code_params(config.transform_params, config.fields)
            return fingerprint_callable(target, params, config.transform_version)
        if config.names_all_fields:
            return fingerprint_settings(field_parts(config.fields))
        return None if config.manifest is None else self._read().fingerprint

    def _has_other_splits(self) -> bool:
        settings = self._store.meta.settings
        is_said = "splits" in self._config.model_fields_set and self._config.manifest is not None
        # As a prepare would divide it: a store notes what it settled, and keeps to it if the config is silent.
        wanted = with_recorded(self._config, settings).splits.model_dump(mode="json")
        return is_said and settings.get("splits") != wanted

    def _divides_differently(self) -> bool:
        job, positions = self._located()
        known = positions >= 0
        names = np.array([*self._store.meta.splits, ""])[self._store.numbers["split"]]
        return bool((job.splits[positions[known]] != names[known]).any())

    def _manifest_is_newer(self) -> bool:
        """Whether the manifest, if it is one file, was written after the store."""
        named = self._config.manifest
        if not isinstance(named, str) or self._config.limit is not None or not Path(named).is_file():
            return False
        return Path(named).stat().st_mtime_ns > (self._store.folder / ROOT).stat().st_mtime_ns

    def _moved_rows(self) -> list[str]:
        job, positions = self._located()
        barred = np.array([hash_key(key) for key in read_quarantine(self._store.folder)], np.uint64)
        in_store = np.isin(np.arange(len(job.manifest)), positions) | np.isin(job.key_hashes, barred)
        found = []
        if num_new := int((~in_store).sum()):
            found.append(f"{num_new:,} rows of the manifest are not in the store")
        if num_gone := int((positions < 0).sum()):
            found.append(f"{num_gone:,} samples of the store are no longer in the manifest")
        return found

    def _located(self) -> tuple[Job, Any]:
        """The job, and the manifest position of each sample of the store, -1 where there is none."""
        job = self._read()
        samples = read_index(self._store.index_path, ["key_hash", "part", "key"], len(self._store))
        return job, RowFinder(job.key_hashes, job.manifest.keys).positions(row_hashes(samples))

    def _read(self) -> Job:
        if self._job is None:
            config = with_recorded(self._config, self._store.meta.settings)
            self._job = job_from_config(config, classes_of_root(self._store.folder))
        return self._job

    def _try(self, compare: Any) -> Any:
        """What a comparison gives; where the sources or the code are not here, None and a doubt."""
        try:
            return compare()
        except (ConfigError, SourceError, MissingDependencyError, OSError) as error:
            doubt = f"the store could not be compared with its sources: {error}"
            self._doubts += [] if doubt in self._doubts else [doubt]
            return None


def _libraries_aside(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether nothing but versions of installed libraries differs: no reason to refuse a training."""
    return _without_libraries(old) == _without_libraries(new)


def _without_libraries(fingerprint: Fingerprint) -> Fingerprint:
    params = dict(fingerprint.params)
    if not fingerprint.target:  # settings of built-in kinds; a transform's own parameters are its own
        params.pop("libraries", None)
    return replace(fingerprint, digest="", notes=(), distributions={}, params=params)
