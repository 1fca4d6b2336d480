"""The data set of each task: the public one that its guide could have used, or generated files like it."""

from __future__ import annotations

import csv
import gzip
import json
import struct
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq

from flatout.bench import train_generated as generated
from flatout.bench.train_cases import MOST_ROWS, TrainCase
from flatout.bench.train_generated import CYCLE_LENGTH, CYCLE_RATE, Rows
from flatout.store import DataPreprocessor, StoreReader
from flatout.tasks.cycle_files import TABLE, write_cycles


def _find_pictures(data: Path, scratch: Path) -> Rows:
    root = data / "cmr_seg_sunnybrook"
    names = sorted(str(file.relative_to(root / "images")) for file in root.glob("images/*/*.png"))
    return [{"image": f"images/{name}", "mask": f"labels/{name}"} for name in names]


def _find_volumes(data: Path, scratch: Path) -> Rows:
    """How much is labelled is the target, and whether that is more than in most."""
    root = data / "mr_hippocampus"
    counts = {file.name: count_labelled(root / "labels" / file.name) for file in sorted(root.glob("images/*"))}
    middle = median(counts.values()) if counts else 0
    return [
        {"volume": f"images/{name}", "labelled": count, "large": int(count > middle)}
        for name, count in counts.items()
    ]


def count_labelled(path: Path) -> int:
    """Voxels of a NIfTI mask that are not 0."""
    raw = gzip.decompress(path.read_bytes())
    (code,), (offset,) = struct.unpack_from("<h", raw, 70), struct.unpack_from("<f", raw, 108)
    kind = {2: "u1", 4: "<i2", 8: "<i4", 16: "<f4", 64: "<f8", 256: "i1", 512: "<u2"}[code]
    return int(np.count_nonzero(np.frombuffer(raw, kind, offset=int(offset))))


def _find_cycles(data: Path, scratch: Path) -> Rows:
    """Cycles cut out of the recordings once, as arrays: the guide began with these, not with recordings."""
    labels = data / "heart_yaseen" / "labels.csv"
    if not labels.exists():
        return []
    folder = scratch.parent / "recordings"
    DataPreprocessor(
        {"task": "heart_sound", "manifest": str(labels), "preprocessed_data_dir": str(folder)}
    ).run()
    write_cycles(StoreReader(folder), scratch)
    with open(scratch / TABLE, newline="", encoding="utf-8") as file:
        return [{"cycle": row["file"], "label": row["label"]} for row in csv.DictReader(file)][:MOST_ROWS]


def _find_recordings(data: Path, scratch: Path) -> Rows:
    manifest = data / "speech_fsdd" / "manifest_train.jsonl"
    if not manifest.exists():
        return []
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    return [{"audio_filepath": row["audio_filepath"], "text": row["text"]} for row in rows]


def _find_sequences(data: Path, scratch: Path) -> Rows:
    path = data / "seq_strokes_omniglot" / "train.parquet"
    if not path.exists():
        return []
    rows: Rows = pq.read_table(path, columns=["dx", "dy", "pen_up"]).slice(0, MOST_ROWS).to_pylist()
    return rows


def _find_long_sequences(data: Path, scratch: Path) -> Rows:
    """Currents of appliances, 100 to 1,344 steps: what a limit on the length has something to cut from."""
    path = data / "seq_ucr" / "PLAID_TRAIN.ts"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").partition("@data\n")[2].splitlines()
    return [{"value": [float(x) for x in line.rpartition(":")[0].split(",")]} for line in lines if line]


TRAIN_CASES = {
    "cardiac_ct": TrainCase(
        {
            "fields": {
                "volume": {"kind": "volume", "size": [48, 64, 48], "normalise": "percentile"},
                "labelled": {"kind": "scalar"},
                "large": {"kind": "label"},
            }
        },
        _find_volumes,
        generated.volumes,
        "mr_hippocampus",
    ),
    "heart_sound": TrainCase(
        {
            "fields": {
                "cycle": {
                    "kind": "signal",
                    "rate": CYCLE_RATE,
                    "source_rate": CYCLE_RATE,
                    "length": CYCLE_LENGTH,
                },
                "label": {"kind": "label"},
            }
        },
        _find_cycles,
        generated.cycles,
        "heart_yaseen",
    ),
    "speech": TrainCase(
        {
            "guess_fields": False,
            "fields": {
                "audio": {"kind": "signal", "column": "audio_filepath", "rate": 8000},
                "text": {"kind": "text"},
            },
        },
        _find_recordings,
        generated.recordings,
        "speech_fsdd",
        "rows.jsonl",
    ),
    "segmentation": TrainCase({}, _find_pictures, generated.pictures, "cmr_seg_sunnybrook"),
    "sequence_vae": TrainCase(
        {"fields": {"strokes": {"kind": "sequence", "columns": ["dx", "dy", "pen_up"]}}},
        _find_sequences,
        generated.sequences,
        "seq_strokes_omniglot",
        "rows.parquet",
    ),
}
"""In the order of the guides."""
GUIDE_CASES = TRAIN_CASES | {
    "sequence_vae": TrainCase(
        {"fields": {"sequence": {"kind": "sequence", "columns": ["value"]}}},
        _find_long_sequences,
        generated.long_sequences,
        "seq_ucr",
        "rows.parquet",
    )
}
"""The same; where the length of sequences is switched, they are long ones."""
