"""Heart sound recordings that the tests make, and the settings that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.demo.heart import heart_sound
from flatout.demo.recordings import write_wav

CLASSES = ("AS", "MS", "N")
RATE, LENGTH = 1000, 256


def write_hearts(folder: Path, num_patients: int = 12) -> Path:
    """Two recordings a patient, each patient of one class, every class in every split."""
    folder.mkdir(parents=True)
    rows = ["file,label,patient,split"]
    for number in range(num_patients):
        kind, turn = CLASSES[number % len(CLASSES)], number // len(CLASSES)
        split = ("train", "val", "test", "train")[turn % 4]
        for take in range(2):
            name = f"{kind}_{number}_{take}.wav"
            write_wav(folder / name, heart_sound(kind, 2 * number + take))
            rows.append(f"{name},{kind},p{number},{split}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    return folder / "rows.csv"


def config_of(manifest: Path, output: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": "heart_sound",
        "manifest": str(manifest),
        "preprocessed_data_dir": str(output / "store"),
        "output_dir": str(output / "runs"),
        "fields": {"signal": {"rate": RATE, "length": LENGTH}},
        "splits": {"group": "patient", "column": "split"},
        "batch_size": 8,
        "epochs": 1,
        "num_workers": 0,
        "precision": "32",
        "logger": [],
        "model": {"dim": 4, "num_layers": 2},
        **settings,
    }
