"""Decoders by kind and suffix, built in and brought by other packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config.fields import ArrayField
from flatout.errors import ConfigError, MissingDependencyError, SampleError
from flatout.source import registry
from flatout.source.files import SourceFile
from flatout.source.maker import FieldsMaker
from flatout.source.registry import BUILT_IN, EXTRA_OF, find_decoder, load_object, require, suffixes_of
from flatout.types import Decoded, Limits, Row


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What is remembered of installed packages does not outlast a test."""
    yield
    registry.registered.cache_clear()
    load_object.cache_clear()


def decode_mha(file: SourceFile, limits: Limits) -> Decoded:
    return Decoded(np.frombuffer(file.read_bytes(limits), np.uint8))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that decodes `.mha` and `.raw.gz`, and has its own idea of `.npy`."""
    import sys
    from types import ModuleType

    module = ModuleType("their_package")
    module.decode = decode_mha  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_package", module)
    names = ("array.mha", "array.npy", "volume.raw.gz")
    entries = [EntryPoint(name, "their_package:decode", "flatout.decoders") for name in names]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == "flatout.decoders" else [])
    registry.registered.cache_clear()


def test_every_built_in_decoder_is_there() -> None:
    for (kind, suffix), target in BUILT_IN.items():
        decode = find_decoder(kind, suffix)
        assert f"{decode.__module__}:{decode.__name__}" == target


def test_a_decoder_of_another_package_wins(installed: None) -> None:
    assert find_decoder("array", ".mha") is decode_mha
    assert find_decoder("array", ".npy") is decode_mha
    assert find_decoder("volume", ".raw.gz") is decode_mha
    assert find_decoder("signal", ".npy") is not decode_mha
    assert {".mha", ".npz"} <= suffixes_of("array")


def test_files_are_decoded_by_it(installed: None, tmp_path: Path) -> None:
    (tmp_path / "a.MHA").write_bytes(b"\x01\x02")
    maker = FieldsMaker({"x": ArrayField()}, str(tmp_path))
    sample: Any = maker.make(Row("a", {"x": "a.MHA"}))
    assert sample["x"].tolist() == [1, 2]


def test_an_unknown_suffix_is_one_samples_failure() -> None:
    with pytest.raises(
        SampleError, match=r"no decoder of '\.xyz' files for kind 'array' \(known: \.npy, \.npz\)"
    ):
        find_decoder("array", ".xyz")


@pytest.mark.parametrize("kind", ["signal", "image", "array", "sequence"])
def test_a_folder_is_no_file(kind: str, tmp_path: Path) -> None:
    suffix = SourceFile.whole(tmp_path).suffix
    with pytest.raises(
        SampleError, match=rf"^find: the path is a folder; kind '{kind}' wants a file \(known: \."
    ):
        find_decoder(kind, suffix)
    assert find_decoder("volume", suffix).__name__ == "decode_series"


def test_a_mask_is_read_as_a_volume_or_an_image() -> None:
    assert suffixes_of("mask") == suffixes_of("volume") | suffixes_of("image")


def test_objects_by_name() -> None:
    assert load_object("flatout.types:Decoded") is Decoded
    assert load_object("flatout.source.files:SourceFile.whole")(Path("a")).name == "a"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("flatout.types", "package.module:name"),
        (":name", "package.module:name"),
        ("flatout.types:", "package.module:name"),
        ("flatout.types:Nothing", "has no 'Nothing'"),
        ("flatout.types:FieldSpecs", r"has no 'FieldSpecs' .*; did you mean 'FieldSpec'\?"),
        ("flatout.typse:FieldSpec", r"No module named 'flatout.typse'; did you mean 'flatout.types'\?"),
        ("no_such_package.module:name", "cannot be imported"),
    ],
)
def test_wrong_names_are_config_errors(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_object(target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", r"mine\.py, line 1: SyntaxError: "),
        ("a = 1\ndef f():\n    return a / 0\nf()\n", r"mine\.py, line 3: ZeroDivisionError: division by zero"),
        ("import sys\nimport absent_module\n", r"mine\.py, line 2: No module named 'absent_module'"),
        ("from math import nothing\n", r"mine\.py, line 1: ImportError: cannot import name 'nothing'"),
    ],
)
def test_a_module_that_fails_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"'mine:f' cannot be imported: .*{message}"):
        load_object("mine:f")


def test_a_missing_library_of_ours_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra in EXTRA_OF.items():

        def fail(module: str, name: str = name) -> Any:
            raise ImportError(f"No module named '{name}'", name=f"{name}.inner")

        monkeypatch.setattr(registry, "import_module", fail)
        with pytest.raises(MissingDependencyError, match=rf"pip install 'flatout\[{extra}\]'"):
            require("flatout.source.whatever")


def test_a_library_whose_shared_object_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> Any:
        raise OSError("sndfile library not found")

    monkeypatch.setattr(registry, "import_module", fail)
    with pytest.raises(MissingDependencyError, match="soundfile is not installed"):
        require("soundfile")
    with pytest.raises(OSError, match="sndfile"):
        require("something")


def test_another_missing_module_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="no_such_package"):
        require("no_such_package")
