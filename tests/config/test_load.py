"""Layers in their order, idempotence, and what survives a round trip."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config import Config, config_schema, load_config, resolve_config, to_yaml
from flatout.config.fields import AutoField, NoField, VolumeField
from flatout.config.text import parse_yaml
from flatout.errors import ConfigError

NAMES = st.text(st.characters(categories=["L", "N"], include_characters="_ -./"), min_size=1, max_size=12)
LOADER = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.integers(1, 512),
        "num_workers": st.integers(0, 64) | st.just("auto"),
        "prefetch_factor": st.none() | st.integers(1, 16),
        "persistent_workers": st.booleans(),
        "shuffle": st.none() | st.booleans(),
        "max_sequence_length": st.none() | st.integers(1, 10**6),
    },
)
FIELD = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("volume")},
        optional={
            "spacing": st.none() | st.tuples(*[st.floats(0.1, 10)] * 3).map(list),
            "size": st.tuples(*[st.integers(1, 512)] * 3).map(list),
            "mean": st.floats(-10, 10) | st.lists(st.floats(-10, 10), min_size=1, max_size=3),
        },
    ),
    st.fixed_dictionaries(
        {"kind": st.just("mask"), "values": st.dictionaries(st.integers(0, 255), st.integers(0, 9))}
    ),
    st.fixed_dictionaries({"kind": st.just("label"), "classes": st.none() | st.lists(st.text(), max_size=3)}),
)
SETTINGS = st.builds(
    lambda loader, rest: {**loader, **rest},
    LOADER,
    st.fixed_dictionaries(
        {},
        optional={
            "task": st.sampled_from([None, "heart_sound", "sequence_vae"]),
            "preset": st.sampled_from([None, "debug", "windows", "recommended"]),
            "manifest": NAMES | st.dictionaries(NAMES, NAMES, min_size=1, max_size=2),
            "fields": st.dictionaries(NAMES, FIELD, max_size=3),
            "transform_params": st.dictionaries(
                NAMES,
                st.none() | st.integers() | st.text() | st.lists(st.floats(-1e9, 1e9)),
                max_size=3,
            ),
            "learning_rate": st.floats(1e-12, 10),
            "val_check_interval": st.integers(1, 1000) | st.floats(0.01, 1.0),
            "devices": st.integers(1, 8) | st.lists(st.integers(0, 7), max_size=3) | st.just("auto"),
            "precision": st.sampled_from(["auto", 16, "32", "bf16-mixed"]),
            "fast_detection": st.booleans(),
            "crc": st.sampled_from(["first", "always", "off"]),
            "train_ds": LOADER,
            "validation_ds": LOADER,
            "transform_version": st.none() | st.text(),
        },
    ),
)


@settings(deadline=None, max_examples=60)
@given(SETTINGS)
def test_what_is_printed_loads_as_an_equal_config(values: dict[str, Any]) -> None:
    config = load_config(values, environ={})

    document = config.model_dump(mode="json")
    for again in (document, json.loads(config.model_dump_json()), parse_yaml(to_yaml(document), "x")[0]):
        reloaded, notes = resolve_config(again, environ={})
        assert reloaded == config
        assert not [note for note in notes if "no effect" in note or "range" in note]
        for split in ("train", "val", "test"):
            assert reloaded.loader_for(split) == config.loader_for(split)


@settings(deadline=None, max_examples=60)
@given(SETTINGS)
def test_a_config_survives_pickle_and_loading_again(values: dict[str, Any]) -> None:
    config = load_config(values, environ={})

    assert pickle.loads(pickle.dumps(config)) == config
    assert load_config(config, environ={"FLATOUT_BATCH_SIZE": "3"}) is config
    assert load_config(config, overrides={"seed": 7}, environ={}).model_dump() == {
        **config.model_dump(),
        "seed": 7,
    }


def test_every_layer_wins_over_the_ones_before(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("task: sequence_vae\npreset: memory_limited\n")
    steps: list[tuple[Any, dict[str, Any], int]] = [
        ({}, {}, 8),
        ({"task": "sequence_vae"}, {}, 4),
        (file, {}, 2),
    ]
    for source, more, batch_size in steps:
        assert load_config(source, environ={}, **more).batch_size == batch_size
    file.write_text("task: sequence_vae\npreset: memory_limited\nbatch_size: 11\n")
    environ, sets, overrides = {"FLATOUT_BATCH_SIZE": "12"}, ["batch_size=13"], {"batch_size": 14}

    assert load_config(file, environ={}).batch_size == 11
    assert load_config(file, environ=environ).batch_size == 12
    assert load_config(file, environ=environ, sets=sets).batch_size == 13
    assert load_config(file, environ=environ, sets=sets, overrides=overrides).batch_size == 14


@pytest.mark.parametrize("how", ["environ", "sets", "overrides"])
def test_a_preset_may_be_chosen_anywhere(how: str) -> None:
    more = {
        "environ": {"environ": {"FLATOUT_PRESET": "debug"}},
        "sets": {"sets": ["preset=debug"], "environ": {}},
        "overrides": {"overrides": {"preset": "debug"}, "environ": {}},
    }[how]

    assert load_config({"num_workers": 3}, **more).batch_size == 1  # type: ignore[arg-type]
    assert load_config({"num_workers": 3}, **more).num_workers == 3  # type: ignore[arg-type]


def test_other_spellings_override_canonical_ones_of_weaker_layers() -> None:
    config = load_config({"batch_size": 8}, sets=["ims_per_gpu=4"], environ={"FLATOUT_USE_FP16": "true"})

    assert config.batch_size == 4
    assert config.precision == "16-mixed"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_EPOCHS", "3")

    assert load_config({}).epochs == 3


def test_notes_are_logged_by_load_and_returned_by_resolve(caplog: pytest.LogCaptureFixture) -> None:
    values = {"batch_size": "16-32"}
    _, notes = resolve_config(values, environ={})
    with caplog.at_level(logging.WARNING):
        load_config(values, environ={})

    assert notes == caplog.messages == ["batch_size: 16-32 is a range; took 16"]


def test_a_mapping_may_hold_sections_and_stays_as_it_is() -> None:
    values = {"fields": {"ct": VolumeField(size=(1, 2, 3))}, "hardware": {"num_workers": 1}}
    config = load_config(values, environ={})

    assert config.fields["ct"] == VolumeField(size=(1, 2, 3))
    assert values["hardware"] == {"num_workers": 1}


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config({}, environ={}).batch_size = 4  # type: ignore[misc]


def test_equality_ignores_where_a_config_was_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("batch_size: 4")

    from_file = load_config(tmp_path / "c.yaml", environ={})
    assert from_file == load_config({"batch_size": 4}, environ={})
    assert from_file != load_config({"batch_size": 5}, environ={})
    assert from_file != {"batch_size": 4}
    assert pickle.loads(pickle.dumps(from_file)).config_dir == tmp_path
    assert load_config(from_file, overrides={"seed": 1}, environ={}).config_dir == tmp_path


def test_the_schema_describes_every_top_level_key() -> None:
    schema = config_schema()

    assert set(schema["properties"]) == set(Config.model_fields)
    assert all("description" in described or "$ref" in described for described in schema["properties"].values())
    assert schema["properties"]["batch_size"]["default"] == 8
    assert "default" not in schema["$defs"]["SplitLoaderSection"]["properties"]["batch_size"]
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_settled_defaults() -> None:
    config = Config()
    wanted = {
        "num_workers": "auto",
        "prefetch_factor": 4,
        "cache_in_memory": False,
        "use_gpu_augment": False,
        "view_cache_refresh_epochs": 5,
        "val_check_interval": 1.0,
        "limit_val_batches": 1.0,
        "gradient_accumulation_steps": 1,
        "scale_learning_rate": "none",
        "precision": "auto",
        "crc": "first",
        "io": "auto",
        "order": "global",
        "compile_model": False,
        "deterministic": False,
    }

    assert {key: getattr(config, key) for key in wanted} == wanted
    assert config.cache_config.model_dump() == {
        "enable_cache": True,
        "cache_size": 1000,
        "preload_train_data": False,
        "preload_val_data": False,
    }


@pytest.mark.parametrize("split", ["train", "val", "test", "holdout"])
def test_a_split_without_exceptions_follows_the_top_level(split: str) -> None:
    assert Config(batch_size=5).loader_for(split).batch_size == 5


@pytest.mark.parametrize(
    ("values", "sets", "guesses"),
    [
        ({}, [], True),
        ({"fields": {"a": {"kind": "label"}}}, [], False),
        ({"fields": {"a": {"kind": "label"}, "b": {}}}, [], True),
        ({"fields": {"a": {"kind": "label"}, "b": None}}, [], True),
        ({"fields": {"a": {"kind": "label"}}, "guess_fields": True}, [], True),
        ({"fields": {"a": {}}, "guess_fields": False}, [], False),
        ({}, ["fields.a.kind=label"], True),
        ({}, ["fields.a.kind=label", "guess_fields=false"], False),
        ({"fields": {"a": {"kind": "label"}}}, ["fields.b.kind=text"], False),
        ({"fields": {"a": {"kind": "label"}}}, ["fields.a=null"], True),
        ({"transform": "m:f"}, ["fields.a.encoding=float16"], False),
    ],
)
def test_when_the_rest_is_guessed(values: dict[str, Any], sets: list[str], guesses: bool) -> None:
    config = load_config(values, sets=sets, environ={})
    assert config.guesses_fields is guesses
    assert load_config(config, overrides={"epochs": 3}).guesses_fields is guesses
    assert load_config(config.model_dump(), environ={}).guesses_fields is guesses


def test_fields_from_the_environment_change_guesses_too() -> None:
    config = load_config({"manifest": "m.csv"}, environ={"FLATOUT_FIELDS__A__KIND": "label"})
    assert config.guesses_fields


def test_a_kind_that_is_a_default_is_kept() -> None:
    config = Config(fields={"a": VolumeField(spacing=(1, 1, 1)), "b": NoField()})
    again = load_config(config, overrides={"epochs": 3}, environ={})
    assert {name: field.kind for name, field in again.fields.items()} == {"a": "volume", "b": "none"}


def test_settings_without_a_kind_keep_whatever_they_say() -> None:
    config = load_config({"fields": {"a": {"spacing": [1, 1, 1], "dtype": "float64"}, "b": None}}, environ={})
    assert isinstance(config.fields["a"], AutoField)
    assert config.fields["a"].model_dump(exclude_defaults=True) == {"dtype": "float64", "spacing": [1, 1, 1]}
    assert isinstance(config.fields["b"], NoField)
    assert load_config(config.model_dump(mode="json"), environ={}) == config


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("wandb", ["wandb"]), (["csv", "wandb"], ["csv", "wandb"]), ([], []), ("csv", ["csv"])],
)
def test_one_logger_needs_no_list(given: Any, wanted: list[str]) -> None:
    assert load_config({"logger": given}).logger == wanted
    assert load_config({}, overrides={"logger": given}).logger == wanted


def test_a_logger_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="mlflow"):
        load_config({"logger": "mlflow"})
