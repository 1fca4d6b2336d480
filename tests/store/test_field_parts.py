"""What samples depend on beside their files: nothing that could change them may change in silence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config import load_config
from flatout.source import kinds, registry
from flatout.source.registry import load_object, registered
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.field_parts import STORED, code_params, field_parts

DECODER = """
import numpy as np
from flatout.types import Decoded

def decode(file, limits):
    return Decoded(np.frombuffer(file.read_bytes(limits), np.uint8) * GAIN)

def make_steps(name, params):
    return lambda decoded, context: {name: decoded.array + context.row.values["shift"]}

GAIN = 1
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """(code): a package that decodes arrays from `.raw` and brings the kind `shifted` is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    entries = {
        "flatout.decoders": [
            EntryPoint(f"{kind}.raw", "flatout_test_their:decode", "flatout.decoders")
            for kind in ("array", "shifted")
        ],
        "flatout.kinds": [EntryPoint("shifted", "flatout_test_their:make_steps", "flatout.kinds")],
    }
    for place in (registry, kinds):
        monkeypatch.setattr(place, "entry_points", lambda group: entries[group])

    def forget() -> None:
        registered.cache_clear()
        load_object.cache_clear()
        sys.modules.pop("flatout_test_their", None)

    def put(code: str) -> None:
        (tmp_path / "flatout_test_their.py").write_text(code)
        forget()
        for cached in tmp_path.rglob("*.pyc"):
            cached.unlink()

    yield put
    forget()


def fields(**given: Any) -> Any:
    return load_config({"manifest": "m.csv", "fields": given}).fields


def test_code_of_another_package_counts_where_it_is_used(install: Callable[[str], None]) -> None:
    def parts(kind: str) -> dict[str, Any]:
        return field_parts(fields(x={"kind": kind}))

    install(DECODER)
    one, other = parts("array"), parts("signal")
    assert list(one["added"]) == ["decoder array.raw"]
    assert "added" not in other
    install(f"# another comment\n{DECODER}")
    assert parts("array") == one
    install(DECODER.replace("GAIN = 1", "GAIN = 2"))
    assert parts("array") != one
    assert parts("signal") == other


def test_code_that_cannot_be_loaded_is_known_by_its_name(install: Callable[[str], None]) -> None:
    install("import flatout_test_nowhere")
    found = field_parts(fields(x={"kind": "array"}))["added"]
    assert found == {"decoder array.raw": {"target": "flatout_test_their:decode"}}


@pytest.mark.parametrize("kind", [{"kind": "array"}, {"kind": "custom", "name": "shifted"}])
def test_another_release_of_a_decoder_makes_its_samples_again(
    install: Callable[[str], None], tmp_path: Path, kind: dict[str, Any]
) -> None:
    (tmp_path / "a.raw").write_bytes(b"\x01\x02")
    manifest = tmp_path / "m.csv"
    manifest.write_text("x,shift\na.raw,0\n")
    config = {
        "manifest": str(manifest),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": kind},
        "num_workers": 0,
    }

    def run() -> tuple[int, list[int]]:
        made = DataPreprocessor(config).run().processed
        return made, StoreReader(tmp_path / "store").read(0)["x"].tolist()

    install(DECODER)
    assert run() == (1, [1, 2])
    assert run() == (0, [1, 2])
    install(DECODER.replace("GAIN = 1", "GAIN = 3"))
    assert run() == (1, [3, 6])
    assert "added.decoder" in (tmp_path / "store" / "preprocessing.log").read_text()
    manifest.write_text("x,shift\na.raw,1\n")  # a column that only the steps of the kind know of
    assert run() == ((1, [4, 7]) if kind["kind"] == "custom" else (0, [3, 6]))


def test_a_kind_that_gives_several_arrays_loses_none_when_its_code_changes(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    """Where fields are guessed, what is gone is compared field by field, not array by array."""
    (tmp_path / "a.raw").write_bytes(b"\x01\x02")
    (tmp_path / "m.csv").write_text("x,shift\na.raw,0\n")
    config = {
        "manifest": str(tmp_path / "m.csv"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "fields": {"x": {"kind": "custom", "name": "shifted"}},
        "guess_fields": True,
        "num_workers": 0,
    }
    two = DECODER.replace("context: {name:", "context: {name + '_twice': 2 * decoded.array, name:")
    assert two != DECODER
    install(two)
    assert DataPreprocessor(config).run().processed == 1
    assert {"x", "x_twice"} <= set(StoreReader(tmp_path / "store").fields)
    install(two.replace("GAIN = 1", "GAIN = 3"))
    assert DataPreprocessor(config).run().processed == 1


def test_how_fields_are_stored_counts_where_it_is_said() -> None:
    assert code_params({"gain": 2}, {}) == {"gain": 2}
    assert code_params({"gain": 2}, fields(x={"kind": "transform"}, y={})) == {"gain": 2}
    found = code_params({}, fields(x={"encoding": "uint8"}, y={"kind": "label"}))
    assert found == {STORED: {"x": {"encoding": "uint8"}, "y": {"kind": "label"}}}


class Items:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"x": np.linspace(0, 1 + at, 8, dtype=np.float32)}


@pytest.mark.parametrize("version", [None, "1"])
def test_another_encoding_of_a_datasets_field_makes_it_again(tmp_path: Path, version: str | None) -> None:
    def run(**storage: Any) -> tuple[int, str]:
        settings = {"num_workers": 0, "transform_version": version, "fields": {"x": storage} if storage else {}}
        made = DataPreprocessor.from_dataset(Items(), tmp_path / "store", **settings).run().processed
        spec = StoreReader(tmp_path / "store").fields["x"]
        return made, f"{spec.encoding} {spec.compression}"

    assert run() == (3, "none none")
    assert run(encoding="uint8") == (3, "uint8 none")
    assert run(encoding="uint8") == (0, "uint8 none")
    assert run(encoding="uint8", compression="zstd") == (3, "uint8 zstd")
    assert run() == (3, "none none")
