"""Keys and splits stay, whatever is added to the manifest, by the rule that the store keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.config import Config, load_config
from flatout.errors import ConfigError, ManifestError
from flatout.store import DataPreprocessor
from flatout.store.job import Job, job_from_config, with_recorded
from flatout.store.progress import Silent
from flatout.store.recorded import job_of_store

NUM_ROWS = 40


def config_of(manifest: Path, text: str, **settings: Any) -> Config:
    manifest.write_text(text)
    fields = {"label": {"kind": "label"}, "n": {"kind": "scalar"}}
    paths = {name: {"kind": "array"} for name in ("image", "mask") if name in text.partition("\n")[0]}
    return load_config({"manifest": str(manifest), "fields": {**paths, **fields}, **settings}, environ={})


def later_config(first: Job, manifest: Path, text: str, **settings: Any) -> Config:
    return with_recorded(config_of(manifest, text, **settings), json.loads(json.dumps(dict(first.settings))))


def splits_of(job: Job) -> dict[str, str]:
    return dict(zip(job.manifest.keys.to_pylist(), map(str, job.splits), strict=True))


def rows(start: int = 0, stop: int = NUM_ROWS) -> str:
    return "".join(f"case{at},{at % 3},{at}.5\n" for at in range(start, stop))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "m.csv"


def test_an_id_that_repeats_is_named_instead_of_choosing_another_rule(manifest: Path) -> None:
    first = job_from_config(config_of(manifest, "name,label,n\n" + rows()))
    assert first.settings["key_rule"] == "column:name"
    text = "name,label,n\n" + rows() + "case7,1,0\n"
    assert job_from_config(config_of(manifest, text)).settings["key_rule"] != "column:name"
    with pytest.raises(ManifestError, match=r"rows 8, 41 are all 'case7'.*key_column.*--force"):
        job_from_config(later_config(first, manifest, text))


def test_an_added_column_moves_no_sample(manifest: Path) -> None:
    body = "".join(f"{at % 3},{at}.5\n" for at in range(NUM_ROWS))
    first = job_from_config(config_of(manifest, "label,n\n" + body))
    assert first.settings["key_rule"] == "content:label,n"
    lines = [f"{line},{at},x{at}" for at, line in enumerate(body.splitlines())]
    text = "\n".join(["label,n,age,id", "l2,500,3,new", *lines[::-1]])
    second = job_from_config(later_config(first, manifest, text))
    assert splits_of(first).items() <= splits_of(second).items()
    assert second.settings["key_rule"] == first.settings["key_rule"]


def test_a_second_mask_of_an_image_moves_no_sample(manifest: Path) -> None:
    lines = [f"i{at}.png,m{at}.png,{at % 3},{at}" for at in range(NUM_ROWS)]
    first = job_from_config(config_of(manifest, "\n".join(["image,mask,label,n", *lines])))
    assert first.settings["key_rule"] == "paths:image,mask"
    text = "\n".join(["image,mask,label,n", "i3.png,other.png,0,0", *lines])
    second = job_from_config(later_config(first, manifest, text))
    assert splits_of(first).items() <= splits_of(second).items()


def test_what_the_config_says_wins_over_the_record(manifest: Path) -> None:
    text = "name,label,n,code\n" + rows().replace(".5", ".5,")
    text = "\n".join(line + str(at) if at else line for at, line in enumerate(text.splitlines()))
    first = job_from_config(config_of(manifest, text))
    for settings in ({"key_column": "code"}, {"key_rule": "column:code"}):
        config = later_config(first, manifest, text, **settings)
        assert job_from_config(config).manifest.keys[0].as_py() == "1"
    bare = config_of(manifest, text)
    assert with_recorded(bare, {}) == bare
    assert with_recorded(bare, {"key_rule": None}) == bare


def test_the_settings_of_a_store_load_again(manifest: Path, tmp_path: Path) -> None:
    config = config_of(manifest, "name,label,n\n" + rows())
    config._config_dir = tmp_path
    settings = dict(job_from_config(config).settings)
    settings.pop("config_dir")
    assert load_config(settings, environ={}).key_rule == "column:name"
    assert with_recorded(config, settings).config_dir == tmp_path
    assert with_recorded(config, settings).key_rule == "column:name"


def test_a_manifest_that_has_moved_keeps_keys_and_splits(manifest: Path, tmp_path: Path) -> None:
    first = job_from_config(config_of(manifest, "name,label,n\n" + rows()))
    moved = tmp_path / "elsewhere.csv"
    text = "id,name,label,n\n" + "".join(f"x{at},{line}\n" for at, line in enumerate(rows().splitlines()))
    assert job_from_config(config_of(moved, text)).settings["key_rule"] == "column:id"
    second = job_from_config(later_config(first, moved, text))
    assert second.settings["key_rule"] == "column:name"
    assert splits_of(first) == splits_of(second)
    with pytest.raises(ManifestError, match=r"column 'name' is gone.*--force"):
        job_from_config(later_config(first, moved, "id,label,n\n" + rows()))


def test_another_manifest_is_said_and_starts_anew_where_nothing_fits(manifest: Path, tmp_path: Path) -> None:
    config, other = config_of(manifest, "name,label,n\n" + rows()), tmp_path / "other.csv"
    settings = dict(job_from_config(config).settings)
    assert not any("this store was made" in note for note in job_of_store(config, settings, {}).notes)
    assert not any("this store was made" in note for note in job_of_store(config, {}, {}).notes)
    kept = job_of_store(config_of(other, "id,name,label,n\nx,case1,1,1\ny,case2,2,2\n"), settings, {})
    assert f"made from {manifest}, now it is filled from {other}: keys go on" in kept.notes[0]
    assert kept.settings["key_rule"] == "column:name"
    anew = job_of_store(config_of(other, "id,label,n\n" + rows()), settings, {})
    assert "chosen anew (the keys follow key_rule 'column:name', but column 'name' is gone" in anew.notes[0]
    assert anew.settings["key_rule"] == "column:id"
    with pytest.raises(ManifestError, match=r"column 'name' is gone.*--force"):
        job_of_store(config_of(manifest, "id,label,n\n" + rows()), settings, {})


def test_a_store_filled_from_a_moved_manifest_makes_nothing_again(source: Any) -> None:
    source.prepare()
    moved = source.folder / "renamed.csv"
    source.manifest.rename(moved)
    said: list[str] = []

    class Told(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    stats = DataPreprocessor(source.config(manifest=str(moved))).run(progress=Told())
    assert (stats.processed, stats.unchanged) == (0, 12)
    assert any("now it is filled from" in text for text in said)
    said.clear()
    assert DataPreprocessor(source.config(manifest=str(moved))).run(progress=Told()).unchanged == 12
    assert not any("now it is filled from" in text for text in said)  # the store has noted it


def test_a_recorded_split_column_that_is_gone_is_named(manifest: Path) -> None:
    text = "name,label,n,split\n" + "".join(f"{line},train\n" for line in rows().splitlines())
    config = config_of(manifest, text, splits={"column": "split"})
    first = job_from_config(config)
    with pytest.raises((ConfigError, ManifestError), match="'split'"):
        job_from_config(later_config(first, manifest, "name,label,n\n" + rows()))


def test_a_dataset_takes_no_rule_from_a_store_of_files(manifest: Path) -> None:
    first = job_from_config(config_of(manifest, "name,label,n\n" + rows()))
    config = load_config({"preprocessed_data_dir": "x"}, environ={})
    assert with_recorded(config, first.settings) == config
