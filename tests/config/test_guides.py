"""The settings that the five guides print load unchanged, with every key in its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flatout.config import Config, load_config, resolve_config
from flatout.config.dialect import canonical
from flatout.config.keys import list_keys

GUIDES = Path(__file__).resolve().parents[3] / "shared" / "guides"

CARDIAC = """{
  "output_dir": "outputs/cardiac_training",
  "csv_path": "/path/to/your/data.csv",
  "base_path": "/path/to/your/images",
  "epochs": 100,
  "batch_size": 8,        // per GPU
  "learning_rate": 1e-4,
  "num_workers": 4,

  "use_fast_loader": true,
  "preprocessed_data_dir": "/data/cardiac_training_fast",
  "preprocess_batch_size": 16,  // of prepare
  "cache_config": {
    "enable_cache": true,
    "cache_size": 2000,           // samples
    "preload_train_data": false,
    "preload_val_data": true,
  },
}
"""

HEART_SOUND = """
hardware:
  num_workers: 8
  pin_memory: true
  prefetch_factor: 4
  persistent_workers: true
  device: "cuda"
data_cache:
  cache_in_memory: true
  view_cache_refresh_epochs: 5
  use_gpu_augment: true
"""

SPEECH_WINDOWS = """
train_ds:
  manifest_filepath: train.json
  batch_size: 16-32
  num_workers: 0
  pin_memory: true
  persistent_workers: false
  prefetch_factor: null
validation_ds:
  manifest_filepath: val.json
precision: 16-mixed
accumulate_grad_batches: 2
"""

SEGMENTATION = """
ims_per_gpu=32             # smaller
num_workers=8,
pin_memory=True,
persistent_workers=True,
prefetch_factor=2,
use_fp16=True
gradient_accumulation_steps=2
torch.backends.cudnn.deterministic = False
"""

SEQUENCE_VAE = """
--batch_size 4 --num_workers 8 --pin_memory --gradient_accumulation_steps 2 --max_sequence_length 1000
--precision 16-mixed --fast_detection --disable_metrics_monitoring --compile_model --use_dynamic_padding
--devices 2
"""


def loaded(folder: Path, name: str, text: str) -> Config:
    (folder / name).write_text(text)
    return load_config(folder / name, environ={})


def test_cardiac_ct(tmp_path: Path) -> None:
    config = loaded(tmp_path, "config.json", CARDIAC)

    assert config.manifest == "/path/to/your/data.csv"
    assert config.learning_rate == 1e-4
    assert config.use_fast_loader is True
    assert config.cache_config.model_dump() == {
        "enable_cache": True,
        "cache_size": 2000,
        "preload_train_data": False,
        "preload_val_data": True,
    }


def test_heart_sound(tmp_path: Path) -> None:
    config = loaded(tmp_path, "default.yaml", HEART_SOUND)

    assert (config.num_workers, config.prefetch_factor, config.device) == (8, 4, "cuda")
    assert config.persistent_workers
    assert config.cache_in_memory
    assert config.use_gpu_augment


def test_speech(tmp_path: Path) -> None:
    config = loaded(tmp_path, "speech.yaml", SPEECH_WINDOWS)

    train, val = config.loader_for("train"), config.loader_for("val")
    assert config.manifest == {"train": "train.json", "val": "val.json"}
    assert (train.batch_size, train.num_workers, train.prefetch_factor) == (16, 0, None)
    assert (val.batch_size, val.num_workers, val.prefetch_factor) == (8, "auto", 4)
    assert (config.precision, config.gradient_accumulation_steps) == ("16-mixed", 2)


def test_segmentation(tmp_path: Path) -> None:
    config = loaded(tmp_path, "settings.py", SEGMENTATION)

    assert (config.batch_size, config.num_workers, config.prefetch_factor) == (32, 8, 2)
    assert (config.precision, config.gradient_accumulation_steps) == ("16-mixed", 2)
    assert config.deterministic is False


def test_sequence_vae_options() -> None:
    options = [line.split() for line in SEQUENCE_VAE.replace("\n", " ").split("--") if line.strip()]

    config = load_config(
        {"task": "sequence_vae"},
        sets=[f"{name}={' '.join(value) or 'true'}" for name, *value in options],
        environ={},
    )

    assert (config.batch_size, config.max_sequence_length, config.devices) == (4, 1000, 2)
    assert config.disable_metrics_monitoring
    assert config.compile_model


NAMED = [
    "output_dir",
    "csv_path",
    "base_path",
    "epochs",
    "batch_size",
    "learning_rate",
    "num_workers",
    "use_fast_loader",
    "preprocessed_data_dir",
    "preprocess_batch_size",
    "cache_config.enable_cache",
    "cache_config.cache_size",
    "cache_config.preload_train_data",
    "cache_config.preload_val_data",
    "cache_in_memory",
    "use_gpu_augment",
    "view_cache_refresh_epochs",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "data_dir",
    "sample_rate",
    "augmentation_config",
    "pretrained",
    "task",
    "use_amp",
    "precision",
    "accumulate_grad_batches",
    "use_fp16",
    "ims_per_gpu",
    "gradient_accumulation_steps",
    "eval_scales",
    "torch.backends.cudnn.deterministic",
    "max_sequence_length",
    "use_dynamic_padding",
    "compile_model",
    "fast_detection",
    "disable_metrics_monitoring",
    "devices",
    "val_check_interval",
    "limit_val_batches",
    "detect_anomaly",
    "enable_model_summary",
    "sync_batchnorm",
    "update_frequency",
    "plot_frequency",
    "window_size",
    "verbose",
    "drop_last",
    "shuffle",
    "hardware.device",
    "save_top_k",
    "train_ds.batch_size",
    "validation_ds.batch_size",
    "test_ds.batch_size",
]


@pytest.mark.parametrize("name", NAMED)
def test_every_key_has_its_place(name: str) -> None:
    assert canonical(tuple(name.split("."))) in {key.path for key in list_keys(Config)}


SETTING = re.compile(r"\s*(#.*|\w+ ?= ?[\w.]+,?\s*(#.*)?)?")
KEY = re.compile(r"^\s*\"?(\w+)\"?\s*[:=]", re.MULTILINE)


def is_settings(kind: str, text: str) -> bool:
    """Whether a block is a config; one that shows alternatives has a key twice."""
    keys = KEY.findall(text)
    is_plain = kind != "python" or all(SETTING.fullmatch(line) for line in text.splitlines())
    return is_plain and len(keys) > 0 and len(set(keys)) == len(keys)


def blocks() -> list[Any]:
    """Every block of settings in the guides, as it stands there."""
    found = []
    for guide in sorted(GUIDES.glob("*.md")):
        fenced = re.findall(r"```(json|yaml|python)\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
        found += [
            pytest.param(kind, text, id=f"{guide.name[:3]}-{number}")
            for number, (kind, text) in enumerate(fenced)
            if is_settings(kind, text)
        ]
    return found or [pytest.param("", "", marks=pytest.mark.skip("the guides are not on this machine"))]


@pytest.mark.parametrize(("kind", "text"), blocks())
def test_blocks_of_the_guides_load_unchanged(tmp_path: Path, kind: str, text: str) -> None:
    file = tmp_path / f"config.{kind.replace('python', 'py')}"
    file.write_text(text, encoding="utf-8")

    config, _ = resolve_config(file, environ={})

    assert config.model_fields_set
