"""Importing the config stays cheap."""

from __future__ import annotations

import subprocess
import sys


def test_no_heavy_library_is_imported() -> None:
    code = "import sys, flatout.config; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert not {"numpy", "torch", "h5py", "pyarrow", "lightning", "typer", "rich"} & set(modules)
