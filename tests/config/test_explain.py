"""Every mistake of a config in plain words, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.config import load_config
from flatout.errors import ConfigError


def complaint(values: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(values, **{"environ": {}, **more})
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"batchsize": 4}, "config: unknown key 'batchsize'; did you mean 'batch_size'?"),
        ({"xyzzy": 4}, "config: unknown key 'xyzzy'; 'flatout config' lists the known ones"),
        (
            {"hardware": {"num_worker": 4}},
            "config: unknown key 'hardware.num_worker'; did you mean 'num_workers'?",
        ),
        (
            {"hardware": {"cache_confg": {"cache_size": 4}}},
            "config: unknown key 'hardware.cache_confg'; did you mean 'cache_config'?",
        ),
        ({"epochs": 0}, "config: 'epochs' is 0; wanted greater than 0"),
        ({"epochs": "many"}, "config: 'epochs' is 'many'; wanted a whole number"),
        ({"epochs": None}, "config: 'epochs' is null; wanted a whole number"),
        ({"epochs": True}, "config: 'epochs' is true; wanted a number"),
        ({"val_check_interval": True}, "config: 'val_check_interval' is true; wanted a number"),
        ({"pin_memory": 7}, "config: 'pin_memory' is 7; wanted true or false"),
        ({"cache_config": 7}, "config: 'cache_config' is 7; wanted keys with values"),
        ({"output_dir": 5}, "config: 'output_dir' is 5; wanted text"),
        ({"num_workers": "some"}, "config: 'num_workers' is 'some'; wanted a whole number or 'auto'"),
        (
            {"task": "segmentaton"},
            "config: 'task' is 'segmentaton'; wanted 'cardiac_ct', 'heart_sound', 'speech', 'segmentation' or "
            "'sequence_vae' or a class of your own as package.module:Name; did you mean 'segmentation'?",
        ),
        ({"crc": "never"}, "config: 'crc' is 'never'; wanted 'first', 'always' or 'off'"),
        ({"manifest": {"train": 5}}, "config: 'manifest.train' is 5; wanted text"),
        ({"learning_rate": float("nan")}, "config: 'learning_rate' is nan; wanted a finite number"),
        (
            {"fields": {"ct": {"kind": "volume", "spacing": [1, "a", 2]}}},
            "config: 'fields.ct.spacing.1' is 'a'; wanted a number",
        ),
        (
            {"fields": {"ct": {"kind": "volume", "sise": 3}}},
            "config: unknown key 'fields.ct.sise'; did you mean 'fields.ct.size'?",
        ),
        (
            {"fields": {"diagnosis": {"kind": "label", "size": 3}}},
            "config: unknown key 'fields.diagnosis.size'; a field of kind 'label' has no 'size'; "
            "kinds volume, image have it",
        ),
        (
            {"fields": {"liver": {"kind": "mask", "spacing": [1, 1, 1]}}},
            "config: unknown key 'fields.liver.spacing'; a mask follows its image: give 'spacing' to the "
            "image or volume that it belongs to",
        ),
        (
            {"fields": {"ct": {"sise": 3}}},
            "config: unknown key 'fields.ct.sise'; did you mean 'fields.ct.size'?",
        ),
        ({"fields": {"ct": 3}}, "config: 'fields.ct' is 3; wanted keys with values"),
        ({"fields": {"x": {"kind": "custom"}}}, "config: 'fields.x.name' is missing; wanted a value"),
    ],
)
def test_a_mistake_names_key_got_and_wanted(values: dict[str, Any], wanted: str) -> None:
    assert complaint(values) == wanted


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"preset": "recomended"}, "recommended"),
        ({"precision": "bf16mixed"}, "bf16-mixed"),
        ({"fields": {"ct": {"kind": "volum"}}}, "volume"),
    ],
)
def test_where_only_some_names_will_do_the_likely_one_is_named(values: dict[str, Any], meant: str) -> None:
    assert complaint(values).endswith(f"; did you mean '{meant}'?")


@pytest.mark.parametrize(("kind", "got"), [("volum", "is 'volum'"), (None, "is null")])
def test_an_unknown_kind_lists_the_kinds(kind: Any, got: str) -> None:
    message = complaint({"fields": {"x": {"kind": kind}}})

    assert f"'fields.x.kind' {got}; wanted 'volume', 'image'" in message


def test_a_long_value_is_cut() -> None:
    assert len(complaint({"epochs": "x" * 500})) < 120


def test_where_each_mistake_was_made(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    lines = ["epochs: 0", "hardware:", "  num_workrs: 8", *["#"] * 6, "use_amp: maybe", "batchsize: 1"]
    file.write_text("\n".join(lines))

    message = complaint(
        file,
        environ={"FLATOUT_BATCHSIZE": "3", "FLATOUT_CRC": "never", "FLATOUT_CACHE_CONFG__CACHE_SIZE": "1"},
        sets=["seed=-1"],
        overrides={"io": "tape"},
    )

    assert message.splitlines() == [
        "9 settings are wrong:",
        f"  {file}, line 10: 'use_amp' is 'maybe'; wanted true or false",
        "  --set: 'seed' is -1; wanted greater than or equal to 0",
        f"  {file}, line 1: 'epochs' is 0; wanted greater than 0",
        f"  {file}, line 3: unknown key 'hardware.num_workrs'; did you mean 'num_workers'?",
        f"  {file}, line 11: unknown key 'batchsize'; did you mean 'batch_size'?",
        "  environment: 'FLATOUT_CRC' is 'never'; wanted 'first', 'always' or 'off'",
        "  environment: unknown key 'FLATOUT_BATCHSIZE'; did you mean 'FLATOUT_BATCH_SIZE'?",
        "  environment: unknown key 'FLATOUT_CACHE_CONFG__CACHE_SIZE'; did you mean 'FLATOUT_CACHE_CONFIG'?",
        "  options: 'io' is 'tape'; wanted 'auto', 'mmap' or 'pread'",
    ]


def test_contradictions_and_wrong_values_come_together() -> None:
    message = complaint({"batch_size": 8, "ims_per_gpu": 4, "epochs": 0, "manifest": "$NONE/x"})

    assert message.startswith("3 settings are wrong:")


@pytest.mark.parametrize("key", ["windows", "sample_rate"])
def test_a_key_that_no_other_is_like_is_told_what_its_kind_of_field_has(key: str) -> None:
    """`window` would be near, and is what volumes have."""
    told = complaint({"fields": {"sound": {"kind": "signal", key: 3}}})

    start = f"config: unknown key 'fields.sound.{key}'; a field of this kind has "
    assert told.startswith(start)
    assert {"column", "rate", "split", "length"} <= set(told.removeprefix(start).split(", "))
    assert "window" not in told.removeprefix(start).split(", ")
