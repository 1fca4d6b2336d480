"""Repair: make again, from the sources, just the shards and files of a store that are damaged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.config import Config, load_config
from flatout.errors import StoreCorruptError, StoreError
from flatout.source import hash_key
from flatout.store.commit import QUARANTINE, read_quarantine
from flatout.store.fingerprint import Fingerprint, explain_difference
from flatout.store.index import read_index
from flatout.store.job import KEPT, Job, job_from_config
from flatout.store.metadata import ROOT, SHARD_FOLDER, StoreMeta, load_metadata
from flatout.store.prepare import PrepareOptions, prepare
from flatout.store.progress import Progress, Silent
from flatout.store.rewriting import rewrite
from flatout.store.samples import RowFinder, row_hashes
from flatout.store.statistics import RunStats
from flatout.store.verification import VerifyReport
from flatout.types import Array


def config_of_store(folder: Path, *, trusted: bool = False) -> Config:
    """The config that made a store, as the root keeps it.

    Args:
        trusted: code that the root names (a transform) may be imported and run.

    Raises:
        StoreError: the store was made from a dataset object, which only its program has; or by code that
            nobody has vouched for.
    """
    meta = load_metadata(folder)
    # Nothing else that stands there: a task of a stranger's would be imported for its defaults.
    settings = {name: value for name, value in meta.settings.items() if name in (*KEPT, "config_dir")}
    if settings.get("manifest") is None:
        raise StoreError(
            f"{folder} was made from a dataset object: its sources are not known here. Run "
            "DataPreprocessor.from_dataset(dataset, output_dir).run(force=True) in the program that has it"
        )
    if fields := settings.get("fields"):
        # The root is written in order of names; a mask belongs to the first volume of the config's order.
        names = [spec.name for spec in meta.fields]
        settings["fields"] = {name: fields[name] for name in sorted(fields, key=_rank_in(names))}
    config_dir = settings.pop("config_dir", None)
    config = load_config({**settings, "preprocessed_data_dir": str(folder)}, environ={})
    if _is_elsewhere(config.transform):
        raise StoreError(
            f"{folder} was made by '{config.transform}', a function of another program's main module. Run "
            "DataPreprocessor(config).run(force=True) in the program that has it"
        )
    # Looked for in the config, not in the settings: other spellings of a key mean the same.
    custom = [f"kind '{section.name}'" for section in config.fields.values() if section.kind == "custom"]
    code = [repr(config.transform)] * (config.transform is not None) + custom
    if code and not trusted:
        raise StoreError(
            f"{folder} was made by the code {code[0]} from {config_dir}; to run it say --trust-store (from "
            "Python: trusted=True) if you know where the store comes from, or prepare it with its own config"
        )
    # A folder that a stranger names may not be imported from at all: a module there could be called nibabel.
    config._config_dir = Path(config_dir) if trusted and config_dir is not None else None
    return config


def _is_elsewhere(transform: str | None) -> bool:
    """Whether it is a function of a main module, but not of this program's."""
    module, _, name = (transform or "").partition(":")
    return module == "__main__" and not hasattr(sys.modules["__main__"], name.partition(".")[0])


def _rank_in(names: Sequence[str]) -> Callable[[str], int]:
    """Sorts by place among the names, what is not among them last."""
    ranks = {name: rank for rank, name in enumerate(names)}
    return lambda name: ranks.get(name, len(ranks))


def repair(
    folder: Path,
    report: VerifyReport,
    progress: Progress = Silent(),  # noqa: B008  stateless
    *,
    trusted: bool = False,
) -> RunStats:
    """Make again what the report names; the rest of the store stays as it is, whatever its sources are now.

    View and stats follow from index and shards: neither sources nor code are asked. Rows of damaged shards are
    made again. Without its index nobody can tell which samples are live and what they were made from: then
    every row is. Without the list of bad rows, all that have no sample are tried; else rows that came to the
    manifest since are left to the next prepare.

    Raises:
        StoreCorruptError: the root is lost, so nobody knows what the store was.
        StoreError: the sources are not known here, or the code that made the samples has changed since.
    """
    damaged = {damage.file for damage in report.damage}
    if ROOT in damaged:
        raise StoreCorruptError(
            f"{folder / ROOT} is damaged and cannot be rebuilt from the shards alone; restore it from a "
            "backup, or run 'flatout prepare --force' with the config that made the store"
        )
    meta = load_metadata(folder)
    # Without their list nobody knows which rows were bad: those that have no sample are tried again.
    are_bad_lost = meta.num_bad > 0 and QUARANTINE in damaged
    if damaged <= set(meta.files) and not are_bad_lost:
        return rewrite(folder, meta, damaged)
    config = config_of_store(folder, trusted=trusted)
    if meta.index in damaged:
        options, recorded = PrepareOptions(force=True, rewrite=True), None
    else:
        recorded = read_index(folder / meta.index, num_rows=meta.num_samples)
        rows = None if are_bad_lost else _rows_to_make(folder, meta, recorded, report)
        options = PrepareOptions(only_rows=rows, pins=True, rewrite=True)
    options = replace(options, distrusted=frozenset(report.damaged_shards))

    def make_job(known: Mapping[str, Sequence[str]]) -> Job:
        job = _same_job(job_from_config(config, known), meta, folder)
        return job if recorded is None else _as_recorded(job, meta, recorded, report)

    stats = prepare(_for_all_rows(config, meta, options.only_rows is None), make_job, options, progress)
    if stats.content_hash != meta.content_hash:
        progress.say(
            f"the store is whole, but not what it was (content hash {stats.content_hash[:12]}..., before "
            f"{meta.content_hash[:12]}...): some of its sources have changed, are bad or are gone since"
        )
    named = {shard.file for shard in load_metadata(folder).shards}
    for name in report.damaged_shards:
        if name not in named:
            (folder / SHARD_FOLDER / name).unlink(missing_ok=True)
    return stats


def _for_all_rows(config: Config, meta: StoreMeta, is_any: bool) -> Config:
    """The config without the `limit` of the last run: runs before it may have made rows beyond.

    Where any row may be made, it holds if the store has no more rows than it allows.
    """
    if is_any and config.limit is not None and meta.num_samples + meta.num_bad <= config.limit:
        return config
    return config.model_copy(update={"limit": None})


def _same_job(job: Job, meta: StoreMeta, folder: Path) -> Job:
    """The job, if new samples will be as those beside them: from the same code."""
    old = Fingerprint.from_json(meta.fingerprint)
    if old.digest == job.fingerprint.digest:
        return job
    changes = "; ".join(explain_difference(old, job.fingerprint))
    raise StoreError(
        f"{folder} cannot be repaired: what made its samples has changed ({changes}), so new ones would "
        "differ from the rest. 'flatout prepare' with its config makes all of them anew"
    )


def _as_recorded(job: Job, meta: StoreMeta, recorded: Any, report: VerifyReport) -> Job:
    """The job with every sample of the store in the split and group that it has there.

    Raises:
        StoreError: samples that are whole have no row in the manifest any more.
    """
    positions = RowFinder(job.key_hashes, job.manifest.keys).positions(row_hashes(recorded))
    is_gone = (positions < 0) & ~_stand_in(recorded, meta, report.damaged_shards)
    if is_gone.any():
        first = recorded["key"][int(np.argmax(is_gone))].as_py()
        raise StoreError(
            f"{int(is_gone.sum()):,} samples that are whole have no row in {job.manifest.place} any more "
            f"(first: '{first}'): a repair would lose them. Bring the rows back; or drop the samples by "
            "'flatout prepare', then repair"
        )
    is_there, splits, groups = positions >= 0, np.array(job.splits, np.str_), job.groups.copy()
    names = np.array(meta.splits, np.str_)
    splits = splits.astype(np.promote_types(splits.dtype, names.dtype))
    splits[positions[is_there]] = names[recorded["split"].to_numpy()[is_there]]
    groups[positions[is_there]] = recorded["group"].to_numpy()[is_there]
    return replace(job, splits=splits, groups=groups)


def _rows_to_make(folder: Path, meta: StoreMeta, recorded: Any, report: VerifyReport) -> frozenset[int]:
    """Hashes of the rows with samples in damaged shards, and of those in quarantine."""
    is_lost = _stand_in(recorded, meta, report.damaged_shards)
    hashes = row_hashes(recorded.filter(pa.array(is_lost))).tolist()
    with suppress(OSError, ValueError, KeyError):
        hashes += [hash_key(key) for key in read_quarantine(folder)]
    return frozenset(hashes)


def _stand_in(recorded: Any, meta: StoreMeta, files: Collection[str]) -> Array:
    """Which samples stand in these shards."""
    numbers = [number for number, shard in enumerate(meta.shards) if shard.file in files]
    found: Array = np.isin(recorded["shard"].to_numpy(), numbers)
    return found
