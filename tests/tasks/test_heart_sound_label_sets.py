"""Training on the published sets' own layouts, from files that the test writes in them."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tasks.generated_hearts import LENGTH, RATE

from flatout.cli.main import main
from flatout.config import to_yaml
from flatout.demo.heart import RATE_HZ, heart_sound
from flatout.store import DataPreprocessor, StoreReader
from flatout.train import fit


def write_wav(path: Path, kind: str, number: int, rate: int) -> None:
    """A recording at the set's own rate."""
    sound = heart_sound(kind, number)
    times = np.arange(0, len(sound) / RATE_HZ, 1 / rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.interp(times, np.arange(len(sound)) / RATE_HZ, sound).astype("<i2").tobytes())


def write_physionet(root: Path) -> Path:
    for letter in "abcdef":
        place = root / f"training-{letter}"
        place.mkdir(parents=True)
        lines = []
        for number in range(4):
            kind = ("N", "AS")[number % 2]
            name = f"{letter}{number:04d}"
            write_wav(place / f"{name}.wav", kind, ord(letter) * 4 + number, 2000)
            lines.append(f"{name},{-1 if kind == 'N' else 1}")
        (place / "REFERENCE.csv").write_text("\n".join(lines) + "\n")
    return root


def write_circor(root: Path, num_patients: int = 24) -> Path:
    (root / "training_data").mkdir(parents=True)
    lines = ["Patient ID,Recording locations:,Age,Murmur,Additional ID"]
    for number in range(num_patients):
        kind, murmur = (("AS", "Present"), ("N", "Absent"), ("MS", "Unknown"))[number % 3]
        lines.append(f"{9000 + number},AV+MV,Child,{murmur},")
        for place in ("AV", "MV"):
            file = root / "training_data" / f"{9000 + number}_{place}.wav"
            write_wav(file, kind, number, 4000)
            states = [(0.0, 0.1, 1), (0.1, 0.4, 2), (0.4, 0.5, 3), (0.5, 0.8, 4), (0.8, 0.9, 1), (0.9, 1.6, 2)]
            states += [(1.6, 1.7, 1), (1.7, 2.0, 0)]
            text = "".join(f"{start}\t{end}\t{state}\n" for start, end, state in states)
            file.with_suffix(".tsv").write_text(text)
    (root / "training_data.csv").write_text("\n".join(lines) + "\n")
    return root


def config_of(root: Path, name: str, output: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": "heart_sound",
        "manifest": str(root),
        "label_set": name,
        "mode": "supervised",
        "preprocessed_data_dir": str(output / "store"),
        "output_dir": str(output / "runs"),
        "fields": {"signal": {"rate": RATE, "length": LENGTH}},
        "batch_size": 8,
        "epochs": 1,
        "num_workers": 0,
        "precision": "32",
        "logger": [],
        "model": {"dim": 4, "num_layers": 2},
        **settings,
    }


SETS = {"physionet2016": write_physionet, "circor_murmur": write_circor}


@pytest.mark.parametrize("name", SETS)
def test_prepare_and_train(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = SETS[name](tmp_path / "set")
    splits = {"ratios": {"train": 0.5, "val": 0.25, "test": 0.25}} if name == "circor_murmur" else {}
    config = config_of(root, name, tmp_path, splits=splits)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml({key: value for key, value in config.items() if key != "label_set"}))
    assert main(["prepare", "--config", str(file), "--set", f"label_set={name}", "--num-workers", "1"]) == 0
    capsys.readouterr()
    assert main(["train", "--config", str(file), "--label-set", name, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["is_fast"]
    assert {"val_balanced_accuracy", "test_balanced_accuracy"} <= set(result["metrics"])
    groups_stay_together(StoreReader(tmp_path / "store"))
    again = fit(config, overrides={"use_fast_loader": False}, trainer_options={"limit_train_batches": 1})
    assert not again.is_fast


def groups_stay_together(store: StoreReader) -> None:
    splits_of: dict[int, set[int]] = {}
    for group, split in zip(store.numbers["group"].tolist(), store.numbers["split"].tolist(), strict=True):
        splits_of.setdefault(group, set()).add(split)
    assert all(len(splits) == 1 for splits in splits_of.values())
    assert {len(store.positions(split)) > 0 for split in ("train", "val", "test")} == {True}


def test_cycles_are_those_of_the_annotation(tmp_path: Path) -> None:
    """Two cycles a recording, 0 to 0.8 s and 0.8 to 1.6 s; the third has a part that nobody could tell."""
    root = write_circor(tmp_path / "set", 3)
    config = config_of(root, "circor_murmur", tmp_path)
    DataPreprocessor(config).run()
    store = StoreReader(tmp_path / "store")
    assert len(store) == 2 * 6
    assert store.fields["label"].classes == ("Absent", "Present", "Unknown")
