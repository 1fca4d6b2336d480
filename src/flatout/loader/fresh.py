"""Is the store what the config would make now: settings, code, splits and rows compared, decoding nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config import Config
from flatout.errors import ConfigError, ManifestError, MissingDependencyError, SourceError
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
from flatout.store.job import Job, import_folders, job_from_config, kept_settings, with_recorded
from flatout.store.metadata import ROOT
from flatout.store.samples import RowFinder, row_hashes
from flatout.store.versions import classes_of_root

FINDING = ("label_set", "base_path", "key_column", "key_rule")
"""Settings that say where rows and files are and what rows are called; `manifest` is compared by itself."""


@dataclass(frozen=True)
class Freshness:
    """What differs between a store and a config."""

    changes: tuple[str, ...] = ()
    """The config asks for other samples, or divides them in another way."""
    doubts: tuple[str, ...] = ()
    """Other libraries, another manifest, rows that came or went: what a prepare would bring up to date."""
    unknown: tuple[str, ...] = ()
    """What could not be compared, because sources or code are not here: a prepare would fail as well."""


def compare_with_config(store: StoreReader, config: Config) -> Freshness:
    """What a prepare with this config would change; raw files are not looked at.

    A config that says nothing of how samples are made (no manifest, fields or transform) differs in nothing.

    Raises:
        ConfigError: it contradicts the manifest, whatever the store is: a column that is not there.
        ManifestError: the manifest cannot be divided as the config asks.
    """
    comparison = _Comparison(store, config)
    changes, doubts = tuple(comparison.changes()), tuple(comparison.doubts())
    return Freshness(changes, doubts, tuple(comparison.unknown))


class _Comparison:
    """The manifest is read only where an answer needs it: it may be long, or not be on this machine."""

    def __init__(self, store: StoreReader, config: Config) -> None:
        self._store = store
        self._config = config
        self._old = Fingerprint.from_json(store.meta.fingerprint)
        self._doubts: list[str] = []
        self._job: Job | None = None
        self._missing = _missing_manifests(config)
        self.unknown: list[str] = [self._told_missing()] if self._missing else []

    def changes(self) -> Iterator[str]:
        new = self._try(self._fingerprint)
        if new is not None and new.digest != self._old.digest:
            lines = explain_difference(self._old, new)
            if _libraries_aside(self._old, new):
                self._doubts.append(f"it was made with other libraries: {'; '.join(lines)}")
            else:
                yield from lines
        if self._has_other_splits() and self._try(self._divides_differently, is_asked=True):
            yield "splits divides the samples in another way"

    def doubts(self) -> Iterator[str]:
        yield from self._doubts
        if self._missing:
            return
        made_from, named = self._store.meta.settings.get("manifest"), self._config.manifest
        if isinstance(named, str) and isinstance(made_from, str) and str(Path(named).resolve()) != made_from:
            yield f"the store was made from {made_from}, the config names {named}"
        elif (is_asked := self._finds_rows_differently()) or self._manifest_is_newer():
            yield from self._try(self._moved_rows, is_asked=is_asked) or ()

    def _told_missing(self) -> str:
        made_from, named = self._store.meta.settings.get("manifest"), self._config.manifest
        other = f" (it was made from {made_from})" if isinstance(made_from, str) and made_from != named else ""
        there = ", ".join(self._missing)
        told = f"the manifest {there} is not there, so that it cannot be compared with its sources{other}"
        return f"{told}; it stays divided as it is, whatever splits says" if self._has_other_splits() else told

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

    def _finds_rows_differently(self) -> bool:
        """Whether the config says itself how rows are found or named, and not as the store was made."""
        settings, config = self._store.meta.settings, self._config
        if config.manifest is None or settings.get("manifest") is None:
            return False
        here = kept_settings(config)
        return any(here[name] is not None and here[name] != settings.get(name) for name in FINDING)

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

    def _try(self, compare: Callable[[], Any], *, is_asked: bool = False) -> Any:
        """What a comparison gives; where the sources or the code are not here, None, and `unknown` says so.

        Args:
            is_asked: the config asks for what the store is not: rows that cannot give it are an error, too.
        """
        try:
            return compare()
        except (ConfigError, SourceError, MissingDependencyError, OSError) as error:
            is_wrong = isinstance(error, ConfigError) and self._is_by_config()
            if is_wrong or (is_asked and not self._missing and isinstance(error, ManifestError)):
                raise
            told = f"it could not be compared with its sources: {error}"
            self.unknown += [] if self._missing or told in self.unknown else [told]
            return None

    def _is_by_config(self) -> bool:
        """Whether the config is wrong by itself; not where a part that the store was made with is gone."""
        config = self._config
        made_by = self._store.meta.settings.get("transform")
        is_same = made_by is not None and made_by == config.transform
        if is_same and _is_config_error(lambda: load_object(made_by)):
            return False
        return _is_config_error(lambda: job_from_config(config, classes_of_root(self._store.folder)))


def _is_config_error(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (ConfigError, SourceError, MissingDependencyError, OSError) as error:
        return isinstance(error, ConfigError)
    return False


def _missing_manifests(config: Config) -> list[str]:
    named = config.manifest
    paths = [] if named is None else [named] if isinstance(named, str) else [*named.values()]
    return [path for path in paths if not Path(path).expanduser().exists()]


def _libraries_aside(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether nothing but versions of installed libraries differs: no reason to refuse a training."""
    return _without_libraries(old) == _without_libraries(new)


def _without_libraries(fingerprint: Fingerprint) -> Fingerprint:
    params = dict(fingerprint.params)
    if not fingerprint.target:  # settings of built-in kinds; a transform's own parameters are its own
        params.pop("libraries", None)
    return replace(fingerprint, digest="", notes=(), distributions={}, params=params)
