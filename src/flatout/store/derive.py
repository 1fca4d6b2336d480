"""A store made from a store: every sample a row, under the same key, split and group."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flatout.config.fields import FieldSection
from flatout.source import Manifest, SampleMaker
from flatout.store.fingerprint import Fingerprint
from flatout.store.index import read_index
from flatout.store.job import Job
from flatout.store.reader import StoreReader
from flatout.types import Array

POSITION = "position"
"""Column of the sample's place in the store it is read from."""
DIGEST = "digest"
"""Column of the sample's content: the only one that tells whether what was made of it is up to date."""


def job_from_store(
    store: StoreReader,
    positions: Array,
    maker: SampleMaker,
    fingerprint: Fingerprint,
    sections: Mapping[str, FieldSection],
) -> Job:
    """Samples of a store in, the job of making one sample of each out.

    A sample whose content changed since is made again by the next run; one that only moved is kept.

    Args:
        positions: which samples, in index order.
        maker: gets rows with `POSITION`.
        fingerprint: everything else that the result depends on.
        sections: how the maker's fields are stored.
    """
    index = read_index(store.index_path, ["key", DIGEST], len(store)).take(pa.array(positions))
    columns = {POSITION: pa.array(positions), DIGEST: index[DIGEST].combine_chunks()}
    keys = index["key"].combine_chunks().cast(pa.large_string())
    numbers = store.numbers
    names = np.array([*store.meta.splits, ""])
    return Job(
        manifest=Manifest(pa.table(columns), keys, Path.cwd(), ()),
        key_hashes=numbers["key_hash"][positions],
        maker=maker,
        sections=sections,
        fingerprint=fingerprint,
        columns=[DIGEST],
        splits=names[numbers["split"][positions]],
        groups=numbers["group"][positions],
        sys_path=program_folders(),
        settings=_settings(store),
    )


def program_folders() -> list[str]:
    """Where the running program finds its own modules: workers look there, too."""
    return list(dict.fromkeys([*(os.path.realpath(folder) for folder in sys.path[:1]), str(Path.cwd())]))


def _settings(store: StoreReader) -> dict[str, Any]:
    """Which store it was made from; there is no manifest to be found again."""
    return {"manifest": None, "store": str(store.folder.resolve())}
