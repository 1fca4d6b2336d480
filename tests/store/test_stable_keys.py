"""Keys and splits stay, whatever is added to the manifest, by the rule that the store keeps."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import Config, load_config
from flatout.errors import ConfigError, ManifestError
from flatout.store import DataPreprocessor, RunStats, StoreReader, compare_with_source, summarise_source
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


PATIENTS = "name,patient,label,n\n"
BARE: dict[str, Any] = {"fields": {}}


def of_patients(stop: int, start: int = 0, *more: str) -> str:
    """Four rows of each patient."""
    cells = (f"case{at},p{at // 4},{at % 3},{at}.5" for at in range(start * 4, stop * 4))
    return "".join(",".join((line, *more)) + "\n" for line in cells)


def test_a_tenth_patient_moves_no_sample(manifest: Path) -> None:
    first = job_from_config(config_of(manifest, PATIENTS + of_patients(9), **BARE))
    assert (first.settings["splits"]["group"], first.settings["splits"]["guess"]) == (None, False)
    text = PATIENTS + of_patients(12)
    assert job_from_config(config_of(manifest, text, **BARE)).settings["splits"]["group"] == "patient"
    second = job_from_config(later_config(first, manifest, text, **BARE))
    assert splits_of(first).items() <= splits_of(second).items()
    assert any("'patient' is not used: the splits were made without it" in note for note in second.notes)
    third = job_from_config(later_config(second, manifest, text, **BARE))
    assert splits_of(third) == splits_of(second)
    asked = job_from_config(later_config(second, manifest, text, **BARE, splits={"group": "patient"}))
    assert asked.settings["splits"]["group"] == "patient"


def test_a_store_of_an_older_release_chooses_no_group_anew(manifest: Path) -> None:
    first = job_from_config(config_of(manifest, PATIENTS + of_patients(9), **BARE))
    for name in ("guess", "empty"):
        del first.settings["splits"][name]
    second = job_from_config(later_config(first, manifest, PATIENTS + of_patients(12), **BARE))
    assert splits_of(first).items() <= splits_of(second).items()


def test_an_older_store_of_named_fields_still_finds_its_split_column(manifest: Path) -> None:
    text = "name,label,n,split\n" + "".join(f"{line},val\n" for line in rows().splitlines())
    first = job_from_config(config_of(manifest, text))
    first.settings["splits"].update(column=None)  # as it was not kept
    for name in ("guess", "empty"):
        del first.settings["splits"][name]
    second = job_from_config(later_config(first, manifest, text))
    assert set(second.splits) == {"val"}
    assert second.settings["splits"]["column"] == "split"


@pytest.mark.parametrize(
    "settings", [{}, BARE, {"splits": {"group": "patient"}}], ids=["named", "bare", "group"]
)
def test_an_empty_cell_in_a_split_column_that_was_found_moves_no_sample(
    manifest: Path, settings: dict[str, Any]
) -> None:
    header = "name,patient,label,n,split\n"
    text = header + of_patients(6, 0, "train") + of_patients(12, 6, "test")
    first = job_from_config(config_of(manifest, text, **settings))
    assert set(first.splits) == {"train", "test"}
    text += "fresh,p7,1,0,\nalone,p99,1,0, \n"
    fresh = job_from_config(config_of(manifest, text, **settings))
    assert fresh.settings["splits"]["column"] == "split"  # two empty cells do not leave the others to chance
    assert splits_of(first).items() <= splits_of(fresh).items()
    second = job_from_config(later_config(first, manifest, text, **settings))
    found = splits_of(second)
    assert splits_of(first).items() <= found.items()
    if second.settings["splits"]["group"] is not None:
        assert found["fresh"] == "test"  # where its patient is
    assert any("2 rows name no split in 'split' (the first is 'fresh')" in note for note in second.notes)
    kept = {**second.settings}
    kept.pop("config_dir")
    assert splits_of(job_from_config(load_config(kept, environ={}))) == found  # as a repair reads it


def test_a_split_column_that_is_added_divides_only_where_it_is_set(manifest: Path) -> None:
    first = job_from_config(config_of(manifest, "name,label,n\n" + rows(), **BARE))
    text = "name,label,n,split\n" + "".join(f"{line},val\n" for line in rows().splitlines())
    second = job_from_config(later_config(first, manifest, text, **BARE))
    assert splits_of(second) == splits_of(first)
    assert second.fingerprint.digest == first.fingerprint.digest
    assert any("set splits.column: split to use it" in note for note in second.notes)
    asked = job_from_config(later_config(first, manifest, text, **BARE, splits={"column": "split"}))
    assert set(asked.splits) == {"val"}


def test_a_split_column_that_is_set_later_need_not_fit_the_group_that_was_found(manifest: Path) -> None:
    first = job_from_config(config_of(manifest, PATIENTS + of_patients(12), **BARE))
    assert first.settings["splits"]["group"] == "patient"
    lines = of_patients(12).splitlines()
    text = "name,patient,label,n,part\n" + "".join(
        f"{line},{('train', 'val')[at % 2]}\n" for at, line in enumerate(lines)
    )
    config = later_config(first, manifest, text, **BARE, splits={"column": "part"})
    second = job_from_config(config)
    assert splits_of(second) == {f"case{at}": ("train", "val")[at % 2] for at in range(48)}
    assert any("values of 'patient' stand in more than one split" in note for note in second.notes)


def test_an_empty_cell_in_a_split_column_that_is_set_is_refused(manifest: Path) -> None:
    text = "name,label,n,part\n" + "".join(f"{line},val\n" for line in rows().splitlines())
    first = job_from_config(config_of(manifest, text, splits={"column": "part"}))
    config = later_config(first, manifest, text + "fresh,1,0,\n", splits={"column": "part"})
    with pytest.raises(
        ManifestError, match=r"1 rows name no split \(the first is row 41\).*splits\.empty: divide"
    ):
        job_from_config(config)


@pytest.fixture
def beats(tmp_path: Path) -> dict[str, Any]:
    """The config of three recordings whose cycles stand in the manifest, or one of them in a file."""
    for number in range(3):
        np.save(tmp_path / f"r{number}.npy", np.sin(np.arange(4000, dtype=np.float32) + number))
        os.utime(tmp_path / f"r{number}.npy", (1e9, 1e9))
    signal = {"kind": "signal", "column": "file", "source_rate": 1000, "split": "cycles", "cycle_column": "c"}
    return {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"signal": signal},
        "num_workers": 0,
    }


def test_cycles_that_stand_in_the_manifest_are_no_files(beats: dict[str, Any], tmp_path: Path) -> None:
    def prepare(*cells: str) -> RunStats:
        lines = [f'r{number}.npy,"{cell}"' for number, cell in enumerate(cells)]
        Path(beats["manifest"]).write_text("\n".join(["file,c", *lines]))
        return DataPreprocessor(beats).run()

    (tmp_path / "r2.tsv").write_text("0\t1\t1\n1\t2\t1\n2\t3\t1\n")
    os.utime(tmp_path / "r2.tsv", (1e9, 1e9))
    for third in ("0, 1.5, 2, 3", "r2.tsv"):
        first = prepare("0.0 0.8 1.6", "[0.5;1]", third)
        assert (first.failed, first.num_samples) == (0, 2 + 1 + (3 if "," in third else 2))
        assert prepare("0.0 0.8 1.6", "[0.5;1]", third).processed == 0
        assert compare_with_source(tmp_path / "store")
        found = summarise_source(load_config(beats, environ={}))
        assert (found.num_bad, found.refusal) == (0, "")
        keys = StoreReader(tmp_path / "store").keys()
        again = prepare("0.0 0.8 1.7", "[0.5;1]", third)
        assert (again.processed, again.unchanged) == (1, 2)
        assert StoreReader(tmp_path / "store").keys() == keys
        shutil.rmtree(tmp_path / "store")
    assert not any("0.8" in key for key in keys)


def test_a_store_that_grows_past_ten_patients_keeps_every_split(manifest: Path, tmp_path: Path) -> None:
    config = {"manifest": str(manifest), "preprocessed_data_dir": str(tmp_path / "store"), "num_workers": 0}

    def prepare(num_patients: int) -> dict[str, str]:
        manifest.write_text(PATIENTS + of_patients(num_patients))
        DataPreprocessor(config).run()
        reader = StoreReader(tmp_path / "store")
        return dict(
            zip(reader.keys(), map(reader.meta.splits.__getitem__, reader.numbers["split"]), strict=True)
        )

    first = prepare(9)
    assert first.items() <= prepare(12).items()
    assert first.items() <= prepare(13).items()
