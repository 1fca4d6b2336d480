"""Starting up is light: importing flatout and asking for help load none of the heavy libraries."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

HEAVY = {"torch", "lightning", "pytorch_lightning", "h5py", "hdf5plugin", "pyarrow", "scipy", "pandas", "ray"}
DECODERS = {"PIL", "nibabel", "pydicom", "soundfile", "soxr", "skimage", "monai"}


def loaded_by(*arguments: str) -> set[str]:
    """The top-level modules that a fresh interpreter imports while it runs with these arguments."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"^import time:.*\| *(\w+)", done.stderr, re.MULTILINE))


def command(*arguments: str) -> tuple[str, ...]:
    """What the console script runs."""
    call = f"import sys; from flatout.cli.main import main; sys.exit(main({list(arguments)!r}))"
    return ("-c", call)


def test_the_list_of_loaded_modules_is_seen() -> None:
    assert {"json", "h5py"} <= loaded_by("-c", "import json, h5py")


def test_importing_flatout_loads_next_to_nothing() -> None:
    loaded = loaded_by("-c", "import flatout")
    assert "flatout" in loaded
    assert loaded & (HEAVY | DECODERS | {"numpy", "pydantic"}) == set()


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_nothing_heavy(option: str) -> None:
    loaded = loaded_by(*command(option))
    assert "typer" in loaded
    assert loaded & (HEAVY | DECODERS) == set()


@pytest.mark.parametrize("name", ["config", "prepare", "presets", "stats", "verify"])
def test_commands_of_the_store_load_neither_torch_nor_decoders(name: str) -> None:
    assert loaded_by(*command(name, "--help")) & ({"torch", "lightning", "ray"} | DECODERS) == set()


@pytest.mark.parametrize("package", ["flatout.config", "flatout.source", "flatout.store"])
def test_the_packages_on_the_left_never_load_torch(package: str) -> None:
    code = f"import importlib, pkgutil, {package} as p\n"
    code += "names = [m.name for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.')]\n"
    code += "[importlib.import_module(n) for n in names if n != 'flatout.store.cluster']"
    assert loaded_by("-c", code) & {"torch", "lightning", "ray"} == set()
