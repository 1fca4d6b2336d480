"""What raw files give: fields as a prepare settles them, and how many samples each row is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.errors import ConfigError, LoaderError
from flatout.loader import raw as module
from flatout.loader.raw import WHOLE, RawSource
from flatout.store import StoreReader

ENCODED = {
    "image": {"kind": "array", "encoding": "uint8"},
    "series": {"kind": "sequence", "encoding": "float16"},
    "label": {"kind": "label"},
}


@pytest.mark.parametrize("fields", [None, ENCODED])
def test_fields_are_those_that_prepare_settles(raw: Any, fields: dict[str, Any] | None) -> None:
    before = RawSource(raw.config(fields=fields))
    assert before.store is None
    settled, size = before.fields, before.sample_bytes
    config = raw.prepare(fields=fields)
    after = RawSource(config)
    assert after.store is not None
    assert settled == StoreReader(raw.store).fields == after.fields
    assert size == pytest.approx(after.sample_bytes, rel=0.2)  # of the first 8 rows, of all


def test_rows_of_a_split_are_numbered_in_manifest_order(raw: Any) -> None:
    source = RawSource(raw.config())
    found = [source.numbering(split).rows.tolist() for split in source.splits]
    assert sorted(row for rows in found for row in rows) == list(range(24))
    assert all(rows == sorted(rows) for rows in found)
    assert (source.numbering().parts == WHOLE).all()


def test_parts_are_counted_by_decoding_once_and_a_store_knows_them(
    raw: Any, windows: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = RawSource(raw.config(fields=windows)).numbering()
    assert np.bincount(counted.rows).tolist() == [2 + number % 3 for number in range(24)]
    config = raw.prepare(fields=windows)
    monkeypatch.setattr(module, "dry_run", lambda *_: pytest.fail("the store knows"))
    known = RawSource(config).numbering()
    assert known.rows.tolist() == counted.rows.tolist()
    assert known.parts.tolist() == counted.parts.tolist()


def test_new_rows_are_counted_beside_those_of_the_store(raw: Any, windows: dict[str, Any]) -> None:
    names = raw.names
    raw.write_manifest(names[:9] + names[13:])
    config = raw.prepare(fields=windows)
    raw.write_manifest(names)
    found = RawSource(config).numbering()
    wanted = [(row, part) for row in range(24) for part in range(2 + row % 3)]
    assert list(zip(found.rows.tolist(), found.parts.tolist(), strict=True)) == wanted


def test_a_store_of_other_settings_does_not_count(raw: Any, windows: dict[str, Any]) -> None:
    raw.prepare()
    source = RawSource(raw.config(fields=windows))
    assert source.store is None
    assert set(source.fields) == {"sound", "label"}


def test_quarantined_rows_are_left_out_others_count_as_one(raw: Any, windows: dict[str, Any]) -> None:
    (raw.folder / "s03-sound.npy").write_bytes(b"broken")
    unprepared = RawSource(raw.config(fields=windows)).numbering()
    assert unprepared.parts[unprepared.rows == 3].tolist() == [WHOLE]
    prepared = RawSource(raw.prepare(fields=windows)).numbering()
    assert 3 not in prepared.rows
    assert len(prepared) == len(unprepared) - 1


def test_a_limit_holds_for_rows_that_are_not_in_the_store(raw: Any) -> None:
    assert RawSource(raw.config(limit=7)).numbering().rows.tolist() == list(range(7))


def test_class_numbers_of_the_store_are_kept(raw: Any) -> None:
    raw.write_manifest(raw.names[1:2])  # dog alone
    config = raw.prepare()
    raw.write_manifest(raw.names)
    (spec,) = [spec for spec in RawSource(config).job.sections.items() if spec[0] == "label"]
    assert spec[1].classes[0] == "dog"


def test_bad_first_rows_are_passed_over(raw: Any) -> None:
    for name in raw.names[:9]:
        (raw.folder / f"{name}.npy").write_bytes(b"")
    assert RawSource(raw.config()).fields["image"].shape == (2, 6, 5)


def test_nothing_but_bad_rows(raw: Any) -> None:
    for name in raw.names:
        (raw.folder / f"{name}.npy").unlink()
    with pytest.raises(LoaderError, match=r"no row gives a sample.*'s00' \(s00\.npy\): find"):
        _ = RawSource(raw.config()).fields


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no manifest"):
        RawSource({"preprocessed_data_dir": str(tmp_path)})
