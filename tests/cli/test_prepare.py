"""`flatout prepare`: options, exit codes, and what it prints where."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.cli import prepare_command
from flatout.cli.main import main
from flatout.store import StoreReader
from flatout.store.journal import Journal
from flatout.store.lock import locked

OLD_S = 1_600_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty arrays of two classes, a manifest and a config beside them."""
    monkeypatch.chdir(tmp_path)
    with open(tmp_path / "data.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "file", "label"])
        for number in range(20):
            np.save(tmp_path / f"{number}.npy", np.full((2, 3), number, np.float32))
            writer.writerow([f"s{number:02d}", f"{number}.npy", "ab"[number % 2]])
    config = {
        "csv_path": "data.csv",
        "preprocessed_data_dir": "store",
        "output_dir": "runs",
        "num_workers": 0,
        "fields": {"x": {"kind": "array", "column": "file"}, "label": {"kind": "label"}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def prepare(*arguments: str) -> int:
    return main(["prepare", "--config", "config.json", *arguments])


def document_of(capsys: pytest.CaptureFixture[str]) -> Any:
    """The one JSON document on standard output."""
    return json.loads(capsys.readouterr().out)


def test_columns_that_are_not_there_are_a_config_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare("--set", "fields.x.column=fle", "--set", "fields.label.column=lbael") == 2
    told = capsys.readouterr().err
    assert "'fle' (did you mean 'file'?)" in told
    assert "'lbael' (did you mean 'label'?)" in told
    assert main(["prepare", "data.csv", "-o", "store", "--set", "fields.x.column=fle"]) == 2
    assert "field 'x' wants column 'fle' (did you mean 'file'?)" in capsys.readouterr().err


def test_makes_a_store_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare() == 0
    assert len(StoreReader("store")) == 20
    shown = capsys.readouterr()
    assert "20 made, 0 unchanged" in shown.out
    assert str(folder / "store") in shown.out
    assert "prepare: 20 of 20" in shown.err
    assert prepare() == 0
    assert "0 made, 20 unchanged" in capsys.readouterr().out


def test_json_is_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare("--json") == 0
    document = document_of(capsys)
    assert (document["processed"], document["num_samples"], document["failed"]) == (20, 20, 0)
    assert document["content_hash"] == StoreReader("store").meta.content_hash
    assert document["bytes_freed"] == 0
    assert document["seconds"].keys() >= {"make", "encode", "write"}


def test_a_manifest_instead_of_a_config(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "data.csv", "--output-dir", "guessed", "--num-workers", "0"]) == 0
    store = StoreReader("guessed")
    assert len(store) == 20
    assert store.fields["label"].classes == ("a", "b")
    assert "key: column 'id'" in capsys.readouterr().err


def test_base_path(folder: Path) -> None:
    (folder / "tables").mkdir()
    (folder / "data.csv").rename(folder / "tables" / "data.csv")
    arguments = ["prepare", "tables/data.csv", "-o", "out", "--num-workers", "0"]
    assert main(arguments) == 1  # the files are not beside the manifest
    assert main([*arguments, "--base-path", str(folder)]) == 0
    assert len(StoreReader("out")) == 20


def test_output_dir_is_the_stores_and_never_the_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    made = prepare_command.DataPreprocessor

    def note(settings: Any) -> Any:
        seen.append(settings)
        return made(settings)

    monkeypatch.setattr(prepare_command, "DataPreprocessor", note)
    assert prepare("--output-dir", "elsewhere") == 0
    assert (folder / "elsewhere" / "data_metadata.json").exists()
    assert not (folder / "store").exists()
    (settings,) = seen
    assert (settings.preprocessed_data_dir, settings.output_dir) == ("elsewhere", "runs")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--batch-size", "3"], {"preprocess_batch_size": 3}),
        (["--batch_size", "3"], {"preprocess_batch_size": 3}),
        (["--num-workers", "2"], {"num_workers": 2}),
        (["--num_workers=2"], {"num_workers": 2}),
        (["--limit", "5", "--checksum"], {"limit": 5, "checksum": True}),
        (["--engine", "ray"], {"engine": "ray"}),
        (["--set", "max_bad_fraction=0.5", "--set", "splits.seed=7"], {"max_bad_fraction": 0.5}),
        (["--output_dir", "x"], {"preprocessed_data_dir": "x"}),
    ],
)
def test_options_are_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: dict[str, Any]
) -> None:
    seen: list[Any] = []

    class Noted(Exception):
        pass

    def note(settings: Any) -> None:
        seen.append(settings)
        raise Noted

    monkeypatch.setattr(prepare_command, "DataPreprocessor", note)
    with pytest.raises(Noted):
        prepare(*options)
    assert {name: getattr(seen[0], name) for name in expected} == expected


def test_a_limit_then_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare("--limit", "7", "--json") == 0
    assert document_of(capsys)["num_samples"] == 7
    assert prepare("--json") == 0
    document = document_of(capsys)
    assert (document["num_samples"], document["unchanged"], document["processed"]) == (20, 7, 13)


def test_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare()
    capsys.readouterr()
    assert prepare("--force", "--json") == 0
    assert document_of(capsys)["processed"] == 20


def test_accept_fingerprint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare()
    capsys.readouterr()
    change = ["--set", "fields.x.dtype=float64"]
    assert prepare(*change, "--accept-fingerprint", "--json") == 0
    assert document_of(capsys)["unchanged"] == 20
    assert prepare("--force") == 0
    assert prepare(*change) == 0
    assert "making every sample again: parameter fields.x.dtype is new" in capsys.readouterr().err
    assert StoreReader("store").fields["x"].dtype == "float64"


def test_compact_gives_space_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare()
    np.save(folder / "3.npy", np.zeros((2, 3), np.float32))
    assert prepare("--compact", "--json") == 0
    capsys.readouterr()
    shards = {path.name for path in (folder / "store" / "shards").iterdir()}
    assert shards == {shard.file for shard in StoreReader("store").meta.shards}
    assert len(list((folder / "store").glob("index-*.parquet"))) == 1


def test_bad_rows_are_shown_and_too_many_fail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "4.npy").write_bytes(b"broken")
    assert prepare() == 0
    out, err = capsys.readouterr()
    assert "1 bad" in out
    assert "bad: 4.npy: decode:" in out
    assert "4.npy" not in err  # once is enough
    for number in (5, 6):
        (folder / f"{number}.npy").unlink()
    assert prepare() == 1
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    assert "note: stopped" not in err
    assert prepare("--json") == 1
    assert document_of(capsys)["error"]["type"] == "TooManyBadError"
    assert len(StoreReader("store")) == 19  # what was committed stays


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["--config", "absent.yaml"], 2),
        (["absent.csv", "-o", "x"], 2),
        (["data.csv"], 2),  # no place for the store
        (["data.csv", "-o", "x", "--num-workers", "many"], 2),
        (["data.csv", "-o", "x", "--limit", "0"], 2),
        (["data.csv", "-o", "x", "--engine", "cloud"], 2),
        (["data.csv", "-o", "x", "--no-such-option"], 2),
        (["data.csv", "-o", "x", "--set", "no_such_key=1"], 2),
        (["data.csv", "-o", "x", "--set", "fields.x.kind=sculpture"], 2),
    ],
)
def test_what_is_wrong_tells_its_code(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["prepare", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "Traceback" not in shown.err
    assert main(["prepare", *arguments, "--json"]) == code
    assert document_of(capsys)["error"]["message"]
    assert not (folder / "x").exists()


def test_a_store_that_is_being_prepared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(folder / "store"):
        assert prepare() == 1
    assert "is being prepared by process" in capsys.readouterr().err


def test_guesses_and_notes_never_reach_standard_output(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "data.csv", "-o", "out", "--num-workers", "0", "--json"]) == 0
    shown = capsys.readouterr()
    json.loads(shown.out)
    assert "note:" in shown.err


def test_removed_rows_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare()
    rows = (folder / "data.csv").read_text().splitlines(keepends=True)
    (folder / "data.csv").write_text("".join(rows[:-2]))
    assert prepare() == 0
    assert "0 made, 18 unchanged, 2 removed or replaced" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["config.yaml", "-o", "x"], "is that a config? Then use --config config.yaml", 2),
        (["nosuch", "-o", "x"], "nosuch: there is no such file or folder", 2),
        (["data.csv", "-o", "data.csv"], "data.csv is a file; a folder is wanted", 2),
        (["data.csv", "-o", "x", "--set", "transform=broken:f"], "broken.py, line 1: SyntaxError", 2),
    ],
)
def test_slips_are_told_plainly(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, code: int
) -> None:
    (folder / "config.yaml").write_text("manifest: data.csv\n")
    (folder / "broken.py").write_text("def f(:\n")
    assert main(["prepare", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not (folder / "x").exists()


def test_a_folder_that_was_there_stays(folder: Path) -> None:
    (folder / "x").mkdir()
    (folder / "empty.csv").write_text("id,x\n")
    assert main(["prepare", "empty.csv", "-o", "x"]) != 0
    assert (folder / "x").is_dir()


def test_a_stop_is_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_command, "DataPreprocessor", stop)
    assert prepare() == 130
    said = "error: interrupted: no shard was finished yet; the same command starts again\n"
    assert capsys.readouterr().err == said


def test_a_stop_of_an_update_leaves_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare() == 0
    capsys.readouterr()

    def stop(settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare_command, "DataPreprocessor", stop)
    assert prepare() == 130
    said = "error: interrupted: the store is as it was last finished; the same command starts again\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("num_left", [1, 2])
def test_a_stop_counts_the_finished_shards(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], num_left: int
) -> None:
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 1)
    made = []
    append = Journal.append

    def stop_after(journal: Journal, receipt: Any, rows: Any) -> None:
        append(journal, receipt, rows)
        made.append(receipt)
        if len(made) == num_left:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", stop_after)
    assert prepare() == 130
    kept = "1 finished shard is kept" if num_left == 1 else "2 finished shards are kept"
    assert f"interrupted: {kept}; the same command continues where this one was\n" in capsys.readouterr().err
    monkeypatch.setattr(Journal, "append", append)
    assert prepare() == 0
    shown = capsys.readouterr()
    assert f"continuing: {num_left} of 20 shards are finished" in shown.err
    assert f"prepare: 0 of {20 - num_left}\n" in shown.err
    assert f"20 made ({num_left} by the run before), 0 unchanged" in shown.out
    facts = json.loads((folder / "store" / "preprocessing_stats.json").read_text())
    assert (facts["processed"], facts["continued"]) == (20, num_left)
    assert facts["rows_per_s"] == pytest.approx((20 - num_left) / facts["wall_s"])


def test_a_store_among_its_own_sources_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "source").mkdir()
    for number in range(20):
        (folder / f"{number}.npy").rename(folder / "source" / f"{number}.npy")
    arguments = ["prepare", "source", "--set", "num_workers=0", "-o"]
    assert main([*arguments, "./source/"]) == 2
    assert "source holds the source files; a store needs a folder of its own" in capsys.readouterr().err
    assert len(list((folder / "source").iterdir())) == 20, "nothing was written there"
    assert main([*arguments, "source/store"]) == 0
    capsys.readouterr()
    assert main([*arguments, "source/store"]) == 0
    shown = capsys.readouterr()
    assert "left out the store 'store'" in shown.err
    assert "0 made, 20 unchanged" in shown.out


def test_a_set_beside_a_manifest_corrects_one_guess(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["prepare", "data.csv", "-o", "guessed", "--set", "num_workers=0"]
    assert main([*arguments, "--set", "fields.array.encoding=float16"]) == 0
    assert "field 'array': array from column 'file', as set" in capsys.readouterr().err
    fields = StoreReader("guessed").fields
    assert {name: (spec.kind, spec.encoding) for name, spec in fields.items()} == {
        "array": ("array", "float16"),
        "label": ("label", "none"),
    }
    assert main([*arguments, "--set", "fields.array.encoding=float16"]) == 0
    assert "20 unchanged" in capsys.readouterr().out
    assert main([*arguments, "--set", "fields.label=null"]) == 0
    assert list(StoreReader("guessed").fields) == ["array"]
    assert main([*arguments, "--set", "fields.label.kind=label", "--set", "guess_fields=false"]) == 0
    assert list(StoreReader("guessed").fields) == ["label"]
    assert main([*arguments, "--set", "fields.label.spacing=[1,1,1]"]) == 2
    assert "a field of kind 'label' has no 'spacing'" in capsys.readouterr().err


def test_a_store_of_corrected_guesses_is_repaired_and_compared(folder: Path) -> None:
    """Its settings are kept in full, and mean the same when they are read again."""
    sets = ["--set", "num_workers=0", "--set", "fields.array.encoding=float16", "--set", "fields.label=null"]
    assert main(["prepare", "data.csv", "-o", "guessed", *sets]) == 0
    before = StoreReader("guessed").meta
    shard = next((folder / "guessed" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-8] + b"8 wrong!")
    assert main(["verify", "guessed", "--repair"]) == 0
    assert main(["verify", "guessed", "--against-source"]) == 0
    assert StoreReader("guessed").meta.content_hash == before.content_hash


def test_a_config_that_lists_fields_with_their_kinds_is_all_there_is(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text())
    document["fields"] = {"x": {"kind": "array", "column": "file"}}
    (folder / "config.json").write_text(json.dumps(document))
    assert prepare() == 0
    assert list(StoreReader("store").fields) == ["x"]
    document["fields"] = {"x": {"column": "file"}}
    (folder / "config.json").write_text(json.dumps(document))
    assert prepare() == 0
    assert list(StoreReader("store").fields) == ["x", "label"]
