"""Job: everything a prepare works on, settled before it starts: rows, maker, fingerprint, splits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.config import Config
from flatout.config.fields import AnyField, FieldSection, LabelField
from flatout.config.prepare import PrepareSettings
from flatout.config.source import SourceSettings, SplitSection
from flatout.errors import ConfigError
from flatout.source import (
    DatasetMaker,
    FieldsMaker,
    Manifest,
    SampleMaker,
    TransformMaker,
    absolute_patterns,
    collect_classes,
    doubtful_classes,
    key_hashes,
    load_object,
    manifest_of_range,
    read_manifest,
    settle_fields,
    stored_fields,
)
from flatout.store.division import divide, divide_items, keep_in_train, recorded_splits
from flatout.store.field_parts import code_params, field_parts
from flatout.store.fingerprint import Fingerprint, fingerprint_callable, fingerprint_settings
from flatout.store.task import Task
from flatout.types import Array, Limits, RowBlock

KEPT = frozenset({*SourceSettings.model_fields, *PrepareSettings.model_fields} - {"preprocessed_data_dir"})
"""Settings that a store keeps."""


@dataclass(frozen=True)
class Job:
    """Rows, how they become samples, and what the result depends on."""

    manifest: Manifest
    key_hashes: Array
    maker: SampleMaker
    sections: Mapping[str, FieldSection]
    """Settings of each field as the config has them, classes resolved."""
    fingerprint: Fingerprint
    columns: Sequence[str]
    """Manifest columns that the samples depend on."""
    splits: Any
    """Split name of each row."""
    groups: Array
    """64-bit group of each row; its own key where there is none."""
    sys_path: Sequence[str] = ()
    notes: Sequence[str] = ()
    """What was guessed, in plain words."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the store keeps of the config, to find the sources again."""
    read_columns: Container[str] | None = None
    """Manifest columns that the maker reads; None: perhaps any."""
    reads_any: bool = False
    """Whether code that is not ours reads the rows' files, and may read any of them."""

    @property
    def kinds(self) -> dict[str, str]:
        kinds = {name: getattr(section, "kind", "array") for name, section in self.sections.items()}
        masks = {name: s for name, s in self.sections.items() if getattr(s, "distance", "none") != "none"}
        return {**kinds, **{f"{name}_distance": "distance" for name in masks}}


def job_from_config(config: Config, known_classes: Mapping[str, Sequence[str]] | None = None) -> Job:
    """Read the manifest and settle what the config leaves open.

    Args:
        known_classes: class lists of an earlier version of the store; their numbers never change.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used.
    """
    if config.manifest is None:
        raise ConfigError(
            "no manifest: set 'manifest' (csv_path) in the config, or name one on the command line"
        )
    sys_path = import_folders(config)
    manifest, settled = settle_fields(config, read_manifest(config))
    if config.transform is None:
        settled.check_any(manifest)
    fields, notes = settled.fields, [*manifest.notes, *settled.notes]
    sections = resolve_classes(fields, manifest, known_classes or {})
    notes += doubtful_classes(fields, manifest)
    maker, fingerprint = _maker(config, manifest, fields, sections)
    reads_any = _reads_any(config, fields)
    columns = manifest.columns if reads_any else value_columns(fields, manifest)
    hashes = key_hashes(manifest.keys)
    division = divide(manifest, hashes, _chosen_splits(config.splits, manifest, settled.group_column))
    return Job(
        manifest=manifest,
        key_hashes=hashes,
        maker=maker,
        sections=sections,
        fingerprint=fingerprint,
        columns=columns,
        read_columns=None if reads_any else frozenset(columns),
        reads_any=reads_any,
        splits=division.splits,
        groups=division.groups,
        sys_path=sys_path,
        notes=[*notes, *division.notes],
        settings={
            **kept_settings(config, manifest.base_path),
            "key_rule": manifest.key_rule,
            "splits": division.settings.model_dump(mode="json"),
        },
    )


def with_recorded(config: Config, settings: Mapping[str, Any]) -> Config:
    """The config with what a store's settings record of its first run's choices, where it says nothing itself.

    Otherwise added rows could choose anew: one repeated id, or a tenth patient, and every sample would have
    another key or split. The choices go with the store, wherever its manifest has moved to.
    """
    if config.manifest is None or settings.get("manifest") is None:  # a dataset's items are their numbers
        return config
    update: dict[str, Any] = {}
    if config.key_column is None and config.key_rule is None:
        update["key_rule"] = settings.get("key_rule")
    update["splits"] = recorded_splits(keep_in_train(config.splits, settings), settings)
    return config.model_copy(update=update)


def _chosen_splits(splits: SplitSection, manifest: Manifest, group: str | None) -> SplitSection:
    """The settings with the columns that were found, as the store keeps them: a later run finds no others."""
    update: dict[str, Any] = {"guess": False, "group": splits.group or group}
    if splits.column is None and manifest.split_column is not None:
        update |= {"column": manifest.split_column, "empty": "divide"}
    return splits.model_copy(update=update)


def job_from_dataset(dataset: Any, config: Config, recorded: Mapping[str, Any] | None = None) -> Job:
    """The items of a map-style dataset as rows; keys are their numbers.

    Args:
        recorded: settings of the store so far; what is always train stays so.
    """
    manifest = manifest_of_range(len(dataset))
    hashes = key_hashes(manifest.keys)
    division = divide_items(manifest, hashes, keep_in_train(config.splits, recorded or {}))
    return Job(
        manifest=manifest,
        key_hashes=hashes,
        maker=DatasetMaker(dataset),
        sections=stored_fields(config.fields),
        fingerprint=fingerprint_callable(dataset, code_params({}, config.fields), config.transform_version),
        columns=["index"],
        splits=division.splits,
        groups=division.groups,
        # The dataset's module is one of the program's own, wherever that found it.
        sys_path=list(
            dict.fromkeys([str(Path(folder).resolve()) for folder in sys.path[:1]] + [str(Path.cwd())])
        ),
        notes=division.notes,
        settings={**kept_settings(config), "splits": division.settings.model_dump(mode="json")},
    )


Digests = Callable[[Array], Array]
"""Manifest positions in, a hash of each row's values out."""


def row_digests(job: Job) -> Digests:
    """What tells rows apart by their values; lists are read and hashed once, in their order."""
    if job.manifest.lists is None:
        return lambda positions: job.manifest.digests(job.columns, positions)
    digests = job.manifest.digests(job.columns)
    return lambda positions: digests[positions]


def row_task(job: Job, number: int, positions: Array, digests: Digests | None = None) -> Task:
    """The task of making these manifest rows; rows are read as they are sent, with digests where wanted.

    What nobody reads stays here: 60 KB of notes a row filled 120 MB of a worker.
    """

    def rows(start: int, stop: int) -> RowBlock:
        some = positions[start:stop]
        return job.manifest.block(some, digests and digests(some), job.key_hashes[some], job.read_columns)

    return Task(number, len(positions), rows)


def resolve_classes(
    fields: Mapping[str, AnyField], manifest: Manifest, known: Mapping[str, Sequence[str]]
) -> dict[str, AnyField]:
    """Fill in the class list of every label field that has none."""
    resolved = dict(fields)
    for name, section in fields.items():
        if isinstance(section, LabelField) and section.classes is None:
            column = section.column or name
            if column not in manifest.table.column_names:
                raise ConfigError(
                    f"field '{name}': the manifest has no column '{column}'; "
                    f"it has: {', '.join(manifest.table.column_names)}"
                )
            values = manifest.table[column].unique().to_pylist()
            resolved[name] = section.model_copy(update={"classes": collect_classes(values, known.get(name))})
    return resolved


def _reads_any(config: Config, fields: Mapping[str, AnyField]) -> bool:
    """Whether samples may depend on any column: code that is not ours gets whole rows."""
    return config.transform is not None or any(section.kind == "custom" for section in fields.values())


def value_columns(fields: Mapping[str, AnyField], manifest: Manifest) -> list[str]:
    """The manifest columns that decide the samples' content."""
    names: dict[str, None] = {}
    for name, section in fields.items():
        names[section.column or name] = None
        for extra in ("cycle_column", "offset_column", "duration_column"):
            if (column := getattr(section, extra, None)) is not None:
                names[column] = None
        names.update(dict.fromkeys(getattr(section, "columns", None) or ()))
    known = set(manifest.columns)
    return [name for name in names if name in known]


def _maker(
    config: Config, manifest: Manifest, fields: Mapping[str, AnyField], sections: Mapping[str, AnyField]
) -> tuple[SampleMaker, Fingerprint]:
    if config.transform is not None:
        # A notebook's function may be new since. It travels itself: a worker's main module is another.
        is_own = config.transform.partition(":")[0] == "__main__"
        function = (load_object.__wrapped__ if is_own else load_object)(config.transform)
        maker = TransformMaker(
            function if is_own else config.transform,
            dict(config.transform_params),
            str(manifest.base_path),
            manifest.path_columns,
            config.allow_outside_base,
        )
        params = code_params(config.transform_params, config.fields)
        return maker, fingerprint_callable(function, params, config.transform_version)
    limits = Limits(max_sample_bytes=config.max_sample_bytes)
    fields_maker = FieldsMaker(sections, str(manifest.base_path), config.allow_outside_base, limits)
    return fields_maker, fingerprint_settings(field_parts(fields))


def kept_settings(config: Config, base: Path | None = None) -> dict[str, Any]:
    """The part of the config that finds and makes the samples, with paths that hold from anywhere.

    Args:
        base: folder that the manifest's paths start from, where it has been read.
    """
    settings = config.model_dump(mode="json", include=set(KEPT))
    settings["config_dir"] = str((config.config_dir or Path.cwd()).resolve())  # where a transform's module is
    for name in ("manifest", "base_path"):
        if isinstance(settings[name], str):
            settings[name] = str(Path(settings[name]).resolve())
        elif isinstance(settings[name], dict):
            settings[name] = {split: str(Path(path).resolve()) for split, path in settings[name].items()}
    if base is not None and config.tarred_audio_filepaths:
        settings["tarred_audio_filepaths"] = absolute_patterns(config.tarred_audio_filepaths, base)
    return settings


def import_folders(config: Config) -> list[str]:
    """Folders whose modules a transform may come from: beside the config file, and the current one.

    None without a transform: a file that happens to be called like a library must not be imported for it.
    """
    if config.transform is None:
        return []
    folders = [str(folder) for folder in (config.config_dir, Path.cwd()) if folder is not None]
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return folders
