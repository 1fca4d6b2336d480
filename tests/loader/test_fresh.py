"""A store and a config compared: what asks for other samples, and what only raises a doubt."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import load_config
from flatout.errors import ConfigError, ManifestError
from flatout.loader import fresh
from flatout.loader.fresh import Freshness, compare_with_config
from flatout.source import load_object
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.metadata import ROOT

FIELDS = {"image": {"kind": "array"}, "label": {"kind": "label"}}


def compared(folder: Path, config: dict[str, Any]) -> Freshness:
    return compare_with_config(StoreReader(folder), load_config(config))


def touch_later(path: Path, than: Path) -> None:
    later = than.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


def test_the_config_that_made_it(prepared: dict[str, Any]) -> None:
    assert compared(Path(prepared["preprocessed_data_dir"]), prepared) == Freshness()


def test_the_manifest_is_not_read_where_nothing_needs_it(
    prepared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "job_from_config", lambda *_: pytest.fail("read"))
    assert compared(Path(prepared["preprocessed_data_dir"]), prepared) == Freshness()


def test_a_config_that_says_nothing_of_samples(prepared: dict[str, Any]) -> None:
    assert compared(Path(prepared["preprocessed_data_dir"]), {"batch_size": 3}) == Freshness()


def test_a_changed_field_is_named(raw: Any) -> None:
    raw.prepare(fields=FIELDS)
    changed = {**FIELDS, "image": {"kind": "array", "dtype": "float64"}}
    found = compared(raw.store, raw.config(fields=changed))
    assert [change for change in found.changes if "fields.image.dtype" in change]


def test_guessed_fields_are_guessed_again(raw: Any) -> None:
    (raw.folder / "rows.csv").write_text("id,image,label\n" + "".join(f"{n},{n}.npy,x\n" for n in raw.names))
    config = raw.config()
    del config["fields"]
    DataPreprocessor(config).run()
    assert compared(raw.store, config) == Freshness()
    assert compared(raw.store, {**config, "fields": FIELDS | {"x": {"kind": "text"}}}).changes


def test_other_libraries_are_a_doubt_only(raw: Any) -> None:
    config = raw.prepare(fields={"sound": {"kind": "signal", "source_rate": 100, "length": 20}})
    root = json.loads((raw.store / ROOT).read_text())
    assert root["fingerprint"]["params"]["libraries"]
    store = StoreReader(raw.store)
    fingerprint = dict(store.meta.fingerprint) | {"digest": "other"}
    libraries = dict.fromkeys(fingerprint["params"]["libraries"], "0.1")
    fingerprint["params"] = {**fingerprint["params"], "libraries": libraries}
    object.__setattr__(store.meta, "fingerprint", fingerprint)
    found = compare_with_config(store, load_config(config))
    assert found.changes == ()
    assert [doubt for doubt in found.doubts if "other libraries" in doubt and "0.1" in doubt]


def test_changed_code_of_a_transform_is_named(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import numpy as np\ndef run(row, times=1):\n    return {'x': np.load(row['image']) * times}\n"
    (raw.folder / "my_code.py").write_text(code)
    monkeypatch.syspath_prepend(str(raw.folder))
    config = raw.config(transform="my_code:run") | {"fields": {}}
    DataPreprocessor(config).run()
    assert compared(raw.store, config) == Freshness()
    assert compared(raw.store, config | {"transform_params": {"times": 2}}).changes
    assert compared(raw.store, config | {"transform_version": "2"}).changes


def test_with_a_version_the_code_need_not_be_here(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (raw.folder / "gone_code.py").write_text(
        "import numpy as np\ndef run(row):\n    return {'x': np.ones(3)}\n"
    )
    monkeypatch.syspath_prepend(str(raw.folder))
    config = raw.config(transform="gone_code:run", transform_version="1") | {"fields": {}}
    DataPreprocessor(config).run()
    moved = config | {"transform": "not_on_this_machine:run"}
    assert compared(raw.store, moved) == Freshness()
    assert compared(raw.store, moved | {"transform_version": "2"}).changes


def test_the_transform_that_made_it_may_be_elsewhere(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (raw.folder / "away_code.py").write_text(
        "import numpy as np\ndef run(row):\n    return {'x': np.ones(3)}\n"
    )
    monkeypatch.syspath_prepend(str(raw.folder))
    config = raw.config(transform="away_code:run") | {"fields": {}}
    DataPreprocessor(config).run()
    (raw.folder / "away_code.py").unlink()
    monkeypatch.delitem(sys.modules, "away_code", raising=False)
    load_object.cache_clear()
    found = compared(raw.store, config)
    assert (found.changes, found.doubts) == ((), ())
    assert ["could not be compared" in told and "away_code" in told for told in found.unknown] == [True]


def test_another_transform_that_is_not_here_is_an_error(raw: Any) -> None:
    raw.prepare()
    with pytest.raises(ConfigError, match="module_that_is_not_here"):
        compared(raw.store, raw.config(transform="module_that_is_not_here:run") | {"fields": {}})


@pytest.mark.parametrize("splits", [{}, {"splits": {"seed": 7}}])
def test_a_manifest_that_is_not_here_is_told_once(raw: Any, splits: dict[str, Any]) -> None:
    config = raw.prepare(fields=FIELDS)
    (raw.folder / "rows.csv").unlink()
    found = compared(raw.store, config | splits)
    assert (found.changes, found.doubts) == ((), ())
    assert ["rows.csv is not there" in told for told in found.unknown] == [True]
    assert ("stays divided as it is, whatever splits says" in found.unknown[0]) == bool(splits)
    other = compared(raw.store, config | splits | {"manifest": str(raw.folder / "rws.csv")})
    assert ["rws.csv is not there" in told and "rows.csv)" in told for told in other.unknown] == [True]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"splits": {"group": "labl"}}, r"splits\.group names column 'labl' \(did you mean 'label'\?\)"),
        ({"splits": {"stratify": "labl"}}, r"splits\.stratify names column 'labl'"),
        ({"splits": {"column": "splt"}}, r"splits\.column names column 'splt'"),
        ({"key_column": "idd"}, r"key_column names column 'idd' \(did you mean 'id'\?\)"),
    ],
)
def test_a_column_that_the_manifest_lacks_is_an_error(raw: Any, settings: dict[str, Any], told: str) -> None:
    config = raw.prepare(fields=FIELDS)
    with pytest.raises(ConfigError, match=told):
        compared(raw.store, config | settings)


def test_splits_that_the_manifest_cannot_give_are_an_error(raw: Any) -> None:
    config = raw.prepare(fields=FIELDS)
    with pytest.raises(ManifestError, match="unknown split names"):
        compared(raw.store, config | {"splits": {"column": "label"}})


def test_a_column_that_only_the_store_remembers_may_go(raw: Any) -> None:
    """Nobody has named it in the config: the sources have changed, which is no reason not to train."""
    rows = "".join(f"{n},{n}.npy,x,p{number}\n" for number, n in enumerate(raw.names))
    (raw.folder / "rows.csv").write_text("id,image,label,patient\n" + rows)
    config = raw.config()
    del config["fields"], config["splits"]
    DataPreprocessor(config).run()
    assert StoreReader(raw.store).meta.settings["splits"]["group"] == "patient"
    (raw.folder / "rows.csv").write_text("id,image,label\n" + "".join(f"{n},{n}.npy,x\n" for n in raw.names))
    found = compared(raw.store, config)
    assert (found.changes, found.doubts) == ((), ())
    assert ["column 'patient'" in told for told in found.unknown] == [True]


def test_rows_that_cannot_be_found_as_asked_are_an_error(raw: Any) -> None:
    config = raw.prepare(fields=FIELDS)
    with pytest.raises(ManifestError, match="base_path"):
        compared(raw.store, config | {"base_path": str(raw.folder / "nowhere")})


def test_keys_of_another_column_are_other_rows(raw: Any) -> None:
    config = raw.prepare(fields=FIELDS)
    found = compared(raw.store, config | {"key_column": "image"})
    assert "24 rows of the manifest are not in the store" in found.doubts


def test_other_splits_count_if_they_divide_differently(raw: Any) -> None:
    config = raw.prepare(splits={"ratios": {"train": 1}})
    assert compared(raw.store, config | {"splits": {"ratios": {"train": 5}}}) == Freshness()
    found = compared(raw.store, config | {"splits": {"ratios": {"train": 1, "val": 1}}})
    assert found.changes == ("splits divides the samples in another way",)
    del config["splits"]
    assert compared(raw.store, config) == Freshness()


def test_splits_of_pieces(raw: Any, windows: dict[str, Any]) -> None:
    config = raw.prepare(fields=windows)
    same = {"ratios": {"train": 6, "val": 2, "test": 2}}
    assert compared(raw.store, config | {"splits": same}) == Freshness()
    assert compared(raw.store, config | {"splits": {**same, "seed": 1}}).changes


def test_another_manifest_is_a_doubt(raw: Any) -> None:
    raw.prepare()
    other = raw.folder / "other.csv"
    other.write_text((raw.folder / "rows.csv").read_text())
    found = compared(raw.store, raw.config(manifest=str(other)))
    assert [doubt for doubt in found.doubts if "rows.csv" in doubt and "other.csv" in doubt]


def test_rows_that_came_and_went_are_counted(raw: Any) -> None:
    raw.write_manifest(raw.names[:20])
    (raw.folder / "s04.npy").write_bytes(b"broken")
    config = raw.prepare(max_bad_fraction=0.5)
    raw.write_manifest(raw.names[3:])
    touch_later(raw.folder / "rows.csv", raw.store / ROOT)
    found = compared(raw.store, config)
    assert found.doubts == (
        "4 rows of the manifest are not in the store",
        "3 samples of the store are no longer in the manifest",
    )


def test_a_manifest_that_was_only_touched(raw: Any) -> None:
    config = raw.prepare()
    touch_later(raw.folder / "rows.csv", raw.store / ROOT)
    assert compared(raw.store, config) == Freshness()


def test_a_store_of_a_dataset_object(store: StoreReader) -> None:
    assert compare_with_config(store, load_config({"preprocessed_data_dir": str(store.folder)})) == Freshness()
    assert np.isin(["train"], store.meta.splits).all()
