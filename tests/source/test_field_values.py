"""A section as plain values: the same attributes, the same samples, and no pydantic where it arrives."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from flatout.config.fields import AnyField, ArrayField, CustomField, LabelField, ScalarField, SignalField
from flatout.source import FieldsMaker
from flatout.source.field_values import FieldValues, plain_field
from flatout.types import Row

SECTIONS = [s for s in get_args(get_args(AnyField)[0]) if s is not CustomField]


@pytest.mark.parametrize("section", [*(s() for s in SECTIONS), CustomField(name="loud", params={"gain": 3})])
def test_every_setting_is_there(section: Any) -> None:
    plain = plain_field(section)
    assert isinstance(plain, FieldValues)
    for name in type(section).model_fields:
        assert getattr(plain, name) == getattr(section, name)
    assert vars(pickle.loads(pickle.dumps(plain))) == dict(section)
    assert plain_field(plain) is plain
    assert section.kind in repr(plain)


READ = """
import pickle, sys
maker, row = pickle.load(sys.stdin.buffer)
sample = maker.make(row)
heavy = {"pydantic", "pyarrow", "importlib.metadata"} & set(sys.modules)
print(sorted(heavy), sample["x"].tolist(), int(sample["y"]), float(sample["z"]), sample["s"].shape)
"""


def test_a_maker_works_where_pydantic_is_not_imported(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.save(tmp_path / "s.npy", np.arange(8.0))
    fields = {
        "x": ArrayField(),
        "y": LabelField(classes=["no", "yes"]),
        "z": ScalarField(),
        "s": SignalField(source_rate=4, length=6),
    }
    row = Row("k", {"x": "a.npy", "y": "yes", "z": 2.5, "s": "s.npy"})
    sent = pickle.dumps((FieldsMaker(fields, str(tmp_path)), row))
    done = subprocess.run([sys.executable, "-c", READ], input=sent, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[] [0, 1, 2] 1 2.5 (1, 6)"


def test_decoders_of_other_packages_travel_with_the_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "flatout.source.numeric:decode_npy"
    monkeypatch.setattr("flatout.source.maker.registered", lambda: {("array", ".mine"): target})
    sent = pickle.dumps(FieldsMaker({"x": ArrayField()}, str(tmp_path)))
    monkeypatch.undo()
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.mine")
    sample: Any = pickle.loads(sent).make(Row("k", {"x": "a.mine"}))
    assert sample["x"].tolist() == [0, 1, 2]
