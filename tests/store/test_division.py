"""Division: train is never empty, and nothing moves when rows are added, however small the set began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.source import SplitSection
from flatout.errors import ConfigError, ManifestError
from flatout.source import Manifest, assign_splits, key_hashes
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.division import Division, divide, divide_items, keep_in_train
from flatout.store.index import MAX_SPLITS

KEYS = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


def manifest_of(keys: list[str], **columns: list[Any]) -> Manifest:
    table = pa.table({"key": keys, **columns})
    return Manifest(table, pa.array(keys, pa.large_string()), Path(), ())


def division_of(keys: list[str], settings: SplitSection | None = None, **columns: list[Any]) -> Division:
    return divide(manifest_of(keys, **columns), key_hashes(keys), settings or SplitSection())


def test_a_lone_sample_is_train() -> None:
    for number in range(40):
        key = f"s{number}"
        (plain,) = assign_splits([key], SplitSection())
        found = division_of([key])
        assert found.splits.tolist() == ["train"]
        assert found.settings.always_train == ([] if plain == "train" else [key])
        told = f"'{key}' is train instead of {plain}, or train would be empty; it stays there"
        assert found.notes == (() if plain == "train" else (told,))


@given(KEYS, st.integers(0, 20))
def test_only_an_empty_train_is_filled_and_by_one(keys: list[str], seed: int) -> None:
    settings = SplitSection(seed=seed)
    plain, found = assign_splits(keys, settings), division_of(keys, settings)
    moved = [key for key, a, b in zip(keys, plain, found.splits, strict=True) if a != b]
    if "train" in plain:
        assert moved == found.settings.always_train == []
    else:
        assert moved == found.settings.always_train
        assert len(moved) == 1
        assert found.splits.tolist().count("train") == 1
    in_another_order = division_of(keys[::-1], settings)
    assert in_another_order.splits.tolist() == found.splits.tolist()[::-1]


@given(KEYS, KEYS, st.integers(0, 20))
def test_nothing_moves_when_rows_are_added(before: list[str], added: list[str], seed: int) -> None:
    settings = SplitSection(seed=seed)
    first = division_of(before, settings)
    recorded = {"splits": first.settings.model_dump(mode="json")}
    keys = [*before, *(key for key in added if key not in before)]
    later = division_of(keys, keep_in_train(settings, recorded))
    assert later.splits.tolist()[: len(before)] == first.splits.tolist()
    plain = assign_splits(keys, settings).tolist()
    assert later.splits.tolist()[len(before) :] == plain[len(before) :]


@given(KEYS, st.integers(0, 5))
def test_a_group_goes_as_a_whole(keys: list[str], seed: int) -> None:
    settings = SplitSection(group="who", seed=seed)
    groups = [None if key[0] == "a" else key[0] for key in keys]
    found = division_of(keys, settings, who=groups)
    assert "train" in found.splits
    units = [group or key for key, group in zip(keys, groups, strict=True)]
    assert len(set(zip(units, found.splits.tolist(), strict=True))) == len(set(units))
    again = division_of(keys, keep_in_train(settings, {"splits": found.settings.model_dump()}), who=groups)
    assert again.splits.tolist() == found.splits.tolist()
    assert again.notes == ()


@pytest.mark.parametrize("missing", [None, ""])
def test_a_row_without_a_group_stays_in_train_by_its_key(missing: str | None) -> None:
    """Its empty cell names nobody: what is kept in train must be found again."""
    seed = next(seed for seed in range(99) if assign_splits(["s0"], SplitSection(seed=seed))[0] != "train")
    settings = SplitSection(group="who", seed=seed)
    first = division_of(["s0"], settings, who=pa.array([missing], pa.large_string()))
    assert first.splits.tolist() == ["train"]
    assert first.settings.always_train == ["s0"]
    assert first.notes[0].startswith("'s0' is train instead of ")
    later = keep_in_train(settings, {"splits": first.settings.model_dump(mode="json")})
    keys, who = ["s0", *(f"t{n}" for n in range(30))], [missing, *(f"p{n}" for n in range(30))]
    assert division_of(keys, later, who=pa.array(who, pa.large_string())).splits[0] == "train"


def test_train_is_left_empty_where_that_is_said() -> None:
    keys = ["s1", "s2"]
    only_val = SplitSection(ratios={"val": 1.0}, always_train=["s1"])
    assert division_of(keys, only_val).splits.tolist() == ["val", "val"]
    by_column = division_of(keys, SplitSection(column="part"), part=["val", "test"])
    assert (by_column.splits.tolist(), by_column.notes) == (["val", "test"], ())
    assert division_of([]).splits.tolist() == []


def test_other_spellings_of_train_are_filled_too() -> None:
    settings = SplitSection(ratios={"Training": 1e-9, "dev": 1.0})
    assert sorted(division_of(["a", "b"], settings).splits) == ["train", "val"]


def test_names_that_are_given_are_train() -> None:
    keys = [f"s{number}" for number in range(50)]
    found = division_of(
        keys, SplitSection(ratios={"train": 0.01, "val": 1.0}, always_train=["s3", "s7", "gone"])
    )
    assert {"s3", "s7"} <= {key for key, split in zip(keys, found.splits, strict=True) if split == "train"}


def test_classes_that_do_not_count_are_said() -> None:
    keys, who = ["a", "b", "c"], ["x", "x", "y"]
    told = "splits.stratify: 'who' has no effect: rows are divided by 'key'"
    assert told in division_of(keys, SplitSection(stratify="who", group="key"), who=who).notes
    part = ["train", "val", "test"]
    assert division_of(keys, SplitSection(stratify="who", column="part"), who=who, part=part).notes != ()
    stratified = division_of(keys, SplitSection(stratify="who", seed=3), who=who)
    assert not any("stratify" in note for note in stratified.notes)


class Items:
    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full(3, index, np.float32)}


def split_of_first(store: Path) -> str:
    reader = StoreReader(store)
    return str(reader.meta.splits[reader.numbers["split"][list(reader.keys()).index("0")]])


def test_the_item_of_a_small_dataset_stays_in_train(tmp_path: Path) -> None:
    seed = next(seed for seed in range(99) if assign_splits(["0"], SplitSection(seed=seed))[0] != "train")
    settings = {"num_workers": 0, "splits": {"seed": seed}, "transform_version": "1"}
    for num in (1, 30):
        DataPreprocessor.from_dataset(Items(num), tmp_path / "store", **settings).run()
        assert split_of_first(tmp_path / "store") == "train"
    assert StoreReader(tmp_path / "store").meta.settings["splits"]["always_train"] == ["0"]


@pytest.mark.parametrize("force", [False, True])
def test_the_row_of_a_small_manifest_stays_in_train(tmp_path: Path, force: bool) -> None:
    seed = next(seed for seed in range(99) if assign_splits(["0"], SplitSection(seed=seed))[0] != "train")
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "scalar"}},
        "key_column": "id",
        "num_workers": 0,
        "splits": {"seed": seed},
    }
    for num in (1, 30):
        (tmp_path / "m.csv").write_text("id,x\n" + "".join(f"{n},{n}.5\n" for n in range(num)))
        DataPreprocessor(config).run(force=force)
        assert (split_of_first(tmp_path / "store") == "train") == (num == 1 or not force)


@pytest.mark.parametrize("has_column", [True, False])
def test_more_splits_than_the_index_can_number_are_refused(has_column: bool) -> None:
    """They were an OverflowError at the commit, with every sample made."""
    names = [f"fold{number:03d}" for number in range(MAX_SPLITS + 2)]
    column = "fold" if has_column else None
    settings = SplitSection(column=column, ratios={"train": 0.0, **dict.fromkeys(names, 1.0)})
    keys = [str(number) for number in range(4000 if column is None else len(names))]
    folds = (names * 40)[: len(keys)]
    where = "column 'fold' of" if has_column else "splits.ratios: "
    with pytest.raises(ConfigError, match=rf"{where}.*130 splits, where a store can have 128\. Name fewer in "):
        division_of(keys, settings, fold=folds)
    if column is None:
        with pytest.raises(ConfigError, match="130 splits"):
            divide_items(manifest_of(keys), key_hashes(keys), settings)
    few = names[:MAX_SPLITS]  # those that no row has do not count
    ratios = settings.ratios | dict.fromkeys(names[MAX_SPLITS:], 0.0)
    found = division_of(keys, settings.model_copy(update={"ratios": ratios}), fold=(few * 40)[: len(keys)])
    assert sorted(set(found.splits)) == few


def test_as_many_splits_as_can_be_are_stored(tmp_path: Path) -> None:
    names = [f"fold{number:03d}" for number in range(MAX_SPLITS)]
    (tmp_path / "m.csv").write_text(
        "id,x,fold\n" + "".join(f"{n},{n}.5,{name}\n" for n, name in enumerate(names))
    )
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "scalar"}},
        "num_workers": 0,
        "splits": {"column": "fold", "ratios": dict.fromkeys(names, 1.0)},
    }
    DataPreprocessor(config).run()
    store = StoreReader(tmp_path / "store")
    assert [store.meta.splits[number] for number in store.numbers["split"].tolist()] == names


def test_items_are_divided_by_number_whatever_columns_are_set() -> None:
    keys = [str(number) for number in range(20)]
    found = divide_items(manifest_of(keys), key_hashes(keys), SplitSection(group="absent"))
    assert found.splits.tolist() == assign_splits(keys, SplitSection()).tolist()


def test_one_cell_that_names_no_split_leaves_no_other_to_chance(tmp_path: Path) -> None:
    cells = [*["train"] * 8, *["val"] * 3, "test", "tset"]
    rows = [f"r{number},{number},{cell}" for number, cell in enumerate(cells)]
    (tmp_path / "m.csv").write_text("\n".join(["id,x,split", *rows]))
    store = tmp_path / "store"
    config = {"manifest": str(tmp_path / "m.csv"), "preprocessed_data_dir": str(store), "num_workers": 0}
    with pytest.raises(ManifestError, match=r"column 'split' of m\.csv: unknown split names 'tset'"):
        DataPreprocessor(config).run()
    DataPreprocessor({**config, "splits": {"guess": False}}).run()
    assert set(StoreReader(store).meta.splits) <= {"train", "val", "test"}


@pytest.mark.parametrize("spelling", ["w/{}.wav", "./w/{}.wav", "w/../w//{}.wav", "{base}/w/{}.wav"])
def test_a_file_is_one_group_wherever_the_data_stand_and_however_it_is_spelt(
    tmp_path: Path, spelling: str
) -> None:
    def splits_below(base: Path, spelling: str) -> list[str]:
        keys = [str(number) for number in range(60)]
        files = [spelling.format(number // 5, base=base) for number in range(60)]
        manifest = Manifest(
            pa.table({"id": keys, "file": files}), pa.array(keys, pa.large_string()), base, ("file",)
        )
        splits: list[str] = divide(manifest, key_hashes(keys), SplitSection(group="file")).splits.tolist()
        return splits

    before = splits_below(tmp_path / "disk1", "w/{}.wav")
    assert splits_below(tmp_path / "disk2", spelling) == before
    assert {len(set(before[at : at + 5])) for at in range(0, 60, 5)} == {1}
    assert len(set(before)) > 1
