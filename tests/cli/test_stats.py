"""`flatout stats`: a store, a manifest or a folder in numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.cli.main import main
from flatout.store import DataPreprocessor


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten arrays of two classes, a manifest and a config beside them."""
    monkeypatch.chdir(tmp_path)
    with open(tmp_path / "data.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x", "label", "split"])
        for number in range(10):
            np.save(tmp_path / f"{number}.npy", np.full(4, number, np.float32))
            writer.writerow([f"s{number}", f"{number}.npy", "ab"[number % 2], "train" if number < 8 else "val"])
    config = {
        "manifest": "data.csv",
        "preprocessed_data_dir": "store",
        "num_workers": 0,
        "fields": {"x": {"kind": "array"}, "label": {"kind": "label"}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def document_of(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataPreprocessor("config.json").run()
    assert main(["stats", "store"]) == 0
    out = capsys.readouterr().out
    assert "train 8, val 2" in out
    assert any({"x", "0", "9", "4.5"} <= set(line.split()) for line in out.splitlines())
    assert "classes of label" in out
    assert main(["stats", "store", "--json"]) == 0
    document = document_of(capsys)
    assert document["splits"] == {"train": 8, "val": 2}
    assert (document["num_samples"], document["memory_bytes"]) == (10, 10 * (16 + 8))
    x, label = document["fields"]
    assert (x["low"], x["high"], x["mean"]) == (0, 9, 4.5)
    assert label["classes"] == {"a": {"train": 4, "val": 1}, "b": {"train": 4, "val": 1}}


def test_a_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "data.csv", "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["num_samples"], document["splits"]) == (10, {"train": 8, "val": 2})
    assert not (folder / "store").exists()


def test_a_config_and_a_missing_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "7.npy").unlink()
    assert main(["stats", "--config", "config.json"]) == 0
    assert "bad: 7.npy" in capsys.readouterr().out


def rows_of(out: str) -> dict[str, str]:
    """The lines above the tables by their first word."""
    lines = out.partition("\nfields")[0].splitlines()
    return {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in lines}


def test_what_was_counted_and_what_was_reckoned(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.store.forecast.NUM_LOOKED_AT", 4)
    (folder / "8.npy").unlink()
    assert main(["stats", "--config", "config.json"]) == 0
    shown = rows_of(capsys.readouterr().out)
    assert (shown["rows"], shown["samples"], shown["splits"]) == ("10", "about 9", "train 8, val 1")
    assert shown["in memory"] == "about 216 bytes when cached"
    assert shown["bad"] == "1 found: 4 of 10 rows decoded, files of all looked for"
    assert main(["stats", "--config", "config.json", "--validate-only"]) == 1
    shown = rows_of(capsys.readouterr().out)
    assert (shown["rows"], shown["samples"], shown["splits"]) == ("10", "9", "train 8, val 1")
    assert (shown["in memory"], shown["bad"]) == ("216 bytes when cached", "1 (every row was decoded)")


def test_a_manifest_that_a_prepare_would_refuse(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (3, 4):
        (folder / f"{number}.npy").write_bytes(b"broken")
    assert main(["stats", "--config", "config.json"]) == 1
    shown = capsys.readouterr()
    assert "a prepare would stop: 2 of 10 rows are bad, more than max_bad_fraction 0.1 allows" in shown.err
    assert main(["prepare", "--config", "config.json"]) == 1
    for number in range(10):
        (folder / f"{number}.npy").unlink()
    capsys.readouterr()
    assert main(["stats", "--config", "config.json"]) == 1
    shown = capsys.readouterr()
    assert rows_of(shown.out)["samples"] == "unknown: no row could be decoded"
    assert f"bad: 0.npy: find: '{folder / '0.npy'}': No such file or directory" in shown.out
    assert main(["stats", "--config", "config.json", "--json"]) == 1
    document = document_of(capsys)
    assert (document["num_samples"], document["num_rows"], document["num_bad"]) == (None, 10, 10)
    assert document["refusal"].startswith("10 of 10 rows are bad")


def test_a_folder_of_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        for number in range(3):
            path = folder / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            images.fromarray(np.zeros((4, 5), np.uint8)).save(path)
    assert main(["stats", "pictures", "--json"]) == 0
    document = document_of(capsys)
    assert document["num_samples"] == 6
    fields = {field["name"]: field for field in document["fields"]}
    assert set(fields["label"]["classes"]) == {"cat", "dog"}


def test_validate_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--config", "config.json", "--validate-only"]) == 0
    out = capsys.readouterr().out
    assert "every row was decoded" in out
    assert any({"x", "0", "9", "4.5"} <= set(line.split()) for line in out.splitlines())
    assert "NaN" not in out
    (folder / "9.npy").write_bytes(b"broken")
    assert main(["stats", "--config", "config.json", "--validate-only", "--json"]) == 1
    document = document_of(capsys)
    assert [(row["key"], row["stage"]) for row in document["bad"]] == [("s9", "decode")]
    assert not (folder / "store").exists()


def test_validate_only_checks_every_sample_of_a_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataPreprocessor("config.json").run()
    assert main(["stats", "store", "--validate-only"]) == 0
    out = capsys.readouterr().out
    assert "0 (every hash and crc was checked)" in out
    assert "train 8, val 2" in out
    before = {path: path.read_bytes() for path in (folder / "store").rglob("*") if path.is_file()}
    shard = next((folder / "store" / "shards").glob("*.h5"))
    data = bytearray(shard.read_bytes())
    data[data.index(np.full(4, 7, np.float32).tobytes())] ^= 1
    shard.write_bytes(data)
    assert main(["stats", "store", "--validate-only"]) == 1
    assert "sample 's7'" in capsys.readouterr().out
    assert main(["stats", "store", "--validate-only", "--json"]) == 1
    document = document_of(capsys)
    assert ("s7", "verify") in [(row["key"], row["stage"]) for row in document["bad"]]
    assert document["num_bad"] == len(document["bad"])
    shard.write_bytes(before[shard])
    assert {path: path.read_bytes() for path in (folder / "store").rglob("*") if path.is_file()} == before
    (folder / "store" / "data_metadata.json").write_text("{")
    assert main(["stats", "store", "--validate-only", "--json"]) == 1
    assert document_of(capsys)["num_bad"] == 1


def test_a_store_that_was_never_finished(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "store").mkdir()
    (folder / "store" / "journal.jsonl").write_text("")
    assert main(["stats", "store"]) == 1
    assert "its first prepare did not finish" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_a_store_whose_root_is_lost(folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """To start anew would throw away what a backup of one small file brings back."""
    assert main(["prepare", "data.csv", "--output-dir", "store"]) == 0
    (folder / "store" / "data_metadata.json").unlink()
    assert main([command, "store"]) == 1
    told = capsys.readouterr().err
    assert "has no data_metadata.json: the rest of a store is there" in told
    assert "Restore it from a backup" in told
    (folder / "store" / "journal.jsonl").touch()  # ended just before the root came: nothing is lost
    assert main([command, "store"]) == 1
    told = capsys.readouterr().err
    assert "the same 'flatout prepare' continues it; or this file is lost, and a backup has it" in told


def test_what_a_compressed_field_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "0.npy", np.zeros(4, np.float32))
    assert main(["prepare", "-c", "config.json", "--set", "fields.x.compression=zstd"]) == 0
    assert main(["stats", "store"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "zstd" in line)
    assert "(1/" in line


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 2), (["absent.csv"], 2), (["data.csv", "--set", "nonsense=1"], 2), (["data.csv", "--what"], 2)],
)
def test_what_is_wrong_tells_its_code(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["stats", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: " in shown.err
    assert main(["stats", *arguments, "--json"]) == code
    assert "error" in document_of(capsys)


def test_what_is_not_there_is_said_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "nosuch"]) == 2
    assert "nosuch: there is no such file or folder" in capsys.readouterr().err


def test_validate_only_tells_the_values_and_counts_nan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "9.npy", np.array([np.nan, 1, 70, np.nan], np.float32))
    assert main(["stats", "--config", "config.json", "--validate-only"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["field", "lowest", "highest", "mean", "NaN"] in lines
    assert next(line for line in lines if line[:1] == ["x"] and len(line) == 5)[1::2] == ["0", "5.66"]
    assert main(["stats", "--config", "config.json", "--validate-only", "--json"]) == 1
    x = document_of(capsys)["fields"][0]
    assert (x["low"], x["high"], x["num_nan"], x["num_measured"]) == (0, 70, 2, 10)


@pytest.mark.parametrize("command", [["stats"], ["stats", "--validate-only"], ["prepare", "-o", "store"]])
def test_a_manifest_without_a_field_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (folder / "e.csv").write_text("id,comment\n" + "".join(f"r{n},free text {n}\n" for n in range(40)))
    assert main([command[0], "e.csv", *command[1:]]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "error: no column of e.csv gives a field" in told
    assert "column 'comment' is not used: no value comes twice; set fields.comment.kind: text to use it" in told
    assert not (folder / "store").exists()
    assert main([command[0], "e.csv", *command[1:], "--set", "fields.comment.kind=text"]) == 0
