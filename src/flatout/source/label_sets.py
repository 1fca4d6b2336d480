"""Label sets: public collections of heart sounds, read in the layout that they are published in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from flatout.config.source import LabelSet
from flatout.errors import ManifestError
from flatout.source.circor import read_circor
from flatout.source.parts import Part
from flatout.source.physionet2016 import read_physionet2016
from flatout.source.published import Recording

PATHS = ("file", "cycles")

READERS: Mapping[LabelSet, Callable[[Path], tuple[list[Recording], list[str]]]] = {
    "physionet2016": read_physionet2016,
    "circor_murmur": read_circor,
}


def read_label_set(name: LabelSet, folder: Path, base: Path | None = None) -> Part:
    """The set below `folder` as rows: file, label, patient, and cycles, the annotation where there is one.

    Raises:
        ManifestError: a table or a recording is missing, or holds what the set's description does not have; or
            paths are to start from another folder than the set's.
    """
    if base not in (None, folder):
        raise ManifestError(f"label_set {name}: its paths start from {folder}; leave base_path ({base}) out")
    if not folder.is_dir():
        raise ManifestError(
            f"label_set {name}: {folder} is not a folder; set `manifest` to the folder of the data set"
        )
    rows, notes = READERS[name](folder)
    columns = {key: [getattr(row, key) for row in rows] for key in ("file", "label", "patient", "cycles")}
    table = pa.table({key: pa.array(values, pa.large_string()) for key, values in columns.items()})
    return Part(folder.name, table, folder, PATHS, notes=(f"{name}: {len(rows):,} recordings", *notes))
