"""Where observation begins: a `sitecustomize` calls it in every Python process of the script, before its code.

This serves the script itself, started as the user starts it, workers that are spawned or come from a fork
server, and the processes that torchrun starts. Nothing of torch is imported before the script imports it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from flatout.doctor.child.exit import watch_exit
from flatout.doctor.child.imports import run_after_import

VARIABLE = "FLATOUT_DOCTOR"
"""Environment variable with the folder of the observation."""
NAME = "sitecustomize"
CUSTOMIZE = """\
try:
    from flatout.doctor.child.start import begin
except (ImportError, SyntaxError):  # another Python, which does not have it: as if nobody watched
    import os, sys
    own, place = sys.modules.pop(__name__), os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != place]
    try:
        __import__(__name__)
    except ImportError:
        sys.modules[__name__] = own
else:
    begin()
"""


def write_customize(folder: Path) -> Path:
    """A folder for PYTHONPATH whose `sitecustomize` begins the observation."""
    place = folder / "start"
    place.mkdir()
    (place / f"{NAME}.py").write_text(CUSTOMIZE, encoding="utf-8")
    return place


def begin() -> None:
    """Wait for torch, and run the `sitecustomize` that the doctor's stands in front of."""
    given = os.environ.get(VARIABLE)
    if not given:
        return
    folder = Path(given)
    _run_hidden_customize(folder / "start")
    if not folder.is_dir():  # a process that outlived the observation
        return

    def install(_: ModuleType) -> None:
        importlib.import_module("flatout.doctor.patches.install").install(folder)

    run_after_import({"torch": install})
    if "--multiprocessing-fork" not in sys.argv:
        watch_exit(folder)


def _run_hidden_customize(place: Path) -> None:
    sys.path[:] = [entry for entry in sys.path if entry != str(place)]
    own = sys.modules.pop(NAME, None)
    try:
        importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        if error.name != NAME:
            raise
        if own is not None:
            sys.modules[NAME] = own
