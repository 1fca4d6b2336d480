"""Columns that settings name and a manifest lacks: all in one error, each with what was likely meant."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.source.wanted import MAX_SHOWN, check_columns

COLUMNS = ("path", "label", "patient", "start_s")


def refused(columns: tuple[str, ...] = COLUMNS, lists: tuple[str, ...] = (), **settings: Any) -> str:
    source = load_config({"manifest": "m.csv", **settings}, environ={})
    with pytest.raises(ConfigError) as caught:
        check_columns(columns, source.fields, source, lists)
    return str(caught.value)


def test_all_missing_columns_are_named_with_the_nearest() -> None:
    told = refused(
        fields={
            "im": {"kind": "image", "column": "paht"},
            "y": {"kind": "label", "column": "Lable"},
            "age": {"kind": "scalar"},
        },
        key_column="pth",
        splits={"group": "patient_id", "stratify": "zzz", "column": "subset"},
    )
    assert "field 'im' wants column 'paht' (did you mean 'path'?)" in told
    assert "field 'y' wants column 'Lable' (did you mean 'label'?)" in told
    assert "field 'age' wants column 'age';" in told  # nothing is near
    assert "key_column names column 'pth' (did you mean 'path'?)" in told
    assert "splits.group names column 'patient_id' (did you mean 'patient'?)" in told
    assert "splits.stratify names column 'zzz';" in told
    assert "splits.column names column 'subset';" in told
    assert "there are: path, label, patient, start_s" in told


def test_columns_that_a_signal_names_beside_its_own() -> None:
    signal = {"kind": "signal", "column": "path", "offset_column": "start", "duration_column": "length_s"}
    told = refused(fields={"sound": signal})
    assert "field 'sound' wants column 'start' (did you mean 'start_s'?)" in told
    assert "field 'sound' wants column 'length_s';" in told


def test_lists_are_for_fields_alone() -> None:
    settings = {"fields": {"s": {"kind": "sequence", "columns": ["x", "w"]}}, "key_column": "x"}
    told = refused(("id",), ("x", "y"), **settings)
    assert "field 's' wants column 'w'" in told
    assert "field 's' wants column 'x'" not in told
    assert "key_column names column 'x'" in told


def test_what_is_there_or_not_settled_is_not_refused() -> None:
    fields = {
        "label": {"kind": "label"},
        "other": None,
        "z": {"size": [1, 1]},
        "t": {"kind": "custom", "name": "t"},
    }
    source = load_config({"manifest": "m.csv", "fields": fields, "splits": {"group": "patient"}}, environ={})
    check_columns(COLUMNS, source.fields, source)
    assert "field 'z' wants column 'pth'" in refused(fields={"z": {"column": "pth"}})


def test_a_wide_table_is_not_listed_whole() -> None:
    told = refused(tuple(f"c{n}" for n in range(MAX_SHOWN + 7)), fields={"missing": {"kind": "scalar"}})
    assert told.endswith(f"c{MAX_SHOWN - 1} and 7 more")
