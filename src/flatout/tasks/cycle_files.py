"""Cycles as files of their own: the folder of .npy files that the heart sound guide's training read at first.

The standard path over recordings decodes a whole one, and looks for its cycles, to get at one of them. The
guide did that once and began with its cycles on disk; a fair comparison begins there, too.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.bank.fields import known_rate
from flatout.loader import FastDataset
from flatout.store import StoreReader

TABLE = "cycles.csv"


def write_cycles(
    store: StoreReader, folder: Path, *, signal: str = "signal", label: str = "label"
) -> dict[str, Any]:
    """Write every sample's signal as a .npy file, and a table of them; the settings that read them come out.

    Labels and splits are the store's. Put the settings over a config of task heart_sound: its samples are the
    same then, bit for bit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    has_label = label in store.fields
    names = store.fields[label].classes if has_label else None
    with open(folder / TABLE, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label", "split"] if has_label else ["file", "split"])
        for split in store.meta.splits:
            dataset = FastDataset(store, split)
            for at in range(len(dataset)):
                sample = dataset[at]
                name = f"{split}_{at:06d}.npy"
                np.save(folder / name, sample[signal].numpy())
                number = int(sample[label]) if has_label else 0
                writer.writerow([name, *([names[number] if names else number] if has_label else []), split])
    length = store.fields[signal].shape[-1]
    section = {"column": "file", "split": "none", "normalise": "none", "fit": "trim_pad", "length": length}
    rate = known_rate(store, signal) or DEFAULT_SAMPLE_RATE
    rates = {"rate": rate, "source_rate": rate}  # the same: nothing is resampled
    return {
        "manifest": str(folder / TABLE),
        "label_set": None,
        "splits": {"column": "split", "group": None},
        "fields": {signal: section | rates},
    }
