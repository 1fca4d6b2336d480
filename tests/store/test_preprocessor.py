"""DataPreprocessor: configs, datasets and transforms in, stores out; what is made again and what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import load_config
from flatout.errors import ConfigError, PrepareError, StoreSpaceError, TooManyBadError
from flatout.source import convert
from flatout.store import DataPreprocessor, StoreReader, limits, verify
from flatout.store.engine import InCaller
from flatout.store.progress import Silent

pytestmark = pytest.mark.usefixtures("few_shards")


class Items:
    """A dataset of given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def store_of(folder: Path, items: list[Any], **settings: Any) -> StoreReader:
    settings = {"num_workers": 0, "transform_version": "1", **settings}
    DataPreprocessor.from_dataset(Items(items), folder, **settings).run()
    return StoreReader(folder)


# Configs


def test_a_config_a_mapping_or_a_path(source: Any, tmp_path: Path) -> None:
    settings = source.config()
    (tmp_path / "config.json").write_text(json.dumps(settings))
    hashes = set()
    for number, config in enumerate((load_config(settings), settings, tmp_path / "config.json")):
        preprocessor = DataPreprocessor(config)
        stats = preprocessor.run()
        assert stats.unchanged == (12 if number else 0)
        assert preprocessor.verify_data_integrity()
        hashes.add(stats.content_hash)
    assert len(hashes) == 1


def test_no_place_for_the_store(source: Any) -> None:
    preprocessor = DataPreprocessor(source.config(preprocessed_data_dir=None))
    with pytest.raises(ConfigError, match="preprocessed_data_dir"):
        preprocessor.run()
    with pytest.raises(ConfigError, match="preprocessed_data_dir"):
        preprocessor.verify_data_integrity()


def test_integrity_is_true_or_false(source: Any, flip_bit: Callable[..., None]) -> None:
    preprocessor = DataPreprocessor(source.config())
    preprocessor.run()
    assert bool(preprocessor.verify_data_integrity()) is True
    flip_bit(next((source.store / "shards").iterdir()), 5000)
    assert bool(preprocessor.verify_data_integrity()) is False


def test_stats_are_kept_beside_the_store(source: Any) -> None:
    stats = source.prepare(
        fields={**source.config()["fields"], "image": {"kind": "array", "encoding": "float16"}}
    )
    document = json.loads((source.store / "preprocessing_stats.json").read_text())
    assert document["processed"] == stats.processed == 12
    assert document["content_hash"] == stats.content_hash
    assert document["bytes_in"] == sum(path.stat().st_size for path in source.folder.glob("*.npy"))
    assert document["bytes_out"] == sum(path.stat().st_size for path in (source.store / "shards").iterdir())
    assert 0 < document["largest_errors"]["image"] < 0.01
    assert set(document["seconds"]) >= {"make", "encode", "write"}
    log = (source.store / "preprocessing.log").read_text()
    assert "committed 12 samples" in log


# What is made again


def test_nothing_changed_nothing_is_made_or_written(source: Any, all_bytes: Callable[..., Any]) -> None:
    source.prepare()
    before = all_bytes(source.store)
    stats = source.prepare()
    assert (stats.processed, stats.unchanged, stats.removed) == (0, 12, 0)
    after = all_bytes(source.store)
    del before["preprocessing.log"], after["preprocessing.log"]
    assert after == before


def test_changed_new_and_deleted_rows_equal_a_full_rebuild(source: Any) -> None:
    source.prepare()
    source.put(3, seed=33)
    source.rows[6]["text"] = "other"
    del source.rows[9], source.rows[1]
    source.add(20)
    source.save()
    stats = source.prepare()
    assert (stats.processed, stats.unchanged, stats.removed) == (3, 8, 4)
    assert verify(source.store)
    rebuilt = source.prepare(preprocessed_data_dir=str(source.folder / "rebuilt"))
    assert rebuilt.content_hash == stats.content_hash
    one, other = StoreReader(source.store), StoreReader(source.folder / "rebuilt")
    assert one.keys() == other.keys() == [row["id"] for row in source.rows]
    for position in range(len(one)):
        for name, array in one.read(position).items():
            np.testing.assert_array_equal(array, other.read(position)[name])


def test_the_content_hash_does_not_depend_on_how_rows_lie_in_shards(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.store import plan

    hashes, counts = set(), set()
    for num_shards in (1, 3, 12):
        monkeypatch.setattr(plan, "MIN_SHARDS", num_shards)
        folder = source.folder / f"{num_shards}"
        hashes.add(source.prepare(preprocessed_data_dir=str(folder)).content_hash)
        counts.add(len(StoreReader(folder).meta.shards))
    assert len(hashes) == 1
    assert counts == {1, 3, 12}


def test_the_content_hash_sees_a_change_of_one_value(source: Any) -> None:
    first = source.prepare().content_hash
    array = np.load(source.folder / "s05.npy")
    array[0, 0] = np.nextafter(array[0, 0], np.float32(100))
    np.save(source.folder / "s05.npy", array)
    assert source.prepare().content_hash != first


def test_a_setting_of_a_field_makes_everything_again(source: Any) -> None:
    source.prepare()
    fields = {**source.config()["fields"], "image": {"kind": "array", "dtype": "float64"}}
    said: list[str] = []

    class Told:
        def begin(self, what: str, total: int) -> None: ...
        def advance(self, rows: int) -> None: ...
        def bad(self, rows: int) -> None: ...
        def say(self, text: str) -> None:
            said.append(text)

    config = source.config(fields=fields)
    kept = DataPreprocessor(config).run(accept_fingerprint=True)
    assert (kept.processed, kept.unchanged) == (0, 12)
    source.prepare(force=True)
    stats = DataPreprocessor(config).run(progress=Told())
    assert stats.processed == 12
    assert any("dtype" in text and "--accept-fingerprint" in text for text in said)
    assert StoreReader(source.store).fields["image"].dtype == "float64"


def test_force_makes_everything_again(source: Any) -> None:
    first = source.prepare()
    again = source.prepare(force=True)
    assert (again.processed, again.unchanged) == (12, 0)
    assert again.content_hash == first.content_hash


def test_a_limit_then_all(source: Any) -> None:
    few = source.prepare(limit=5)
    assert (few.num_samples, StoreReader(source.store).keys()) == (5, ["s00", "s01", "s02", "s03", "s04"])
    rest = source.prepare()
    assert (rest.processed, rest.unchanged, rest.num_samples) == (7, 5, 12)
    full = source.prepare(preprocessed_data_dir=str(source.folder / "full"))
    assert full.content_hash == rest.content_hash


def test_rows_added_do_not_move_others_between_splits(source: Any) -> None:
    source.prepare()
    store = StoreReader(source.store)
    before = {k: store.meta.splits[n] for k, n in zip(store.keys(), store.numbers["split"], strict=True)}
    for number in range(20, 40):
        source.add(number)
    source.save()
    source.prepare()
    store = StoreReader(source.store)
    after = {k: store.meta.splits[n] for k, n in zip(store.keys(), store.numbers["split"], strict=True)}
    assert {key: after[key] for key in before} == before


def test_new_classes_are_appended(source: Any) -> None:
    source.prepare()
    source.rows[0]["label"] = "ant"
    source.save()
    source.prepare()
    store = StoreReader(source.store)
    assert store.fields["label"].classes == ("cat", "dog", "eel", "ant")
    assert [int(store.read(position)["label"]) for position in range(3)] == [3, 1, 2]


# What fails


def test_bad_rows_are_quarantined_and_tried_again(source: Any) -> None:
    path = source.folder / "s07.npy"
    data = path.read_bytes()
    path.write_bytes(data[:40])
    stats = source.prepare()
    assert (stats.num_samples, stats.failed) == (11, 1)
    (line,) = (source.store / "quarantine.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["key"], found["path"], found["stage"]) == ("s07", "s07.npy", "decode")
    assert verify(source.store)
    path.write_bytes(data)
    stats = source.prepare()
    assert (stats.num_samples, stats.failed, stats.unchanged) == (12, 0, 11)
    assert (source.store / "quarantine.jsonl").read_text() == ""


def test_too_many_bad_rows_stop_the_run_and_keep_the_rest(source: Any) -> None:
    for number in range(3, 8):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    with pytest.raises(TooManyBadError, match=r"max_bad_fraction 0\.1"):
        source.prepare()
    assert not (source.store / "data_metadata.json").exists()
    assert "s03" in (source.store / "quarantine.jsonl").read_text()
    stats = source.prepare(max_bad_fraction=0.5)
    assert (stats.num_samples, stats.failed) == (7, 5)


def test_float16_overflow_is_one_rows_failure(source: Any) -> None:
    np.save(source.folder / "s02.npy", np.full((4, 5), 1e6, np.float32))
    fields = {**source.config()["fields"], "image": {"kind": "array", "encoding": "float16"}}
    stats = source.prepare(fields=fields)
    (bad,) = stats.bad
    assert (bad.key, bad.stage) == ("s02", "encode")
    assert "does not fit float16" in bad.error


def test_all_rows_bad(source: Any) -> None:
    for path in source.folder.glob("*.npy"):
        path.write_bytes(b"broken")
    with pytest.raises(PrepareError, match="all 12 rows failed, so there is nothing to store"):
        source.prepare(max_bad_fraction=1.0)


def test_all_rows_that_could_be_read_are_refused_by_their_values(source: Any) -> None:
    """They gave forms, but none gave a sample: there is nothing to store, and what was there stays."""
    source.prepare()
    before = StoreReader(source.store).meta.content_hash
    for number in range(12):
        np.save(source.folder / f"s{number:02d}.npy", np.full((4, 5), np.nan, np.float32))
    for store in (source.store, source.folder / "fresh"):
        with pytest.raises(TooManyBadError, match="all 12 rows failed, so there is nothing to store"):
            source.prepare(max_bad_fraction=1.0, preprocessed_data_dir=str(store))
    assert StoreReader(source.store).meta.content_hash == before
    np.save(source.folder / "s03.npy", np.zeros((4, 5), np.float32))
    for store in (source.store, source.folder / "fresh"):
        stats = source.prepare(max_bad_fraction=1.0, preprocessed_data_dir=str(store))
        assert (stats.num_samples, stats.failed) == (1, 11)


@pytest.mark.parametrize(
    ("good", "odd", "num_samples"),
    [
        ([8, 9, 10, 11], [7], 4),
        ([0, 6, 9], [0], 3),
        ([0, 9], [0], 2),  # of the first eight rows one is good
        ([7], [7], 1),
        (list(range(1, 10)), [9], 8),  # eight good ones are enough: the ninth has no say
    ],
)
def test_bad_rows_at_the_beginning_change_nothing_for_the_good_ones(
    source: Any, good: list[int], odd: list[int], num_samples: int
) -> None:
    """Whether a field is ragged follows from the first good rows, however many bad ones are before them."""
    for number in range(12):
        shape = (4, 5) if number in odd else (3, 5)
        np.save(source.folder / f"s{number:02d}.npy", np.full(shape, number, np.float32))
    whole = [row for row in source.rows if int(row["id"][1:]) in good]
    rows, source.rows = source.rows, whole
    source.save()
    labels = {"kind": "label", "classes": ["cat", "dog", "eel"]}
    fields = {**source.config()["fields"], "label": labels}
    source.prepare(preprocessed_data_dir=str(source.folder / "alone"), fields=fields, max_bad_fraction=1.0)
    source.rows = rows
    source.save()
    for number in set(range(12)) - set(good):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"")
    assert source.prepare(max_bad_fraction=1.0, fields=fields).num_samples == num_samples
    alone, beside = StoreReader(source.folder / "alone"), StoreReader(source.store)
    assert alone.meta.content_hash == beside.meta.content_hash
    assert alone.meta.fields == beside.meta.fields


def cut_after(monkeypatch: pytest.MonkeyPatch, num_tasks: int) -> None:
    """Interrupt the next runs when so many shards are finished."""
    run = InCaller.__dict__["run"]

    def cut(self: InCaller, *arguments: Any) -> Any:
        for number, receipt in enumerate(run(self, *arguments)):
            if number == num_tasks:
                raise KeyboardInterrupt
            yield receipt

    monkeypatch.setattr(InCaller, "run", cut)


def lose_plan(store: Path) -> None:
    for path in store.glob("plan-*.parquet"):
        path.unlink()


def lose_shard(store: Path) -> None:
    next((store / "shards").glob("*.h5")).unlink()


def tear_journal(store: Path) -> None:
    with open(store / "journal.jsonl", "a") as file:
        file.write('{"task": 1, "sha')


def garble_journal(store: Path) -> None:
    (store / "journal.jsonl").write_text("not a journal\n")


def forget_nothing(store: Path) -> None:
    assert (store / "journal.jsonl").exists()


@pytest.mark.parametrize("lose", [forget_nothing, lose_plan, lose_shard, tear_journal, garble_journal])
def test_an_interrupted_run_is_continued_whatever_is_left_of_it(
    source: Any, all_bytes: Callable[..., Any], lose: Callable[[Path], None]
) -> None:
    whole = source.prepare(preprocessed_data_dir=str(source.folder / "whole"))
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            source.prepare()
    lose(source.store)
    stats = source.prepare()
    assert (stats.num_samples, stats.content_hash) == (12, whole.content_hash)
    shards = [all_bytes(folder / "shards") for folder in (source.store, source.folder / "whole")]
    assert shards[0] == shards[1]
    assert verify(source.store)
    assert not (source.store / "journal.jsonl").exists()


def test_the_journal_of_another_store_is_not_believed(source: Any, make_source: Any, tmp_path: Path) -> None:
    other = make_source(tmp_path / "other", 5)
    for made in (source, other):
        with pytest.MonkeyPatch.context() as patch:
            cut_after(patch, 1)
            with pytest.raises(KeyboardInterrupt):
                made.prepare()
    for path in [*other.store.glob("plan-*.parquet"), other.store / "journal.jsonl"]:
        (source.store / path.name).write_bytes(path.read_bytes())
    source.put(0, seed=200)
    stats = source.prepare()
    assert stats.num_samples == 12
    found = StoreReader(source.store).read(0)["image"]
    np.testing.assert_array_equal(found, np.load(source.folder / "s00.npy"))
    assert verify(source.store)


def test_a_row_that_changed_between_two_interrupted_runs_is_read_again(source: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            source.prepare()
    source.put(1, seed=111)  # its sample stands in the shard that is finished
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, 0)
        with pytest.raises(KeyboardInterrupt):
            source.prepare()
    stats = source.prepare()
    assert stats.num_samples == 12
    found = StoreReader(source.store).read(1)["image"]
    np.testing.assert_array_equal(found, np.load(source.folder / "s01.npy"))


# Datasets


def test_items_that_are_dicts_pairs_or_single(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32)
    named = store_of(
        tmp_path / "a", [{"x": array, "n": n, "f": 0.5, "b": True, "t": "hé" * n} for n in range(4)]
    )
    sample = named.read(3)
    assert {name: (str(a.dtype), a.shape) for name, a in sample.items()} == {
        "x": ("float32", (3,)),
        "n": ("int64", ()),
        "f": ("float64", ()),
        "b": ("bool", ()),
        "t": ("uint8", (9,)),
    }
    assert sample["t"].tobytes().decode() == "hé" * 3
    assert named.keys() == ["0", "1", "2", "3"]
    assert list(store_of(tmp_path / "b", [(array, n) for n in range(4)]).fields) == ["input", "target"]
    assert list(store_of(tmp_path / "c", [array] * 4).fields) == ["input"]
    assert list(store_of(tmp_path / "d", [(array, 1, 2)] * 4).fields) == ["field0", "field1", "field2"]


def test_a_store_whose_floats_were_made_float32_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older releases made them of Python's floats."""
    whole = convert.to_array

    def short(name: str, value: Any) -> Any:
        return np.asarray(value, np.float32) if isinstance(value, float) else whole(name, value)

    monkeypatch.setattr(convert, "to_array", short)
    store_of(tmp_path / "a", [{"f": n / 3} for n in range(4)])
    monkeypatch.setattr(convert, "to_array", whole)
    grown = store_of(tmp_path / "a", [{"f": n / 3} for n in range(6)])
    assert [grown.read(n)["f"] for n in range(6)] == [np.float32(n / 3) for n in range(6)]
    assert grown.fields["f"].dtype == "float32"


def test_strings_of_any_length_after_equal_ones(tmp_path: Path) -> None:
    store = store_of(tmp_path / "a", [{"t": "ab"}] * 9 + [{"t": ""}, {"t": "longer"}])
    assert [store.read(n)["t"].tobytes().decode() for n in (8, 9, 10)] == ["ab", "", "longer"]
    assert store.fields["t"].kind == "text"


def test_tensors_and_pictures(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    images = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    items = [
        {"t": torch.arange(3.0, requires_grad=True) + n, "i": images.fromarray(pixels), "y": torch.tensor(n)}
        for n in range(3)
    ]
    sample = store_of(tmp_path / "a", items).read(2)
    np.testing.assert_array_equal(sample["t"], np.arange(3, dtype=np.float32) + 2)
    np.testing.assert_array_equal(sample["i"], pixels)
    assert sample["y"] == 2


def test_storage_settings_for_a_datasets_fields(tmp_path: Path) -> None:
    items = [{"x": np.linspace(0, 1, 8), "y": n} for n in range(3)]
    fields = {
        "x": {"kind": "transform", "dtype": "float32", "encoding": "uint8"},
        "y": {"kind": "transform", "dtype": "uint8"},
    }
    store = store_of(tmp_path / "a", items, fields=fields)
    assert store.read(0)["x"].dtype == np.float32
    np.testing.assert_allclose(store.read(0)["x"], items[0]["x"], atol=1 / 500)
    assert store.read(2)["y"].dtype == np.uint8


def test_items_that_cannot_be_stored_are_told(tmp_path: Path) -> None:
    items: list[Any] = [{"x": 1.0}, {"x": object()}, {"x": 1.0}, {"y": 1.0}, {}]
    settings: dict[str, Any] = {"num_workers": 0, "transform_version": "1", "max_bad_fraction": 1.0}
    stats = DataPreprocessor.from_dataset(Items(items), tmp_path / "a", **settings).run()
    assert [(row.key, row.stage) for row in stats.bad] == [
        ("1", "transform"),
        ("3", "check"),
        ("4", "transform"),
    ]
    assert stats.bad[0].path == "Items[1]"


@pytest.mark.parametrize("dataset", [iter([1]), 5, {1}])
def test_what_is_no_map_style_dataset(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(ConfigError, match="map-style"):
        DataPreprocessor.from_dataset(dataset, tmp_path)


def test_a_dataset_of_the_running_script_goes_through_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import numpy as np
            from flatout.store import DataPreprocessor, StoreReader

            OFFSET = 5

            class Rows:
                def __len__(self):
                    return 7

                def __getitem__(self, index):
                    return {"x": np.full(3, index + OFFSET), "name": f"row {index}"}

            stats = DataPreprocessor.from_dataset(Rows(), sys.argv[1], num_workers=2).run()
            store = StoreReader(sys.argv[1])
            print(stats.num_workers, [int(store.read(n)["x"][0]) for n in range(7)])
            again = DataPreprocessor.from_dataset(Rows(), sys.argv[1], num_workers=2).run()
            print(again.processed, again.unchanged)
            """
        )
    )
    # No `if __name__ == "__main__"`: workers do not run the caller's script again.
    command = [sys.executable, str(script), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 [5, 6, 7, 8, 9, 10, 11]", "0 7"]


# Transforms


def test_a_transform_beside_the_config_goes_through_workers(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source.folder / "my_recipe.py").write_text(
        textwrap.dedent(
            """
            import numpy as np
            import my_tools

            def make(row, gain):
                print("a word on standard output must not disturb anything")
                image = np.load(row["image"])
                return {"x": my_tools.louder(image, gain), "y": len(row["text"]), "name": row["key"]}
            """
        )
    )
    (source.folder / "my_tools.py").write_text("def louder(image, gain):\n    return image * gain\n")
    config = source.folder / "config.yaml"
    config.write_text(
        "manifest: manifest.csv\ntransform: my_recipe:make\ntransform_params: {gain: 2}\nnum_workers: 2\n"
        f"preprocessed_data_dir: {source.store}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    stats = DataPreprocessor(config).run()
    assert (stats.num_samples, stats.num_workers, stats.failed) == (12, 2, 0)
    sample = StoreReader(source.store).read(4)
    np.testing.assert_array_equal(sample["x"], np.load(source.folder / "s04.npy") * 2)
    assert sample["name"].tobytes() == b"s04"
    assert DataPreprocessor(config).run().unchanged == 12
    assert DataPreprocessor(load_config(config, sets=["transform_params.gain=3"])).run().processed == 12


def test_a_transform_of_the_running_script_goes_through_workers(tmp_path: Path) -> None:
    """As in a notebook: no file behind it that workers could import, and defined anew now and then."""
    (tmp_path / "rows.csv").write_text("id,n\n" + "".join(f"r{n},{n}\n" for n in range(20)))
    script = """
        from flatout.store import DataPreprocessor, StoreReader
        import numpy as np

        config = {"manifest": "rows.csv", "preprocessed_data_dir": "store", "num_workers": 2,
                  "transform": "__main__:make"}
        for factor in (2, 3):
            exec(f"def make(row): return {{'x': np.full(4, int(row['n']) * {factor})}}")
            stats = DataPreprocessor(config).run()
            print(stats.processed, StoreReader("store").read(5)["x"].tolist())
        print(DataPreprocessor(config).run().unchanged)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["20 [10, 10, 10, 10]", "20 [15, 15, 15, 15]", "20"]


def test_changed_code_is_noticed_and_named(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = source.folder / "changing_recipe.py"
    code = "import numpy as np\n\ndef make(row):\n    return {'x': np.load(row['image']) * 2}\n"
    recipe.write_text(code)
    monkeypatch.setattr(sys, "path", [str(source.folder), *sys.path])
    settings = source.config(transform="changing_recipe:make", fields={})

    def run() -> Any:
        monkeypatch.delitem(sys.modules, "changing_recipe", raising=False)
        from flatout.source.registry import load_object

        load_object.cache_clear()
        return DataPreprocessor(settings).run()

    assert run().processed == 12
    recipe.write_text(f"# a comment changes nothing\n{code}")
    os.utime(recipe, (1, 1))
    assert run().processed == 0
    recipe.write_text(code.replace("* 2", "* 3"))
    os.utime(recipe, (2, 2))
    assert run().processed == 12
    log = (source.store / "preprocessing.log").read_text()
    assert "changing_recipe.py changed" in log


# Limits


def free_bytes_are(patch: pytest.MonkeyPatch, num_bytes: int) -> None:
    patch.setattr(limits, "free_bytes", lambda folder: num_bytes)


def test_free_space_is_looked_at_again_when_a_run_is_continued(source: Any) -> None:
    """Only for what is still to be made: two of three shards are there."""
    with pytest.MonkeyPatch.context() as patch:
        cut_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            source.prepare()
    finished = [path.stat().st_size for path in sorted((source.store / "shards").glob("*.h5"))[:2]]
    rest = int(4 * sum(finished) / 8 * limits.HEADROOM) + limits.SPARE_BYTES
    before = sorted(path.name for path in source.store.rglob("*"))
    with pytest.MonkeyPatch.context() as patch:
        free_bytes_are(patch, rest - 10)
        with pytest.raises(StoreSpaceError, match=f"about {rest:,} bytes.*are needed, {rest - 10:,} bytes"):
            source.prepare()
        assert sorted(path.name for path in source.store.rglob("*")) == before
        free_bytes_are(patch, rest)
        assert source.prepare().num_samples == 12
        free_bytes_are(patch, 0)
        assert source.prepare().unchanged == 12


def test_what_was_expected_counts_where_nothing_is_finished_yet(source: Any) -> None:
    for free, error in ((100 << 20, KeyboardInterrupt), (1 << 20, StoreSpaceError)):
        with pytest.MonkeyPatch.context() as patch:
            cut_after(patch, 0)
            free_bytes_are(patch, free)
            with pytest.raises(error):
                source.prepare()
    assert source.prepare().num_samples == 12


def test_compressed_samples_may_need_less_than_they_would_otherwise(tmp_path: Path) -> None:
    """3.2 MB before compression, a few KB after it: not refused, but said; what is not compressed still is."""
    items = [{"x": np.zeros(100_000, np.float32), "y": np.zeros(100, np.float32)} for _ in range(8)]

    told: list[str] = []

    class Heard(Silent):
        def say(self, text: str) -> None:
            told.append(text)

    def run(**fields: Any) -> Any:
        settings: dict[str, Any] = {"num_workers": 0, "fields": fields}
        return DataPreprocessor.from_dataset(Items(items), tmp_path / "store", **settings).run(progress=Heard())

    with pytest.MonkeyPatch.context() as patch:
        free_bytes_are(patch, 2 << 20)
        with pytest.raises(StoreSpaceError, match=r"about 4,\d+,\d+ bytes"):
            run(y={"compression": "zstd"})
        assert run(x={"compression": "zstd"}).num_samples == 8
    assert any("before compression the samples take about 4," in text for text in told)


def test_the_pieces_of_added_rows_count_for_the_free_space(tmp_path: Path) -> None:
    """A row gives ten windows: what one sample takes is a tenth of what a row needs."""
    for number in range(20):
        np.save(tmp_path / f"{number}.npy", np.random.default_rng(number).random(100_000).astype(np.float32))
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "signal", "column": "file", "split": "windows", "length": 10_000}},
        "num_workers": 0,
    }
    (tmp_path / "m.csv").write_text("file\n" + "".join(f"{n}.npy\n" for n in range(10)))
    DataPreprocessor(config).run()
    (tmp_path / "m.csv").write_text("file\n" + "".join(f"{n}.npy\n" for n in range(20)))
    with pytest.MonkeyPatch.context() as patch:
        free_bytes_are(patch, 3 << 20)
        with pytest.raises(StoreSpaceError, match=r"about 5,\d+,\d+ bytes"):
            DataPreprocessor(config).run()
    assert DataPreprocessor(config).run().num_samples == 200


def test_the_configured_limit_reaches_the_steps(tmp_path: Path) -> None:
    """100 samples at 1 Hz are 400 bytes; at 1 kHz they would be 400 kB."""
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.sin(np.arange(100.0 if number else 10.0)).astype(np.float32))
    (tmp_path / "m.csv").write_text("file\n0.npy\n1.npy\n2.npy\n")
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "signal", "column": "file", "source_rate": 1, "rate": 1000, "ragged": True}},
        "num_workers": 0,
        "max_bad_fraction": 1.0,
        "max_sample_bytes": 100_000,
    }
    stats = DataPreprocessor(config).run()
    assert [(bad.path, bad.stage) for bad in stats.bad] == [("1.npy", "transform"), ("2.npy", "transform")]
    assert "max_sample_bytes is 100,000" in stats.bad[0].error
    assert DataPreprocessor({**config, "max_sample_bytes": 1 << 30}).run().num_samples == 3


def test_few_rows_beyond_a_limit_are_looked_at(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tries three rows of a set that has not arrived yet does not wait until all is searched."""
    monkeypatch.setattr("flatout.store.start.MOST_BEYOND", 4)
    for number in range(3, 12):
        (source.folder / f"s{number:02d}.npy").unlink()
    looked: list[str] = []
    describe = InCaller.describe

    def watched(self: Any, maker: Any, rows: Any) -> Any:
        looked.extend(row.key for row in rows)
        return describe(self, maker, rows)

    monkeypatch.setattr(InCaller, "describe", watched)
    assert source.prepare(limit=3).num_samples == 3
    assert looked == [f"s{number:02d}" for number in range(7)]
