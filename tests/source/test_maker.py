"""Makers: rows in, named arrays out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flatout.config.fields import (
    AnyField,
    ArrayField,
    CustomField,
    ImageField,
    LabelField,
    MaskField,
    ScalarField,
    SequenceField,
    SignalField,
    TextField,
    VolumeField,
)
from flatout.config.source import SourceSettings
from flatout.errors import ConfigError, SampleError
from flatout.source import DatasetMaker, FieldsMaker, TransformMaker, kinds, read_manifest
from flatout.source.files import SourceFile
from flatout.source.maker import as_samples, in_pieces
from flatout.types import Context, Geometry, Limits, Pieces, Row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "long.npy", np.arange(10, dtype=np.float32))
    return tmp_path


def test_every_field_of_a_row(folder: Path) -> None:
    fields = {
        "x": ArrayField(column="file"),
        "label": LabelField(classes=["cat", "dog"]),
        "age": ScalarField(),
        "text": TextField(column="words"),
    }
    maker = FieldsMaker(fields, str(folder))
    row = Row("k", {"file": "a.npy", "label": "dog", "age": "41.5", "words": "né"})
    sample: Any = maker.make(row)
    assert list(sample) == ["x", "label", "age", "text"]
    np.testing.assert_array_equal(sample["x"], np.arange(6.0).reshape(2, 3))
    assert (sample["label"], sample["age"]) == (1, 41.5)
    assert sample["text"].tobytes().decode() == "né"
    assert maker.path_of(row) == "a.npy"


def test_planned_once_and_pickled_with_its_settings(folder: Path) -> None:
    maker = FieldsMaker({"x": ArrayField()}, str(folder))
    maker.make(Row("k", {"x": "a.npy"}))
    again = pickle.loads(pickle.dumps(FieldsMaker({"x": ArrayField()}, str(folder))))
    assert again.make(Row("k", {"x": "a.npy"}))["x"].shape == (2, 3)


def test_a_split_row_repeats_its_whole_fields(folder: Path) -> None:
    fields = {
        "sound": SignalField(source_rate=4, length=4, split="windows"),
        "label": LabelField(),
    }
    samples: Any = FieldsMaker(fields, str(folder)).make(Row("k", {"sound": "long.npy", "label": 7}))
    assert [sample["sound"].reshape(-1).tolist() for sample in samples] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [int(sample["label"]) for sample in samples] == [7, 7]


def test_pieces_must_agree_in_number() -> None:
    pieces = Pieces((np.zeros(1), np.ones(1)))
    with pytest.raises(SampleError, match="different numbers of pieces"):
        in_pieces({"a": pieces, "b": Pieces((np.zeros(1),))})
    assert in_pieces({"a": np.zeros(1)}).keys() == {"a"}  # type: ignore[union-attr]
    assert in_pieces({"a": Pieces(()), "b": np.zeros(1)}) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no path in column 'x'"),
        ("", "no path in column 'x'"),
        ("absent.npy", "No such file"),
        ("../a.npy", "leaves"),
        ("a.xyz", "No such file|no decoder"),
        (5, "no path and no list in column 'x': 5"),
        (2.5, "no path and no list"),
    ],
)
@pytest.mark.parametrize("field", [ArrayField(), SequenceField()])
def test_a_cell_that_names_no_file(folder: Path, value: Any, message: str, field: Any) -> None:
    with pytest.raises(SampleError, match=message) as caught:
        FieldsMaker({"x": field}, str(folder)).make(Row("k", {"x": value}))
    assert caught.value.stage == "find"


def test_outside_only_where_allowed(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    row = Row("k", {"x": "../a.npy"})
    with pytest.raises(SampleError, match="allow_outside_base"):
        FieldsMaker({"x": ArrayField()}, str(inner)).make(row)
    sample: Any = FieldsMaker({"x": ArrayField()}, str(inner), allow_outside=True).make(row)
    assert sample["x"].shape == (2, 3)


def test_a_member_of_a_tar(folder: Path) -> None:
    data = (folder / "a.npy").read_bytes()
    (folder / "tar").write_bytes(b"before" + data + b"after")
    file = SourceFile(folder / "tar", "a.npy", 6, len(data))
    maker = FieldsMaker({"x": ArrayField()}, str(folder))
    row = Row("k", {"x": file})
    sample: Any = maker.make(row)
    assert sample["x"].shape == (2, 3)
    assert maker.path_of(row) == f"{folder / 'tar'}:a.npy"


def test_lists_of_a_parquet(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "u": [[1.0, 2.0], [3.0]], "v": [[5.0, 6.0], None]})
    pq.write_table(table, tmp_path / "m.parquet")
    fields = {"x": SequenceField(columns=["u", "v"])}
    manifest = read_manifest(SourceSettings(manifest=str(tmp_path / "m.parquet"), fields=fields))
    maker = FieldsMaker(fields, str(manifest.base_path))
    good, bad = manifest.rows([0, 1])
    sample: Any = maker.make(good)
    assert sample["x"].tolist() == [[1, 5], [2, 6]]
    with pytest.raises(SampleError):
        maker.make(bad)


def test_masks_come_after_what_they_follow(folder: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    for name in ("image.png", "mask.png"):
        images.fromarray(np.full((4, 6), 1, np.uint8)).save(folder / name)
    from flatout.config.fields import ImageField, MaskField

    fields = {"mask": MaskField(), "image": ImageField()}
    sample: Any = FieldsMaker(fields, str(folder)).make(Row("k", {"mask": "mask.png", "image": "image.png"}))
    assert sample["mask"].shape == sample["image"].shape == (1, 4, 6)


def test_a_custom_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "loud"

        def load(self) -> Any:
            return lambda name, params: lambda decoded, context: {name: decoded.array * params["gain"]}

    monkeypatch.setattr(kinds, "entry_points", lambda group: [Entry()])
    monkeypatch.setattr(
        "flatout.source.maker.find_decoder",
        lambda kind, suffix, added: lambda file, limits: type("D", (), {"array": np.ones(2)}),
    )
    maker = FieldsMaker({"x": CustomField(name="loud", params={"gain": 3})}, str(folder))
    sample: Any = maker.make(Row("k", {"x": "a.npy"}))
    assert sample["x"].tolist() == [3, 3]


def test_a_transform_gets_the_row_with_whole_paths(folder: Path) -> None:
    seen: list[Any] = []

    def make(row: dict[str, Any], gain: int) -> Any:
        seen.append(row)
        return {"x": np.load(row["file"]) * gain}

    maker = TransformMaker(make, {"gain": 2}, str(folder), ["file", "other"])
    row = Row("k", {"file": "a.npy", "other": None, "n": 5})
    sample: Any = maker.make(row)
    assert seen == [{"key": "k", "file": str(folder / "a.npy"), "other": None, "n": 5}]
    np.testing.assert_array_equal(sample["x"], np.arange(6.0).reshape(2, 3) * 2)
    assert maker.path_of(row) == "a.npy"
    assert maker.path_of(Row("k", {"file": None})) == "k"
    with pytest.raises(SampleError, match="leaves"):
        maker.make(Row("k", {"file": "/etc/passwd"}))


def test_a_transform_by_name() -> None:
    maker = TransformMaker("math:fsum", {}, "")
    assert maker._function([1, 2]) == 3.0
    with pytest.raises(ConfigError, match="is a float, not a function"):
        TransformMaker("math:pi", {}, "").make(Row("k", {}))


def test_a_dataset_is_asked_by_number() -> None:
    maker = DatasetMaker([(1, 2), (3, 4)])
    row = Row("1", {"index": 1})
    sample: Any = maker.make(row)
    assert {name: int(array) for name, array in sample.items()} == {"input": 3, "target": 4}
    assert maker.path_of(row) == "list[1]"


@pytest.mark.parametrize(
    ("result", "names"),
    [
        ({"a": 1, "b": 2}, ["a", "b"]),
        ({1: 1}, ["1"]),
        ((1, 2), ["input", "target"]),
        ([1, 2], ["input", "target"]),
        ((1, 2, 3), ["field0", "field1", "field2"]),
        ((1,), ["field0"]),
        (np.zeros(4), ["input"]),
        (3.0, ["input"]),
        ("text", ["input"]),
    ],
)
def test_names_of_what_is_returned(result: Any, names: list[str]) -> None:
    found: Any = as_samples(result)
    assert list(found) == names
    assert all(isinstance(array, np.ndarray) for array in found.values())


def test_a_list_of_dicts_is_several_samples() -> None:
    found: Any = as_samples([{"x": 1}, {"x": 2}])
    assert [int(sample["x"]) for sample in found] == [1, 2]


@pytest.mark.parametrize("result", [{}, (), [{"x": 1}, {}], None])
def test_nothing_is_no_sample(result: Any) -> None:
    with pytest.raises(SampleError, match=r"field|no fields"):
        as_samples(result)


def test_a_tiny_file_that_its_steps_would_blow_up_is_refused(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4)), tmp_path / "v.nii.gz")
    np.save(tmp_path / "s.npy", np.sin(np.arange(100.0)).astype(np.float32))
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "p.png")
    row = Row("k", {"v": "v.nii.gz", "m": "v.nii.gz", "s": "s.npy", "p": "p.png", "q": "p.png"})
    few = Limits(max_sample_bytes=100_000)
    volume, image = VolumeField(column="v"), ImageField(column="p", size=(1000, 1000))
    explosions: list[dict[str, AnyField]] = [
        {"v": VolumeField(spacing=(0.1, 0.1, 0.1))},
        {"v": VolumeField(size=(40, 40, 40))},
        {"v": VolumeField(size=(40, 40, 40), fit="resize")},
        {"s": SignalField(source_rate=1, rate=1000)},
        {"s": SignalField(length=50_000)},
        {"s": SignalField(length=50_000, fit="resample")},
        {"s": SignalField(split="windows", length=50_000, remainder="pad")},
        {"p": image},
        {"p": ImageField(size=(1000, 1000), fit="crop_pad")},
    ]
    for fields in explosions:
        with pytest.raises(SampleError, match="max_sample_bytes"):
            FieldsMaker(fields, str(tmp_path), limits=few).make(row)
        FieldsMaker(fields, str(tmp_path)).make(row)
    steps = FieldsMaker({"p": image, "q": MaskField(of="p")}, str(tmp_path), limits=few)._plans[1]
    context = Context(row, {"p": Geometry((4, 4))}, limits=few)
    with pytest.raises(SampleError, match="max_sample_bytes"):
        steps(row, context)
    assert FieldsMaker({"v": volume}, str(tmp_path), limits=few).make(row)["v"].shape == (1, 4, 4, 4)
