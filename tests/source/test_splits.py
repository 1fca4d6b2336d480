"""Splits: never move, never leak, keep their shares."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flatout.config.source import SplitSection
from flatout.errors import ConfigError, ManifestError
from flatout.source.identity import hash_key
from flatout.source.keys import key_hashes
from flatout.source.splits import assign_splits, normalise_split, rows_without_split

MANY = [f"wav/{i}.wav" for i in range(20_000)]
RATIOS = st.dictionaries(
    st.sampled_from(["train", "val", "test", "extra"]), st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1
).filter(lambda ratios: sum(ratios.values()) > 0)


def close(share: float, wanted: float, num: int) -> bool:
    """Within five standard deviations of a binomial."""
    return abs(share - wanted) < 5 * (wanted * (1 - wanted) / num) ** 0.5 + 1e-9


def test_shares_are_kept_within_chance() -> None:
    splits = assign_splits(MANY, SplitSection())
    for name, share in {"train": 0.8, "val": 0.1, "test": 0.1}.items():
        assert close(float(np.mean(splits == name)), share, len(MANY))


@given(
    keys=st.lists(st.text(max_size=6), unique=True, min_size=1),
    ratios=RATIOS,
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_a_sample_never_moves(
    keys: list[str], ratios: dict[str, float], seed: int, data: st.DataObject
) -> None:
    section = SplitSection(ratios=ratios, seed=seed)
    whole = dict(zip(keys, assign_splits(keys, section).tolist(), strict=True))
    some = data.draw(st.lists(st.sampled_from(keys), unique=True))
    assert assign_splits(some, section).tolist() == [whole[key] for key in some]


@given(keys=st.lists(st.text(max_size=6), unique=True, min_size=1), ratios=RATIOS)
def test_a_ratio_of_zero_gives_none_and_order_does_not_matter(
    keys: list[str], ratios: dict[str, float]
) -> None:
    splits = assign_splits(keys, SplitSection(ratios=ratios))
    assert all(ratios[split] > 0 for split in splits.tolist())
    backwards = SplitSection(ratios=dict(reversed(ratios.items())))
    assert assign_splits(keys, backwards).tolist() == splits.tolist()


@given(
    rows=st.lists(
        st.tuples(st.text(max_size=4), st.none() | st.sampled_from(["p1", "p2", "p3", ""])),
        min_size=1,
        unique_by=lambda row: row[0],
    ),
    seed=st.integers(0, 9),
)
def test_no_group_stands_in_two_splits_and_missing_groups_stand_alone(
    rows: list[tuple[str, str | None]], seed: int
) -> None:
    section = SplitSection(ratios={"train": 1, "val": 1, "test": 1}, seed=seed)
    keys, groups = [key for key, _ in rows], [group for _, group in rows]
    splits = assign_splits(keys, section, groups=pa.array(groups, pa.large_string()))
    together: dict[str, set[str]] = {}
    alone = assign_splits(keys, section)
    for split, group, own in zip(splits.tolist(), groups, alone.tolist(), strict=True):
        if group:
            together.setdefault(group, set()).add(split)
        else:
            assert split == own
    assert all(len(found) == 1 for found in together.values())


def test_groups_never_move_either() -> None:
    groups = [f"p{i % 700}" for i in range(len(MANY))]
    whole = assign_splits(MANY, SplitSection(), groups=groups)
    part = assign_splits(MANY[5000:], SplitSection(), groups=groups[5000:])
    assert part.tolist() == whole[5000:].tolist()
    assert close(float(np.mean(whole == "train")), 0.8, 700)


def test_each_class_is_divided_on_its_own_and_never_moves() -> None:
    classes = np.where(np.arange(len(MANY)) % 10 == 0, "rare", "common")
    splits = assign_splits(MANY, SplitSection(stratify="label"), classes=pa.array(classes))
    for name in ("rare", "common"):
        chosen = splits[classes == name]
        assert close(float(np.mean(chosen == "val")), 0.1, len(chosen))
    rare = [key for key, name in zip(MANY, classes, strict=True) if name == "rare"]
    alone = assign_splits(rare, SplitSection(stratify="label"), classes=["rare"] * len(rare))
    assert alone.tolist() == splits[classes == "rare"].tolist()
    assert (splits != assign_splits(MANY, SplitSection())).any()


def test_groups_win_over_classes() -> None:
    groups = ["p1", "p1", "p2"]
    one = assign_splits(["a", "b", "c"], SplitSection(), groups=groups, classes=["x", "y", "x"])
    assert one.tolist() == assign_splits(["a", "b", "c"], SplitSection(), groups=groups).tolist()


def test_another_seed_divides_anew_and_independently() -> None:
    one, two = (assign_splits(MANY, SplitSection(seed=seed)) == "train" for seed in (0, 1))
    assert close(float(np.mean(one & two)), 0.64, len(MANY))


def test_the_division_never_changes_between_releases() -> None:
    found = assign_splits([f"s{i}" for i in range(12)], SplitSection(ratios={"train": 1, "val": 1, "test": 1}))
    assert " ".join(found.tolist()) == "train val val test val val train val test train train train"


def test_a_sample_belongs_where_its_hash_falls() -> None:
    def mixed(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    seed, keys = hash_key("split 5"), MANY[:300]
    wanted = ["train" if mixed(hash_key(key) ^ seed) < 2**62 else "val" for key in keys]
    assert assign_splits(keys, SplitSection(ratios={"val": 3, "train": 1}, seed=5)).tolist() == wanted


def test_known_hashes_spare_the_hashing() -> None:
    assert (
        assign_splits(MANY, SplitSection(), hashes=key_hashes(MANY)).tolist()
        == assign_splits(MANY, SplitSection()).tolist()
    )


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("Training", "train"),
        ("TRAIN", "train"),
        (" valid ", "val"),
        ("validation", "val"),
        ("dev", "val"),
        ("val", "val"),
        ("testing", "test"),
        ("test", "test"),
        ("Fold1", "fold1"),
    ],
)
def test_spellings(name: str, split: str) -> None:
    assert normalise_split(name) == split


def test_a_column_wins_and_is_normalised() -> None:
    column = pa.chunked_array([["Training", "dev"], ["test", "hold"]])
    section = SplitSection(ratios={"train": 1, "hold": 1})
    assert assign_splits(list("abcd"), section, column=column).tolist() == ["train", "val", "test", "hold"]


def test_ratios_may_use_other_spellings() -> None:
    assert set(assign_splits(MANY, SplitSection(ratios={"training": 1, "valid": 1})).tolist()) == {
        "train",
        "val",
    }


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["train", "holdout", "fold 3"], "unknown split names 'holdout', 'fold 3'; known: test, train, val"),
        (["train", None, None], r"2 rows name no split \(the first is row 2\)"),
        (["train", "", "val"], "1 rows name no split"),
        ([0, 1, 2], "unknown split names '0', '1', '2'"),
    ],
)
def test_a_bad_column_is_named(column: list[object], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        assign_splits(list("abc"), SplitSection(), column=column)


def test_a_group_in_two_splits_is_a_leak() -> None:
    column, groups = ["train", "val", "train", "test", "test"], ["p1", "p2", "p3", "p3", None]
    with pytest.raises(ManifestError, match=r"group 'p3' stands in test and train \(1 such groups\)"):
        assign_splits(list("abcde"), SplitSection(), column=column, groups=groups)
    ok = assign_splits(list("abcde"), SplitSection(), column=column, groups=["p1", "p2", "p3", "p4", None])
    assert ok.tolist() == column


def test_rows_without_a_split_are_divided_where_that_is_asked_for() -> None:
    section = SplitSection(empty="divide")
    column = [None if at % 3 else "test" for at in range(len(MANY))]
    found, plain = assign_splits(MANY, section, column=column), assign_splits(MANY, section)
    assert found[0::3].tolist() == ["test"] * len(found[0::3])
    assert (found[1::3] == plain[1::3]).all()
    groups = ["p1", "p1", None, "p2", "p2"]
    found = assign_splits(list("abcde"), section, column=["val", " ", "", None, None], groups=groups)
    by_hash = assign_splits(list("abcde"), section, groups=groups)
    assert found.tolist() == ["val", "val", *by_hash[2:].tolist()]


def test_numbers_as_groups_are_the_same_whole_or_not() -> None:
    whole = assign_splits(MANY[:300], SplitSection(), groups=pa.array(range(300), pa.int64()))
    floats = assign_splits(MANY[:300], SplitSection(), groups=pa.array(range(300), pa.float64()))
    assert whole.tolist() == floats.tolist()


def test_ratios_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="all 0"):
        assign_splits(["a"], SplitSection(ratios={"train": 0}))


@settings(max_examples=10)
@given(column=st.lists(st.sampled_from(["train", "val"])))
def test_no_keys_and_few_keys(column: list[str]) -> None:
    keys = [str(i) for i in range(len(column))]
    assert assign_splits(keys, SplitSection(), column=pa.array(column, pa.large_string())).tolist() == column
    assert len(assign_splits([], SplitSection())) == 0


def test_words_for_a_missing_name_are_none() -> None:
    column = pa.array(["train", "NA", "validate", "n/a", None, " "])
    assert rows_without_split(column).tolist() == [1, 3, 4, 5]
    found = assign_splits(list("abcdef"), SplitSection(empty="divide"), column=column)
    assert (found[0], found[2]) == ("train", "val")


@pytest.mark.parametrize("cell", [" NA ", "n/a\t", " None"])
def test_blanks_around_a_word_for_a_missing_name_make_no_name_of_it(cell: str) -> None:
    column = pa.array(["train", cell, "val"])
    assert rows_without_split(column).tolist() == [1]
    found = assign_splits(list("abc"), SplitSection(empty="divide"), column=column)
    assert found[1] == assign_splits(list("abc"), SplitSection())[1]
    with pytest.raises(ManifestError, match=r"1 rows name no split \(the first is row 2\)"):
        assign_splits(list("abc"), SplitSection(), column=column)


@pytest.mark.parametrize("weight", [-1, float("inf"), float("nan")])
def test_a_weight_that_divides_nothing_is_refused(weight: float) -> None:
    with pytest.raises(ValidationError, match="train"):
        SplitSection(ratios={"train": weight, "test": 1})
