"""Records as runs and the doctor leave them, of any length, with numbers that are known beforehand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from flatout.config import Config
from flatout.doctor.record import (
    Ceiling,
    DoctorRecord,
    Exit,
    FunctionCost,
    LoaderFacts,
    Look,
    Remedy,
    Step,
    SyncPoint,
    Trial,
    Verdict,
)

GIB = 1 << 30


def run_document(num_looks: int = 40, num_epochs: int = 4, **changes: Any) -> dict[str, Any]:
    """The JSON of a run that waits for data 40 % of the time."""
    config = Config(task="segmentation", batch_size=16, epochs=num_epochs, num_workers=2)
    document: dict[str, Any] = {
        "version": 1,
        "folder": "runs/run-0007",
        "task": "segmentation",
        "metrics": {"train_loss": 0.31, "val_loss": 0.42, "val_dice": 0.81},
        "epochs": [epoch(at, num_epochs) for at in range(num_epochs)],
        "speed": {
            "num_steps": 100 * num_looks,
            "train_s": 95.5,
            "first_step_s": 1.25,
            "samples_per_s": 640.0,
            "step_ms": 25.0,
            "step_p95_ms": 31.0,
            "data_wait_s": 38.2,
            "data_wait_share": 0.4,
            "share_not_waiting": 0.6,
            "cpu_share": 1.7,
            "peak_rss_bytes": 2 * GIB,
        },
        "is_fast": False,
        "notes": ["num_workers: auto is 2"],
        "looks": [look(at) for at in range(num_looks)],
        "rank": 0,
        "status": "finished",
        "reports": {},
        "resumed_from": None,
        "precision": "32-true",
        "device": "cpu",
        "num_devices": 1,
        "global_step": 100 * num_looks,
        "versions": {"flatout": "0.1.0", "torch": "2.13.0"},
        "machine": {"cpu": "Some CPU", "num_cores": 2, "memory_bytes": 8 * GIB},
        "written_at": "2026-01-02T03:04:05+00:00",
        "config": config.model_dump(mode="json"),
    }
    return {**document, **changes}


def epoch(at: int, num_epochs: int) -> dict[str, Any]:
    return {
        "epoch": at,
        "num_epochs": num_epochs,
        "step": 100 * (at + 1),
        "train_loss": 1.0 / (at + 1),
        "metrics": {"val_loss": 1.2 / (at + 1), "val_dice": 1 - 1 / (at + 2)},
        "samples_per_s": 600.0 + at,
        "data_wait_share": 0.4,
    }


def look(at: int) -> dict[str, Any]:
    return {
        "step": 100 * (at + 1),
        "samples_per_s": 640.0 + 20 * math.sin(at),
        "data_wait_share": 0.4 + 0.1 * math.sin(at / 3),
        "cpu_share": 1.5 + 0.3 * math.cos(at),
        "rss_bytes": GIB + at * 1_000_000,
        "device_bytes": None,
        "device_utilisation": None,
    }


def write_run(place: Path, **changes: Any) -> Path:
    """A run folder at `place`, which need not exist."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(json.dumps(run_document(**changes)))
    return place


def doctor_record(num_steps: int = 50, **changes: Any) -> DoctorRecord:
    """A script whose transform is slow: 60 of 100 ms a step are waiting."""
    given: dict[str, Any] = {
        "script": "train.py",
        "arguments": ("--epochs", "3"),
        "exit": Exit(0, was_stopped=True),
        "steps": tuple(step(at) for at in range(num_steps)),
        "num_warmup": 3,
        "loaders": (loader(),),
        "ceiling": Ceiling(0.1, 0.04, 0.11, 2.3, 2.7),
        "sync_points": (SyncPoint("train.py", 33, ".item()", 1.0, 0.002),),
        "looks": tuple(Look(0.5 * at, 1.8, GIB, None, None) for at in range(20)),
        "verdict": Verdict("augmentation", "Training waits for data 60 % of a step: Rotate.__call__ is slow."),
        "remedies": remedies(),
        "warnings": ("checkpoints/ would be overwritten",),
        "overhead": 0.004,
        "facts": {"precision": "32", "repeated_forward": False},
        "machine": {"cpu": "Some CPU", "num_cores": 2, "memory_bytes": 8 * GIB},
    }
    return DoctorRecord(**{**given, **changes})


def step(at: int) -> Step:
    seconds = {"wait": 0.06 + 0.01 * math.sin(at), "forward": 0.015, "backward": 0.02, "optimiser": 0.005}
    return Step(start_s=0.1 * at, seconds=seconds, num_samples=32)


def loader() -> LoaderFacts:
    return LoaderFacts(
        name="train",
        num_workers=2,
        batch_size=32,
        prefetch_factor=2,
        persistent_workers=False,
        pin_memory=False,
        start_method="fork",
        is_iterable=False,
        num_samples=4096,
        dataset="__main__.Scans",
        batch_bytes=32 << 20,
        seconds={"fetch": 0.02, "prepare": 0.17, "collate": 0.01, "hand_over": 0.005},
        cpu_seconds=0.19,
        slowest=3.5,
        padding_share=None,
        worker_starts=2,
        functions=(FunctionCost("Rotate.__call__", "transforms.py", 12, 0.15, 32.0),),
    )


def remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            name="cache",
            evidence="Rotate.__call__ takes 150 of 205 ms a batch and gives the same result each time",
            predicted_gain=2.4,
            cost="1.2 GiB on disk",
            how="dataset = flatout.cached(dataset, 'cache')",
            settings={"cache": True, "num_workers": 0},
            trial=Trial(2.3, 2.1, 2.5, is_kept=True, losses_agree=True),
        ),
        Remedy(
            name="workers",
            evidence="2 workers, 4 cores",
            predicted_gain=1.6,
            cost="400 MiB of memory",
            how="DataLoader(..., num_workers=4)",
            trial=Trial(0.98, 0.9, 1.05, is_kept=False),
        ),
        Remedy("precision", "float32 on a device with bf16", None, "", "torch.autocast", changes_results=True),
    )


def write_doctor(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(doctor_record(**changes).to_json()))
    return path
