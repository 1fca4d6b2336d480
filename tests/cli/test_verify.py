"""`flatout verify`: exit codes, what is named, repair, comparison with the sources."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.cli.main import main
from flatout.store import DataPreprocessor, StoreReader

OLD_S = 1_600_000_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of eight arrays of 4 KiB, made in this process."""
    with open(tmp_path / "data.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x"])
        for number in range(8):
            np.save(tmp_path / f"{number}.npy", np.random.default_rng(number).normal(size=512))
            os.utime(tmp_path / f"{number}.npy", (OLD_S, OLD_S))
            writer.writerow([f"s{number}", f"{number}.npy"])
    config = {
        "manifest": str(tmp_path / "data.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "num_workers": 0,
        "fields": {"x": {"kind": "array"}},
    }
    DataPreprocessor(config).run()
    return tmp_path / "store"


def damage(store: Path, row: int = 3) -> str:
    """Change a byte of one sample; its shard's name out."""
    meta = StoreReader(store).meta
    (shard,) = meta.shards
    path, at = store / "shards" / shard.file, shard.at[-1]
    assert at is not None
    data = bytearray(path.read_bytes())
    data[at + row * 4096 + 5] ^= 1
    path.write_bytes(bytes(data))
    return shard.file


def document_of(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_good_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(store)]) == 0
    shown = capsys.readouterr()
    assert "ok" in shown.out
    assert "8 samples, 1 shard," in shown.out
    assert main(["verify", str(store), "--json"]) == 0
    document = document_of(capsys)
    assert (document["ok"], document["num_samples"], document["damage"]) == (True, 8, [])
    assert document["content_hash"] == StoreReader(store).meta.content_hash


def test_damage_is_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = damage(store)
    assert main(["verify", str(store)]) == 1
    out = capsys.readouterr().out
    assert f"shards/{shard} sample 's3' field 'x': crc differs" in out
    assert "--repair" in out
    assert main(["verify", str(store), "--json"]) == 1
    document = document_of(capsys)
    assert document["ok"] is False
    assert document["damage"] == [
        {"file": f"shards/{shard}", "reason": "crc differs", "key": "s3", "field": "x"}
    ]


def test_long_lists_are_cut_except_in_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for row in range(8):
        damage(store, row)
    from flatout.cli import verify_command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_command, "SHOWN", 3)
        assert main(["verify", str(store)]) == 1
    out = capsys.readouterr().out
    assert out.count("crc differs") == 3
    assert "and 5 more" in out
    assert main(["verify", str(store), "--json"]) == 1
    assert len(document_of(capsys)["damage"]) == 8


def test_repair(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = StoreReader(store).meta.content_hash
    damage(store)
    assert main(["verify", str(store), "--repair"]) == 0
    assert "repaired: 8 rows made again" in capsys.readouterr().out
    assert StoreReader(store).meta.content_hash == before
    assert main(["verify", str(store)]) == 0
    capsys.readouterr()
    damage(store)
    assert main(["verify", str(store), "--repair", "--json"]) == 0
    document = document_of(capsys)
    assert (document["ok"], document["repaired"]["ok"], document["repaired"]["rows"]) == (True, True, 8)
    assert len(document["damage"]) == 1


def test_rows_that_stay_bad_are_not_counted_as_made(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(store.parent / "data.csv", "a", newline="") as file:
        for name in ("broken", "other"):
            (store.parent / f"{name}.npy").write_bytes(b"no array")
            file.write(f"{name},{name}.npy\n")
    config = {
        "manifest": str(store.parent / "data.csv"),
        "preprocessed_data_dir": str(store),
        "num_workers": 0,
        "max_bad_fraction": 0.5,
        "fields": {"x": {"kind": "array"}},
    }
    DataPreprocessor(config).run()
    damage(store)
    capsys.readouterr()
    assert main(["verify", str(store), "--repair"]) == 0
    out = capsys.readouterr().out
    assert "repaired: 8 rows made again, 2 still bad\n" in out
    assert out.count("bad: ") == 2
    assert "bad: broken.npy: decode: " in out
    assert "bad: other.npy: decode: " in out
    damage(store)
    assert main(["verify", str(store), "--repair", "--json"]) == 0
    document = document_of(capsys)
    assert (document["ok"], document["repaired"]["rows"], document["repaired"]["bad"]) == (True, 8, 2)


def test_a_repair_under_way_is_not_advised(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shard,) = StoreReader(store).meta.shards
    path = store / "shards" / shard.file
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["verify", str(store), "--repair"]) == 0
    out = capsys.readouterr().out
    assert f"  shards/{shard.file}: it has {shard.size - 9:,} bytes instead of {shard.size:,}\n" in out
    assert "--repair" not in out
    assert f"ok: {store}" in out


def test_repair_of_a_good_store_changes_nothing(store: Path) -> None:
    before = (store / "data_metadata.json").read_bytes()
    assert main(["verify", str(store), "--repair"]) == 0
    assert (store / "data_metadata.json").read_bytes() == before


def test_a_broken_root_cannot_be_repaired(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "data_metadata.json").write_text("{}")
    assert main(["verify", str(store)]) == 1
    out = capsys.readouterr().out
    assert "data_metadata.json" in out
    assert "--repair" not in out
    assert main(["verify", str(store), "--repair"]) == 1
    assert "restore it from a backup" in capsys.readouterr().err


def test_against_source(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(store), "--against-source"]) == 0
    assert "8 rows decoded again and compared" in capsys.readouterr().out
    assert main(["verify", str(store), "--against-source", "--sample", "3", "--json"]) == 0
    assert document_of(capsys)["source"]["compared"] == 3
    np.save(store.parent / "2.npy", np.zeros(512))
    assert main(["verify", str(store), "--against-source"]) == 1
    out = capsys.readouterr().out
    assert "changed since: s2" in out
    assert "flatout prepare" in out
    assert main(["verify", str(store), "--against-source", "--json"]) == 1
    document = document_of(capsys)
    assert (document["ok"], document["source"]["ok"], document["source"]["changed"]) == (False, False, ["s2"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["absent"], 1),
        (["absent", "--what"], 2),
        (["a", "--sample", "x"], 2),
        (["a", "--sample", "3"], 2),
    ],
)
def test_what_is_wrong_tells_its_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *arguments]) == code
    assert capsys.readouterr().err.startswith("error: ")
    assert main(["verify", *arguments, "--json"]) == code
    assert "error" in document_of(capsys)


def test_a_file_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    place = str(tmp_path / "file")
    for arguments in (["verify", place], ["export", place, str(tmp_path / "out"), "--to", "hdf5"]):
        assert main(arguments) == 1
        assert "is a file; a store is a folder" in capsys.readouterr().err


def test_code_that_a_store_names_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flatout_test_trust.py").write_text("def make(row):\n    return {'x': float(row['id'])}\n")
    (tmp_path / "rows.csv").write_text("id\n1\n2\n3\n")
    (tmp_path / "config.yaml").write_text(
        "manifest: rows.csv\ntransform: flatout_test_trust:make\npreprocessed_data_dir: store\nnum_workers: 0\n"
    )
    monkeypatch.chdir(tmp_path)
    DataPreprocessor(tmp_path / "config.yaml").run()
    next((tmp_path / "store" / "shards").iterdir()).unlink()
    for what in ("--repair", "--against-source"):
        assert main(["verify", "store", "--repair", what]) == 1
        shown = capsys.readouterr().err.replace("\n", " ")
        assert "flatout_test_trust:make" in shown
        assert "--trust-store" in shown
    assert main(["verify", "store", "--repair", "--against-source", "--trust-store"]) == 0
    assert main(["verify", "store", "--against-source"]) == 1
