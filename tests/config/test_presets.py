"""Presets and task defaults against the values that the guides give."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from flatout.config import Config, describe_preset, list_presets, list_tasks, load_config
from flatout.config.schema import Preset, Task
from flatout.errors import ConfigError

SPEECH = {
    "linux": {
        "batch_size": 8,
        "num_workers": 8,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 4,
    },
    "recommended": {
        "batch_size": 8,
        "num_workers": 8,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 4,
    },
    "windows": {
        "batch_size": 8,
        "num_workers": 0,
        "pin_memory": True,
        "persistent_workers": False,
        "prefetch_factor": None,
    },
    "high_memory_gpu": {"batch_size": 16, "num_workers": 16, "prefetch_factor": 8},
    "low_memory_gpu": {"batch_size": 4, "num_workers": 8, "prefetch_factor": 2},
}
SEGMENTATION_COMMON: dict[str, Any] = {"pin_memory": True, "persistent_workers": True, "precision": "16-mixed"}
SEGMENTATION = {
    "recommended": SEGMENTATION_COMMON
    | {"batch_size": 64, "num_workers": 8, "prefetch_factor": 2, "gradient_accumulation_steps": 1},
    "memory_limited": SEGMENTATION_COMMON
    | {"batch_size": 32, "num_workers": 8, "prefetch_factor": 2, "gradient_accumulation_steps": 2},
    "max_performance": SEGMENTATION_COMMON
    | {"batch_size": 128, "num_workers": 16, "prefetch_factor": 4, "gradient_accumulation_steps": 1},
}
SEQUENCE_VAE_COMMON: dict[str, Any] = {
    "pin_memory": True,
    "gradient_accumulation_steps": 2,
    "precision": "16-mixed",
}
SEQUENCE_VAE = {
    "recommended": SEQUENCE_VAE_COMMON
    | {
        "batch_size": 4,
        "num_workers": 8,
        "max_sequence_length": 1000,
        "fast_detection": True,
        "compile_model": False,
        "disable_metrics_monitoring": False,
    },
    "max_performance": SEQUENCE_VAE_COMMON
    | {
        "batch_size": 4,
        "num_workers": 8,
        "max_sequence_length": 1000,
        "fast_detection": False,
        "compile_model": True,
        "disable_metrics_monitoring": True,
    },
    "memory_limited": SEQUENCE_VAE_COMMON
    | {"batch_size": 2, "num_workers": 4, "max_sequence_length": 500, "fast_detection": True},
    "debug": {
        "batch_size": 1,
        "num_workers": 2,
        "max_sequence_length": 100,
        "precision": "32",
        "fast_detection": True,
    },
}
GUIDES = {"speech": SPEECH, "segmentation": SEGMENTATION, "sequence_vae": SEQUENCE_VAE}


@pytest.mark.parametrize(
    ("task", "preset"), [(task, preset) for task, presets in GUIDES.items() for preset in presets]
)
def test_a_preset_gives_what_its_guide_says(task: str, preset: str) -> None:
    config = load_config({"task": task, "preset": preset}, environ={})

    wanted = GUIDES[task][preset]
    assert {key: getattr(config, key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("task", "wanted"),
    [
        ("cardiac_ct", {"batch_size": 8, "cache_in_memory": False, "use_gpu_augment": False}),
        ("heart_sound", {"batch_size": 64, "cache_in_memory": True, "use_gpu_augment": True}),
        ("speech", {"batch_size": 8, "prefetch_factor": 4}),
        ("segmentation", {"batch_size": 64, "gradient_accumulation_steps": 1}),
        (
            "sequence_vae",
            {
                "batch_size": 4,
                "gradient_accumulation_steps": 2,
                "max_sequence_length": 1000,
                "val_check_interval": 0.1,
                "limit_val_batches": 0.1,
                "compile_model": False,
                "save_top_k": 2,
            },
        ),
    ],
)
def test_a_task_has_its_settled_defaults(task: str, wanted: dict[str, Any]) -> None:
    config = load_config({"task": task}, environ={})

    assert {key: getattr(config, key) for key in wanted} == wanted


def test_names_in_the_schema_are_those_of_the_data() -> None:
    assert set(list_tasks()) == set(get_args(Task))
    assert list(list_presets()) == list(get_args(Preset))


@pytest.mark.parametrize("preset", get_args(Preset))
@pytest.mark.parametrize("task", [None, *get_args(Task)])
def test_every_combination_is_a_valid_config(preset: str, task: str | None) -> None:
    config = load_config({"task": task, "preset": preset}, environ={})

    assert (config.preset, config.task) == (preset, task)
    assert (config.prefetch_factor is None) == (config.num_workers == 0)


@pytest.mark.parametrize("task", get_args(Task))
@pytest.mark.parametrize(("preset", "factor"), [("low_memory_gpu", 0.5), ("high_memory_gpu", 2)])
def test_memory_presets_scale_the_batch_of_every_task(task: str, preset: str, factor: float) -> None:
    plain = load_config({"task": task}, environ={})

    assert load_config({"task": task, "preset": preset}, environ={}).batch_size == plain.batch_size * factor


def test_a_preset_as_it_is_written_down() -> None:
    described = describe_preset("debug")

    assert described["common"] == {"batch_size": 1, "num_workers": 2, "precision": "32"}
    assert described["tasks"]["sequence_vae"]["max_sequence_length"] == 100
    with pytest.raises(ConfigError, match="no preset 'debg'; wanted one of recommended"):
        describe_preset("debg")


def test_task_data_repeats_no_default_but_the_batch_size() -> None:
    defaults = Config().model_dump()
    repeated = {
        (task, key)
        for task, values in list_tasks().items()
        for key, value in values.items()
        if key != "batch_size" and defaults[key] == value
    }

    assert repeated == set()
