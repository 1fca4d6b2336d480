"""Repair: whatever was damaged comes back with the same content, from anywhere."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from flatout.config import load_config
from flatout.errors import StoreCorruptError, StoreError
from flatout.store import DataPreprocessor, StoreReader, repair, verify
from flatout.store.field_parts import field_parts
from flatout.store.mend import config_of_store
from flatout.store.metadata import load_metadata
from flatout.store.progress import Silent

pytestmark = pytest.mark.usefixtures("few_shards")


def mended(folder: Path, expected_hash: str, *, trusted: bool = False) -> Any:
    """Repair what verify finds, and check that the store is whole and what it was."""
    report = verify(folder)
    assert not report
    stats = repair(folder, report, trusted=trusted)
    again = verify(folder)
    assert again.damage == ()
    assert again.content_hash == stats.content_hash == expected_hash
    return stats


def hash_of(folder: Path) -> str:
    return StoreReader(folder).meta.content_hash


def test_a_damaged_shard_is_made_again_and_the_others_are_not(
    prepared: Any, shard_paths: Callable[..., list[Path]], flip_bit: Callable[..., None]
) -> None:
    expected, paths = hash_of(prepared.store), shard_paths(prepared.store)
    flip_bit(paths[1], paths[1].stat().st_size - 3)
    times = [path.stat().st_mtime_ns for path in paths]
    stats = mended(prepared.store, expected)
    assert (stats.processed, stats.unchanged) == (4, 8)
    assert not paths[1].exists()
    assert [paths[n].stat().st_mtime_ns for n in (0, 2)] == [times[0], times[2]]
    assert StoreReader(prepared.store).keys() == [row["id"] for row in prepared.rows]


def test_a_lost_shard_is_made_again(prepared: Any, shard_paths: Callable[..., list[Path]]) -> None:
    expected = hash_of(prepared.store)
    shard_paths(prepared.store)[0].unlink()
    assert mended(prepared.store, expected).processed == 4


def test_all_shards_at_once(prepared: Any, shard_paths: Callable[..., list[Path]]) -> None:
    expected = hash_of(prepared.store)
    for path in shard_paths(prepared.store):
        path.write_bytes(b"")
    assert mended(prepared.store, expected).processed == 12


@pytest.mark.parametrize("lose", [True, False])
def test_without_its_index_everything_is_made_again(
    prepared: Any, flip_bit: Callable[..., None], lose: bool
) -> None:
    expected = hash_of(prepared.store)
    path = prepared.store / StoreReader(prepared.store).meta.index
    path.unlink() if lose else flip_bit(path, 50)
    stats = mended(prepared.store, expected)
    assert (stats.processed, stats.unchanged) == (12, 0)
    assert prepared.prepare().processed == 0  # and it says again what every sample was made from


def test_index_and_a_shard_together(
    prepared: Any, shard_paths: Callable[..., list[Path]], flip_bit: Callable[..., None]
) -> None:
    expected = hash_of(prepared.store)
    flip_bit(shard_paths(prepared.store)[2], 5000)
    (prepared.store / StoreReader(prepared.store).meta.index).unlink()
    assert mended(prepared.store, expected).processed == 12


@pytest.mark.parametrize("name", ["preprocessed_data.h5", "quarantine.jsonl", "preprocessing_stats.json"])
@pytest.mark.parametrize("lose", [True, False])
def test_companions_are_written_anew(prepared: Any, name: str, lose: bool) -> None:
    expected = hash_of(prepared.store)
    path = prepared.store / name
    path.unlink() if lose else path.write_bytes(b"x")
    assert mended(prepared.store, expected).processed == 0


def test_the_root_cannot_be_rebuilt(prepared: Any) -> None:
    (prepared.store / "data_metadata.json").write_text("{")
    report = verify(prepared.store)
    with pytest.raises(StoreCorruptError, match="restore it from a backup"):
        repair(prepared.store, report)


def test_from_another_working_directory_with_relative_paths(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_paths: Callable[..., list[Path]]
) -> None:
    monkeypatch.chdir(source.folder)
    DataPreprocessor(source.config(manifest="manifest.csv", preprocessed_data_dir="store")).run()
    expected = hash_of(source.store)
    shard_paths(source.store)[0].unlink()
    monkeypatch.chdir(tmp_path)
    mended(source.store, expected)


def test_with_a_transform_that_stands_beside_the_config(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_paths: Callable[..., list[Path]]
) -> None:
    (source.folder / "mend_recipe.py").write_text(
        "import numpy as np\n\n"
        "def make(row):\n    return {'x': np.load(row['image']) * 2, 'name': row['key']}\n"
    )
    config = source.folder / "config.yaml"
    config.write_text(
        "manifest: manifest.csv\ntransform: mend_recipe:make\nnum_workers: 0\n"
        f"preprocessed_data_dir: {source.store}\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    DataPreprocessor(config).run()
    expected = hash_of(source.store)
    shard_paths(source.store)[0].unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(source.folder)])
    monkeypatch.delitem(sys.modules, "mend_recipe")
    mended(source.store, expected, trusted=True)
    assert config_of_store(source.store, trusted=True).config_dir == source.folder


def test_a_store_of_a_few_rows_stays_one(source: Any, shard_paths: Callable[..., list[Path]]) -> None:
    source.prepare(limit=6)
    expected = hash_of(source.store)
    shard_paths(source.store)[0].unlink()
    mended(source.store, expected)
    assert len(StoreReader(source.store)) == 6
    (source.store / StoreReader(source.store).meta.index).unlink()
    mended(source.store, expected)
    assert len(StoreReader(source.store)) == 6


@pytest.mark.parametrize("is_index_lost", [False, True])
def test_the_limit_of_the_last_run_drops_no_sample(
    source: Any, shard_paths: Callable[..., list[Path]], flip_bit: Callable[..., None], is_index_lost: bool
) -> None:
    source.prepare()
    source.prepare(limit=5)
    expected = hash_of(source.store)
    assert len(StoreReader(source.store)) == 12
    path = shard_paths(source.store)[2]  # of the rows 8 to 11
    flip_bit(path, path.stat().st_size - 3)
    if is_index_lost:
        (source.store / StoreReader(source.store).meta.index).unlink()
    mended(source.store, expected)
    assert StoreReader(source.store).keys() == [row["id"] for row in source.rows]


def test_the_environment_has_no_say(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, shard_paths: Callable[..., list[Path]]
) -> None:
    expected = hash_of(prepared.store)
    monkeypatch.setenv("FLATOUT_MANIFEST", "/nowhere.csv")
    shard_paths(prepared.store)[0].unlink()
    mended(prepared.store, expected)


def test_a_source_that_is_gone_is_quarantined(source: Any, shard_paths: Callable[..., list[Path]]) -> None:
    source.prepare(max_bad_fraction=0.5)
    shard_paths(source.store)[0].unlink()
    (source.folder / "s01.npy").unlink()
    stats = repair(source.store, verify(source.store))
    assert [row.key for row in stats.bad] == ["s01"]
    assert verify(source.store)
    assert len(StoreReader(source.store)) == 11


def test_a_source_that_changed_after_the_index_was_written_is_read_again(source: Any) -> None:
    source.prepare()
    source.put(2, seed=5)
    os.utime(source.folder / "s02.npy")  # now: after the root
    (source.store / StoreReader(source.store).meta.index).unlink()
    repair(source.store, verify(source.store))
    found = StoreReader(source.store).read(2)["image"]
    np.testing.assert_array_equal(found, np.load(source.folder / "s02.npy"))


def test_sources_that_have_changed_since_are_told(
    source: Any, shard_paths: Callable[..., list[Path]], flip_bit: Callable[..., None]
) -> None:
    class Told(Silent):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def say(self, text: str) -> None:
            self.texts.append(text)

    source.prepare()
    for is_changed in (False, True):
        before, told = hash_of(source.store), Told()
        path = shard_paths(source.store)[-1]
        flip_bit(path, path.stat().st_size - 3)
        if is_changed:
            key = StoreReader(source.store).keys()[-1]
            source.put(int(key[1:]), seed=99)
        repair(source.store, verify(source.store), told)
        assert verify(source.store)
        assert (hash_of(source.store) != before) == is_changed
        assert (
            any(f"not what it was (content hash {hash_of(source.store)[:12]}" in t for t in told.texts)
            == is_changed
        )


def test_a_store_of_a_dataset_object_cannot_be_repaired_here(tmp_path: Path) -> None:
    class Rows:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return {"x": index}

    folder = tmp_path / "store"
    DataPreprocessor.from_dataset(Rows(), folder, num_workers=0, transform_version="1").run()
    (folder / "quarantine.jsonl").unlink()
    repair(folder, verify(folder))  # what follows from the shards needs no source
    assert verify(folder)
    next((folder / "shards").iterdir()).unlink()
    with pytest.raises(StoreError, match="made from a dataset object"):
        repair(folder, verify(folder))


@pytest.mark.parametrize("num_bad", [0, 1])
def test_repair_leaves_new_rows_to_the_next_prepare(
    source: Any, shard_paths: Callable[..., list[Path]], num_bad: int
) -> None:
    """Mending is not updating: the content hash comes back although the manifest has grown."""
    if num_bad:
        (source.folder / "s03.npy").write_bytes(b"broken")
    source.prepare(max_bad_fraction=0.5)
    expected = hash_of(source.store)
    source.add(40)
    source.save()
    shard_paths(source.store)[0].unlink()
    mended(source.store, expected)
    if not num_bad:  # an empty list tells of no rows: they need not be found out anew
        (source.store / "quarantine.jsonl").unlink()
        mended(source.store, expected)
    assert source.prepare(max_bad_fraction=0.5).num_samples == 13 - num_bad


def lose_index(folder: Path) -> None:
    path = folder / StoreReader(folder).meta.index
    path.write_bytes(path.read_bytes()[:-1])


def names_of(folder: Path) -> dict[str, str]:
    """Class name of each sample."""
    store = StoreReader(folder)
    classes = store.fields["label"].classes
    assert classes is not None
    return {key: classes[int(store.read(at)["label"])] for at, key in enumerate(store.keys())}


def test_neither_a_lost_index_nor_force_renumbers_grown_classes(source: Any) -> None:
    source.prepare()
    source.rows[3]["label"] = "ant"  # sorts before the classes there are, is appended behind them
    source.save()
    source.prepare()
    before = names_of(source.store)
    assert before["s03"] == "ant"
    lose_index(source.store)
    mended(source.store, hash_of(source.store))
    assert names_of(source.store) == before
    source.prepare(force=True)
    assert names_of(source.store) == before
    assert StoreReader(source.store).fields["label"].classes == ("cat", "dog", "eel", "ant")


def test_a_lost_index_does_not_pass_old_values_for_new_ones(source: Any) -> None:
    source.prepare()
    source.rows[0]["label"] = "eel"
    source.save()
    lose_index(source.store)
    repair(source.store, verify(source.store))
    assert names_of(source.store)["s00"] == "eel"


def test_repair_does_not_mix_samples_of_two_codes(
    prepared: Any, shard_paths: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.source.kinds import VERSIONS

    monkeypatch.setitem(VERSIONS, "array", 2)
    shard_paths(prepared.store)[0].unlink()
    with pytest.raises(StoreError, match=r"has changed.*flatout prepare"):
        repair(prepared.store, verify(prepared.store))


def test_nor_where_the_list_of_bad_rows_is_lost(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.source.kinds import VERSIONS

    (source.folder / "s03.npy").write_bytes(b"broken")
    source.prepare(max_bad_fraction=0.5)
    source.put(3)
    monkeypatch.setitem(VERSIONS, "array", 2)
    (source.store / "quarantine.jsonl").unlink()
    with pytest.raises(StoreError, match=r"has changed.*flatout prepare"):
        repair(source.store, verify(source.store))


def test_a_function_of_another_programs_main_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.csv").write_text("id\na\nb\n")
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "transform": "__main__:make_of_main",
        "transform_version": "1",
        "num_workers": 0,
        "preprocessed_data_dir": str(tmp_path / "store"),
    }
    monkeypatch.setattr(sys.modules["__main__"], "make_of_main", lambda row: {"x": [1.0, 2.0]}, raising=False)
    DataPreprocessor(config).run()
    expected = hash_of(tmp_path / "store")
    next((tmp_path / "store" / "shards").iterdir()).unlink()
    mended(tmp_path / "store", expected, trusted=True)
    next((tmp_path / "store" / "shards").iterdir()).unlink()
    monkeypatch.delattr(sys.modules["__main__"], "make_of_main")
    for trusted in (False, True):
        with pytest.raises(StoreError, match=r"of another program's main module\. Run DataPreprocessor"):
            repair(tmp_path / "store", verify(tmp_path / "store"), trusted=trusted)


def test_repair_of_the_view_does_not_pass_old_samples_for_new(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.source.kinds import VERSIONS

    (prepared.store / "preprocessed_data.h5").unlink()
    monkeypatch.setitem(VERSIONS, "array", 2)
    mended(prepared.store, hash_of(prepared.store))
    assert prepared.prepare().processed == 12


def test_the_code_of_a_store_runs_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_maker.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
        "def make(row):\n    return {'x': [1.0, 2.0]}\n"
    )
    (tmp_path / "m.csv").write_text("id\na\nb\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "transform": "evil_maker:make",
        "num_workers": 0,
        "preprocessed_data_dir": str(tmp_path / "store"),
    }
    DataPreprocessor(config).run()
    (tmp_path / "ran").unlink()
    sys.modules.pop("evil_maker", None)
    from flatout.source.registry import load_object

    load_object.cache_clear()
    next((tmp_path / "store" / "shards").iterdir()).unlink()
    with pytest.raises(StoreError, match="--trust-store"):
        repair(tmp_path / "store", verify(tmp_path / "store"))
    assert not (tmp_path / "ran").exists()
    repair(tmp_path / "store", verify(tmp_path / "store"), trusted=True)
    assert verify(tmp_path / "store")


COMPANIONS = ["preprocessed_data.h5", "quarantine.jsonl", "preprocessing_stats.json"]


@pytest.mark.parametrize("name", COMPANIONS)
def test_companions_are_written_anew_whatever_became_of_the_sources(prepared: Any, name: str) -> None:
    """Archived sources, no manifest: no sample is touched for a file that follows from index and shards."""
    expected = hash_of(prepared.store)
    for path in prepared.folder.glob("*.npy"):
        path.unlink()
    prepared.manifest.unlink()
    (prepared.store / name).unlink()
    stats = mended(prepared.store, expected)
    assert (stats.num_samples, stats.processed, stats.unchanged, stats.removed) == (12, 0, 12, 0)
    with h5py.File(prepared.store / "preprocessed_data.h5") as view:
        assert view["key"].asstr()[:].tolist() == [row["id"] for row in prepared.rows]


def test_samples_in_whole_shards_stay_whatever_became_of_their_sources(
    prepared: Any, shard_paths: Callable[..., list[Path]], flip_bit: Callable[..., None]
) -> None:
    before = [StoreReader(prepared.store).read(at)["image"].tolist() for at in range(12)]
    (prepared.folder / "s00.npy").unlink()
    prepared.put(1, 99)
    damaged = shard_paths(prepared.store)[2]
    flip_bit(damaged, damaged.stat().st_size - 3)
    stats = mended(prepared.store, hash_of(prepared.store))
    assert (stats.processed, stats.unchanged, stats.failed) == (4, 8, 0)
    reader = StoreReader(prepared.store)
    assert [reader.read(at)["image"].tolist() for at in range(12)] == before
    stats = prepared.prepare(max_bad_fraction=0.5)  # what was recorded of them is what it was: this sees it
    assert (stats.processed, stats.failed, stats.num_samples) == (2, 1, 11)


def test_splits_and_groups_stay_though_the_manifest_divides_otherwise(
    prepared: Any, shard_paths: Callable[..., list[Path]]
) -> None:
    def divided() -> list[tuple[int, int]]:
        numbers = StoreReader(prepared.store).numbers
        return list(zip(numbers["split"].tolist(), numbers["group"].tolist(), strict=True))

    before, names = divided(), StoreReader(prepared.store).meta.splits
    lines = prepared.manifest.read_text().splitlines()
    manifest = load_metadata(prepared.store).settings["manifest"]
    Path(manifest).write_text("\n".join([f"{lines[0]},split", *(f"{line},test" for line in lines[1:])]))
    shard_paths(prepared.store)[0].unlink()
    repair(prepared.store, verify(prepared.store))
    assert (divided(), StoreReader(prepared.store).meta.splits) == (before, names)


def test_whole_samples_without_a_row_are_not_dropped(
    prepared: Any, shard_paths: Callable[..., list[Path]]
) -> None:
    expected, manifest = hash_of(prepared.store), Path(load_metadata(prepared.store).settings["manifest"])
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join([lines[0], *lines[2:]]))
    shard_paths(prepared.store)[2].unlink()
    with pytest.raises(StoreError, match=r"1 samples that are whole have no row in .* \(first: 's00'\)"):
        repair(prepared.store, verify(prepared.store))
    manifest.write_text("\n".join(lines))
    mended(prepared.store, expected)


def test_a_row_of_new_code_does_not_stand_under_the_old_ones_name(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.source.kinds import VERSIONS

    prepared.put(3, 50)
    (prepared.store / "preprocessed_data.h5").unlink()
    monkeypatch.setitem(VERSIONS, "array", 2)
    assert mended(prepared.store, hash_of(prepared.store)).processed == 0
    monkeypatch.setitem(VERSIONS, "array", 1)
    assert prepared.prepare().processed == 1


def write_pairs(folder: Path) -> dict[str, Any]:
    """Rows of two files each, whose fields are not in the order of their names."""
    rows = ["id,z,a"]
    for number in range(12):
        for name in "za":
            np.save(folder / f"{name}{number}.npy", np.full(300, number + (name == "z"), np.float32))
            os.utime(folder / f"{name}{number}.npy", (1_600_000_000, 1_600_000_000))
        rows.append(f"{number},z{number}.npy,a{number}.npy")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    fields = {"z": {"kind": "array"}, "a": {"kind": "array"}}
    return {
        "manifest": str(folder / "pairs.csv"),
        "preprocessed_data_dir": str(folder / "store"),
        "fields": fields,
    }


def test_the_order_of_the_fields_makes_nothing_anew(
    tmp_path: Path, shard_paths: Callable[..., list[Path]]
) -> None:
    settings = write_pairs(tmp_path)
    DataPreprocessor(settings).run()
    expected = hash_of(tmp_path / "store")
    shard_paths(tmp_path / "store")[0].unlink()
    assert mended(tmp_path / "store", expected).unchanged > 0
    assert list(config_of_store(tmp_path / "store").fields) == ["z", "a"]
    for fields in (settings["fields"], dict(reversed(settings["fields"].items()))):
        stats = DataPreprocessor({**settings, "fields": fields}).run()
        assert (stats.processed, stats.unchanged) == (0, 12)


def test_a_mask_of_another_volume_is_another_mask() -> None:
    fields = load_config(
        {"fields": {"v": {"kind": "volume"}, "a": {"kind": "volume"}, "m": {"kind": "mask"}}}
    ).fields
    swapped = {name: fields[name] for name in ("a", "v", "m")}
    named = {**swapped, "m": fields["m"].model_copy(update={"of": "v"})}
    assert field_parts(fields) != field_parts(swapped)
    assert field_parts(fields) == field_parts(named)


def test_tars_named_from_the_folder_of_the_run_are_found_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_paths: Callable[..., list[Path]]
) -> None:
    (tmp_path / "run").mkdir()
    with tarfile.open(tmp_path / "run" / "audio_0.tar", "w") as tar:
        for number in range(3):
            data = io.BytesIO()
            np.save(data, np.full(50, number, np.float32))
            info = tarfile.TarInfo(f"{number}.npy")
            info.size = data.tell()
            data.seek(0)
            tar.addfile(info, data)
    (tmp_path / "m.csv").write_text("audio_filepath\n" + "".join(f"{n}.npy\n" for n in range(3)))
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "tarred_audio_filepaths": "audio_{0..0}.tar",
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "signal", "column": "audio_filepath", "source_rate": 100}},
        "num_workers": 0,
    }
    monkeypatch.chdir(tmp_path / "run")
    DataPreprocessor(config).run()
    expected = hash_of(tmp_path / "store")
    shard_paths(tmp_path / "store")[0].unlink()
    monkeypatch.chdir(tmp_path)
    mended(tmp_path / "store", expected)


@pytest.mark.parametrize("damage", ["lose", "change"])
def test_rows_whose_list_is_damaged_are_tried_again(source: Any, damage: str) -> None:
    """An empty list would say that all is well."""
    (source.folder / "s03.npy").write_bytes(b"broken")
    (source.folder / "s07.npy").unlink()
    assert source.prepare(max_bad_fraction=0.5).failed == 2
    before, quarantine = hash_of(source.store), source.store / "quarantine.jsonl"
    if damage == "lose":
        quarantine.unlink()
    else:
        quarantine.write_text(quarantine.read_text() + "{}\n")
    stats = mended(source.store, before)
    assert (stats.failed, sorted(row.key for row in stats.bad)) == (2, ["s03", "s07"])
    assert StoreReader(source.store).meta.num_bad == 2
    assert len(quarantine.read_text().splitlines()) == 2


def test_rows_beyond_a_limit_are_not_tried_for_the_list(source: Any) -> None:
    (source.folder / "s03.npy").write_bytes(b"broken")
    assert source.prepare(max_bad_fraction=0.5, limit=5).failed == 1
    (source.store / "quarantine.jsonl").unlink()
    stats = mended(source.store, hash_of(source.store))
    assert (stats.num_samples, stats.failed) == (4, 1)
