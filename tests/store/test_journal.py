"""The journal: what survives a crash at any byte, and what is not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flatout.source import NO_SIGHT, Sights
from flatout.store import journal as journals
from flatout.store import layout, verify
from flatout.store.journal import Journal, JournalHead, MadeRows, begin, discard, find, recorded_rows
from flatout.store.metadata import JOURNAL, ShardMeta
from flatout.store.receipt import BadRow, Receipt
from flatout.types import FieldSpec

FIELDS = (FieldSpec("x", "array", "float32", (2, None), range=(0.0, 1.0), classes=("a", "b")),)
ROWS = pa.table(
    {
        "key_hash": pa.array([1, 2, 3], pa.uint64()),
        "fingerprint": pa.array([4, 5, 6], pa.uint64()),
        "by_content": [False, True, False],
        "path": pa.array(["a", "b", "c"], pa.string()),
    }
)


def head_of(folder: Path, **changes: Any) -> JournalHead:
    settings: dict[str, Any] = {
        "plan": "ab" * 32,
        "fields": FIELDS,
        "fingerprint": {"digest": "f00", "notes": []},
        "first_task": 7,
        "num_tasks": 3,
        "rows_per_shard": 2,
        "adopted": (shard_in(folder, 1),),
    }
    return JournalHead(**{**settings, **changes})


def shard_in(folder: Path, number: int) -> ShardMeta:
    """A shard's record, with a file of its size."""
    at = (4096, *[None] * (len(layout.dataset_paths(FIELDS)) - 1))
    meta = ShardMeta(f"{number:06d}-{number:016x}.h5", f"{number:032x}", 100 + number, 2, 5, at)
    path = folder / "shards" / meta.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(meta.size))
    return meta


def receipt_of(folder: Path, task: int) -> Receipt:
    bad = (BadRow(f"key {task}\n", "a/b.npy", "decode", 'it said "no"'),)
    return Receipt(task, (shard_in(folder, task),), bad, 2, {"make": 0.5}, 99, {"x": 0.25}, 1234)


def made_of(task: int) -> MadeRows:
    """Rows of a task, among them one that the plan file knows as it was before."""
    hashes, fingerprints = np.array([[2, 10 * task], [2**64 - task, task]], np.uint64)
    return MadeRows(hashes[task > 7 :], fingerprints[task > 7 :], np.array([True, False])[task > 7 :])


@pytest.fixture
def written(tmp_path: Path) -> Journal:
    opened = begin(tmp_path, head_of(tmp_path), ROWS)
    for task in (7, 8, 9):
        opened.append(receipt_of(tmp_path, task), made_of(task))
    return opened


def test_finished_shards_are_counted_and_nothing_is_changed(tmp_path: Path, written: Journal) -> None:
    assert journals.num_finished(tmp_path) == 4  # three, and one that was adopted
    path = tmp_path / JOURNAL
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    assert journals.num_finished(tmp_path) == 3
    assert path.read_bytes() == torn
    discard(tmp_path)
    assert journals.num_finished(tmp_path) == 0


def test_what_was_noted_is_found(tmp_path: Path, written: Journal) -> None:
    found = find(tmp_path)
    assert found is not None
    assert found.head == head_of(tmp_path)
    assert found.receipts == written.receipts == {task: receipt_of(tmp_path, task) for task in (7, 8, 9)}
    assert [shard.file[:6] for shard in found.shards()] == ["000007", "000008", "000009"]
    rows = recorded_rows(found)
    assert rows is not None
    assert rows.schema == ROWS.schema
    assert {row["key_hash"]: (row["fingerprint"], row["by_content"]) for row in rows.to_pylist()} == {
        1: (4, False),
        2: (2**64 - 7, True),
        3: (6, False),
        **{10 * task: (task, False) for task in (7, 8, 9)},
    }
    assert len(rows) == 6


def test_rows_are_kept_as_they_are_without_those_that_gave_no_sample() -> None:
    hashes = np.array([1, 2, 2**64 - 1, 4], np.uint64)
    sights = Sights.of([("a", 1, 2, 2**64 - 5, True), NO_SIGHT, ("b", 0, 0, 0, False), ("c", 1, 2, 3, False)])
    made = MadeRows.of(hashes, sights)
    again = MadeRows.from_json(json.loads(json.dumps(made.to_json())))
    for rows in (made, again):
        assert rows.key_hashes.tolist() == [1, 2**64 - 1, 4]
        assert rows.fingerprints.tolist() == [2**64 - 5, 0, 3]  # 0: it changed while it was read
        assert rows.by_content.tolist() == [True, False, False]
    assert sights.num_moved == 1
    assert len(MadeRows.of(hashes, None).key_hashes) == 0
    with pytest.raises(ValueError, match="torn"):
        MadeRows.from_json({**made.to_json(), "by_content": ""})


def test_no_journal(tmp_path: Path) -> None:
    assert find(tmp_path) is None


def test_cut_at_any_byte_the_whole_lines_count(tmp_path: Path, written: Journal) -> None:
    path = tmp_path / JOURNAL
    data = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    for size in (*range(ends[0], len(data), 41), *ends, *(end - 1 for end in ends[1:])):
        path.write_bytes(data[:size])
        found = find(tmp_path)
        assert found is not None
        num_whole = sum(end <= size for end in ends) - 1
        assert list(found.receipts) == [7, 8, 9][:num_whole]
        # The torn line is gone, so the next one stands on a line of its own.
        found.append(receipt_of(tmp_path, 12), made_of(12))
        again = find(tmp_path)
        assert again is not None
        assert list(again.receipts) == [*[7, 8, 9][:num_whole], 12]


def test_cut_within_the_head_there_is_no_journal(tmp_path: Path, written: Journal) -> None:
    path = tmp_path / JOURNAL
    head = path.read_bytes().index(b"\n")
    data = path.read_bytes()
    for size in range(0, head, 23):
        path.write_bytes(data[:size])
        assert find(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "[]\n",
        "null\n",
        "{}\n",
        '{"plan": 1}\n',
        "\x00\xff\n",
        '{"plan":"x","fields":[{"surprise":1}],"adopted":[]}\n',
    ],
)
def test_a_foreign_head_is_no_journal(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL).write_text(text)
    assert find(tmp_path) is None


def test_foreign_lines_are_passed_over(tmp_path: Path, written: Journal) -> None:
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b"\xff\xfe\n[]\n{}\nnull\n" + json.dumps({"task": 1}).encode() + b"\n")
        for made in (None, 7, {"key_hashes": "?"}, {"key_hashes": "AAAA"}):
            file.write(json.dumps({**receipt_of(tmp_path, 10).to_json(), "made": made}).encode() + b"\n")
    found = find(tmp_path)
    assert found is not None
    assert list(found.receipts) == [7, 8, 9]


HOSTILE_SHARDS = [
    {"file": "../../elsewhere.h5"},
    {"file": "/etc/passwd"},
    {"file": "sub/000008-0000000000000008.h5"},
    {"file": "000008-0000000000000008.h5\n"},
    {"file": 8},
    {"rows": 108 // 8 + 1},
    {"rows": 10**15},
    {"at": [4096]},
]


@pytest.mark.parametrize("changes", HOSTILE_SHARDS)
def test_a_line_with_a_shard_that_no_store_has_counts_as_not_written(
    tmp_path: Path, written: Journal, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    asked = believing_every_shard(monkeypatch)
    edit_line(tmp_path, 2, lambda document: document["shards"][0].update(changes))
    found = find(tmp_path)
    assert found is not None
    assert list(found.receipts) == [7, 9]
    assert asked == ["000001", "000007", "000009"]
    assert journals.num_finished(tmp_path) == 3


@pytest.mark.parametrize(
    "edit",
    [
        *(lambda head, changes=changes: head["adopted"][0].update(changes) for changes in HOSTILE_SHARDS),
        *(
            lambda head, plan=plan: head.update(plan=plan)
            for plan in ("../../../x", "ab" * 31, "AB" * 32, "", 7)
        ),
        *(
            lambda head, changes=changes: head["fields"][0].update(changes)
            for changes in (
                {"name": "../../x"},
                {"dtype": "object"},
                {"dtype": "no dtype"},
                {"shape": [-1]},
                {"encoding": "pickle"},
                {"compression": "lzma"},
            )
        ),
        lambda head: head.update(fields=[1]),
        lambda head: head.update(adopted=[1]),
    ],
)
def test_a_head_that_names_what_no_store_has_is_no_journal(
    tmp_path: Path, written: Journal, monkeypatch: pytest.MonkeyPatch, edit: Any
) -> None:
    asked = believing_every_shard(monkeypatch)
    edit_line(tmp_path, 0, edit)
    assert find(tmp_path) is None
    assert asked == []


def believing_every_shard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if every file that is named were there; which ones were asked for."""
    asked: list[str] = []

    def is_there(folder: Path, shard: ShardMeta) -> bool:
        asked.append(str(shard.file)[:6])
        return True

    monkeypatch.setattr(journals, "_is_there", is_there)
    return asked


def edit_line(folder: Path, number: int, edit: Any) -> None:
    lines = (folder / JOURNAL).read_text().splitlines()
    document = json.loads(lines[number])
    edit(document)
    lines[number] = json.dumps(document)
    (folder / JOURNAL).write_text("".join(f"{line}\n" for line in lines))


def test_a_shard_that_was_moved_out_of_the_store_is_not_followed(source: Any, few_shards: None) -> None:
    """The whole way: the journal names it where it is now, and it is made again in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatout.store.prepare.commit", cut_off)
        with pytest.raises(KeyboardInterrupt):
            source.prepare()
    shard, away = sorted((source.store / "shards").glob("*.h5"))[0], source.folder / "elsewhere.h5"
    shard.rename(away)
    path = source.store / JOURNAL
    path.write_text(path.read_text().replace(shard.name, "../../elsewhere.h5"))
    stats = source.prepare()
    assert stats.num_samples == len(source.rows)
    assert 0 < stats.continued < len(source.rows)
    assert shard.read_bytes() == away.read_bytes()
    assert verify(source.store)


def cut_off(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("size", [None, 0, 1000])
def test_a_shard_that_is_gone_or_of_another_size_counts_as_not_made(
    tmp_path: Path, written: Journal, size: int | None
) -> None:
    for number in (1, 8):
        path = tmp_path / "shards" / f"{number:06d}-{number:016x}.h5"
        path.unlink()
        if size is not None:
            path.write_bytes(bytes(size))
    found = find(tmp_path)
    assert found is not None
    assert list(found.receipts) == [7, 9]
    assert found.head.adopted == ()


def test_a_lost_plan_file_is_told(tmp_path: Path, written: Journal) -> None:
    (tmp_path / written.head.plan_file).write_bytes(b"PAR1 no more")
    assert recorded_rows(written) is None
    (tmp_path / written.head.plan_file).unlink()
    assert recorded_rows(written) is None


def test_discard_leaves_nothing(tmp_path: Path, written: Journal) -> None:
    discard(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    discard(tmp_path)


def test_a_line_is_synced_before_it_counts(
    tmp_path: Path, written: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(journals, "sync_file", fail)
    with pytest.raises(OSError, match="luck"):
        written.append(receipt_of(tmp_path, 10), made_of(10))
    assert 10 not in written.receipts


def test_a_damaged_shard_of_an_unfinished_run_is_made_again(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not wedge every later prepare."""
    from flatout.store import commit as commits
    from flatout.store import prepare as prepares

    def cut_off(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepares, "commit", cut_off)
    with pytest.raises(KeyboardInterrupt):
        source.prepare()
    monkeypatch.setattr(prepares, "commit", commits.commit)
    shard = sorted((source.store / "shards").glob("*.h5"))[0]
    data = bytearray(shard.read_bytes())
    data[2000:2600] = bytes(600)
    shard.write_bytes(data)
    assert source.prepare().num_samples == len(source.rows)
    assert verify(source.store)
