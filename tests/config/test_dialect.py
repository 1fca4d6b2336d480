"""Other spellings become canonical names; contradictions are problems."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.config import Config, load_config
from flatout.config.dialect import FLATTENED, RENAMED, canonical, translate
from flatout.config.findings import Findings
from flatout.config.keys import list_keys
from flatout.config.layer import Layer
from flatout.errors import ConfigError


def translated(values: dict[str, Any]) -> tuple[dict[Any, Any], Findings]:
    findings = Findings()
    return translate(Layer("c.yaml", values), findings).values, findings


def known_paths() -> set[tuple[str, ...]]:
    return {key.path for key in list_keys(Config)}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_every_spelling_ends_at_a_known_key(old: str, new: str) -> None:
    path = canonical(tuple(old.split(".")))

    assert path == tuple(new.split("."))
    assert path in known_paths() or path[0] == "manifest"
    assert tuple(old.split(".")) not in known_paths(), "a canonical key is no other spelling"


def test_no_flattened_section_hides_a_key() -> None:
    assert not {(section,) for section in FLATTENED} & known_paths()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"ims_per_gpu": 64}, {"batch_size": 64}),
        ({"use_fp16": True}, {"precision": "16-mixed"}),
        ({"use_amp": False}, {"precision": "32"}),
        ({"use_amp": "yes"}, {"precision": "16-mixed"}),
        ({"precision": 32}, {"precision": "32"}),
        ({"precision": "16"}, {"precision": "16-mixed"}),
        ({"precision": "bf16"}, {"precision": "bf16-mixed"}),
        ({"precision": "32-true"}, {"precision": "32"}),
        ({"accumulate_grad_batches": 2}, {"gradient_accumulation_steps": 2}),
        ({"csv_path": "a.csv"}, {"manifest": "a.csv"}),
        ({"hardware": {"num_workers": 8, "device": "cuda"}}, {"num_workers": 8, "device": "cuda"}),
        ({"data_cache": {"cache_in_memory": True}}, {"cache_in_memory": True}),
        ({"trainer": {"precision": "16-mixed", "max_epochs": 3}}, {"precision": "16-mixed", "epochs": 3}),
        (
            {"train_ds": {"manifest_filepath": "t.json", "batch_size": 8}},
            {"manifest": {"train": "t.json"}, "train_ds": {"batch_size": 8}},
        ),
        ({"model": {"train_ds": {"manifest_filepath": "t.json"}}}, {"manifest": {"train": "t.json"}}),
        (
            {"train_ds": {"tarred_audio_filepaths": "t_{0..3}.tar"}},
            {"tarred_audio_filepaths": "t_{0..3}.tar"},
        ),
        (
            {
                "train_ds": {"tarred_audio_filepaths": ["a.tar", "b.tar"]},
                "validation_ds": {"tarred_audio_filepaths": None},
                "test_ds": {"tarred_audio_filepaths": "c.tar"},
            },
            {"tarred_audio_filepaths": ["a.tar", "b.tar", "c.tar"]},
        ),
        ({"model": {"dim": 64}}, {"model": {"dim": 64}}),
        ({"val_ds": {"ims_per_gpu": 2}}, {"validation_ds": {"batch_size": 2}}),
        ({"fields": {"verbose": {"kind": "label"}}}, {"fields": {"verbose": {"kind": "label"}}}),
        ({"hardware": None, "data_cache": {}}, {}),
        ({"cache_config": {}}, {"cache_config": {}}),
    ],
)
def test_spellings(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    values, findings = translated(given)

    assert values == wanted
    assert findings == Findings()


@pytest.mark.parametrize("key", ["batch_size", "ims_per_gpu", "num_workers", "prefetch_factor"])
@pytest.mark.parametrize("text", ["16-32", "32-16", " 16 - 32 ", "16~32", "16\u201332"])
def test_a_range_takes_its_lower_end_and_says_so(key: str, text: str) -> None:
    values, findings = translated({"train_ds" if key == "batch_size" else "hardware": {key: text}})

    assert 16 in {**values, **values.get("train_ds", {})}.values()
    assert len(findings.notes) == 1
    assert "took 16" in findings.notes[0]


def test_a_range_elsewhere_stays_text() -> None:
    given = {"transform_params": {"batch_size": "16-32"}, "transform_version": "1-2"}

    assert translated(given) == (given, Findings())


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"batch_size": 8, "ims_per_gpu": 64}, ("batch_size", "ims_per_gpu")),
        ({"use_fp16": True, "precision": "bf16-mixed"}, ("use_fp16", "precision")),
        ({"use_fp16": True, "use_amp": False}, ("use_fp16", "use_amp")),
        ({"num_workers": 4, "hardware": {"num_workers": 8}}, ("num_workers", "hardware.num_workers")),
        ({"csv_path": "a.csv", "data_dir": "b"}, ("csv_path", "data_dir")),
        (
            {"manifest": "a.csv", "train_ds": {"manifest_filepath": "b.json"}},
            ("manifest", "train_ds.manifest_filepath"),
        ),
    ],
)
def test_two_names_that_differ_are_a_problem_naming_both(given: dict[str, Any], names: tuple[str, str]) -> None:
    _, findings = translated(given)

    assert len(findings.problems) == 1
    assert all(f"'{name}'" in findings.problems[0] for name in names)
    assert findings.problems[0].startswith("c.yaml: ")


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"augmentation_config": {}, "sample_rate": 5000}, {"augmentation": {"sample_rate": 5000}}),
        ({"augmentation": None, "sample_rate": 5000}, {"augmentation": {"sample_rate": 5000}}),
        ({"manifest": None, "csv_path": "x.csv"}, {"manifest": "x.csv"}),
        ({"train_ds": {"manifest_filepath": None}, "csv_path": "x.csv"}, {"manifest": "x.csv"}),
        ({"train_ds": {}, "model": {"train_ds": {"batch_size": 3}}}, {"train_ds": {"batch_size": 3}}),
        ({"precision": 32, "use_amp": None}, {"precision": "32"}),
        ({"num_workers": None, "hardware": {"num_workers": 2}}, {"num_workers": 2}),
        (
            {"augmentation_config": {}, "sample_rate": 5000, "augmentation": {"snr": 3}},
            {"augmentation": {"sample_rate": 5000, "snr": 3}},
        ),
    ],
)
def test_nothing_gives_way_to_another_spelling(
    given: dict[str, Any], wanted: dict[str, Any], is_turned: bool
) -> None:
    values, findings = translated(dict(reversed(given.items())) if is_turned else given)

    assert values == wanted
    assert findings == Findings()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"csv_path": None}, {"manifest": None}),
        ({"augmentation_config": {}}, {"augmentation": {}}),
        (
            {"early_stopping": {"patience": None, "mode": "max"}},
            {"early_stopping": {"patience": None, "mode": "max"}},
        ),
    ],
)
def test_nothing_is_kept_where_nobody_says_more(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert translated(given) == (wanted, Findings())


@pytest.mark.parametrize("key", ["use_amp", "use_fp16"])
def test_a_switch_wants_true_or_false_and_its_neighbour_is_judged(key: str) -> None:
    values, findings = translated({"precision": 17, key: "maybe"})

    assert findings.problems == [f"c.yaml: '{key}' is 'maybe'; wanted true or false"]
    assert values == {"precision": 17}
    with pytest.raises(
        ConfigError, match=rf"(?s)'{key}' is 'maybe'; wanted true.*'precision' is 17; wanted 'auto'"
    ):
        load_config({key: "maybe", "precision": 17})


def test_a_switch_may_hold_a_precision() -> None:
    assert translated({"use_amp": "bf16-mixed"}) == ({"precision": "bf16-mixed"}, Findings())


def test_two_names_that_agree_are_fine() -> None:
    values, findings = translated({"use_fp16": True, "use_amp": True, "precision": 16})

    assert values == {"precision": "16-mixed"}
    assert findings == Findings()


def test_the_layer_remembers_how_a_key_was_written() -> None:
    layer = translate(
        Layer("c", {"hardware": {"num_workers": 8}}, {("hardware", "num_workers"): 2}), Findings()
    )

    assert layer.spelling(("num_workers",)) == ("hardware", "num_workers")
    assert layer.describe(("num_workers",)) == "c, line 2"
