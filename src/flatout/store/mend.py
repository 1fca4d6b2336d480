"""Repair: make again, from the sources, just the shards and files of a store that are damaged."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flatout.config import Config, load_config
from flatout.errors import StoreCorruptError, StoreError
from flatout.source import hash_key
from flatout.store.commit import read_quarantine
from flatout.store.index import read_index
from flatout.store.job import job_from_config
from flatout.store.metadata import ROOT, SHARD_FOLDER, StoreMeta, load_metadata
from flatout.store.prepare import PrepareOptions, prepare
from flatout.store.progress import Progress, Silent
from flatout.store.samples import row_hashes
from flatout.store.statistics import RunStats
from flatout.store.verification import VerifyReport


def config_of_store(folder: Path) -> Config:
    """The config that made a store, as the root keeps it.

    Raises:
        StoreError: the store was made from a dataset object, which only its program has.
    """
    settings = dict(load_metadata(folder).settings)
    if settings.get("manifest") is None:
        raise StoreError(
            f"{folder} was made from a dataset object: its sources are not known here. Run "
            "DataPreprocessor.from_dataset(dataset, output_dir).run(force=True) in the program that has it"
        )
    config_dir = settings.pop("config_dir", None)
    config = load_config({**settings, "preprocessed_data_dir": str(folder)}, environ={})
    config._config_dir = None if config_dir is None else Path(config_dir)
    return config


def repair(folder: Path, report: VerifyReport, progress: Progress = Silent()) -> RunStats:  # noqa: B008  stateless
    """Make again what the report names; the rest of the store stays as it is.

    Raises:
        StoreCorruptError: the root is lost, so nobody knows what the store was.
        StoreError: the sources are not known here.
    """
    damaged = {damage.file for damage in report.damage}
    if ROOT in damaged:
        raise StoreCorruptError(
            f"{folder / ROOT} is damaged and cannot be rebuilt from the shards alone; restore it from a "
            "backup, or run 'flatout prepare --force' with the config that made the store"
        )
    meta = load_metadata(folder)
    config = config_of_store(folder)
    options = PrepareOptions(
        distrusted=frozenset(report.damaged_shards),
        recover_index=meta.index in damaged,
        only_rows=None if meta.index in damaged else _known_rows(folder, meta),
        accept_fingerprint=True,
        rewrite=True,
    )
    stats = prepare(config, lambda known: job_from_config(config, known), options, progress)
    named = {shard.file for shard in load_metadata(folder).shards}
    for name in report.damaged_shards:
        if name not in named:
            (folder / SHARD_FOLDER / name).unlink(missing_ok=True)
    return stats


def _known_rows(folder: Path, meta: StoreMeta) -> frozenset[int]:
    """Hashes of the rows that the store stands for: those with samples, and those in quarantine."""
    hashes = row_hashes(read_index(folder / meta.index, ["key_hash", "part", "key"])).tolist()
    with suppress(OSError, ValueError, KeyError):
        hashes += [hash_key(key) for key in read_quarantine(folder)]
    return frozenset(hashes)
