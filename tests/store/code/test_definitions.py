"""Code without a module file: notebooks, prompts, scripts."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flatout.store.fingerprint import Fingerprint, explain_difference, fingerprint_callable

CELL = """
import numpy as np
SPACING = 2
UNUSED = 1

def deeper(x):
    return x + SPACING

def helper(x):
    return deeper(x) if x else again(x)

def again(x):
    return helper(x)

class Base:
    size = 3
    def scale(self, x):
        return helper(x)

class Data(Base):
    def __init__(self, first):
        self.first = first
    @property
    def shape(self):
        return np.shape(SIZE)
    def __getitem__(self, i):
        import json.decoder
        return json.decoder, self.scale(i)

SIZE = (1, 2)

def make(row):
    return helper(row)
"""


NUMBERS = count()


class Notebook:
    """A `__main__` without a file whose cells keep their source, as a notebook kernel's do."""

    def __init__(self, keeps_source: bool = True) -> None:
        self.module = ModuleType("__main__")
        self.keeps_source = keeps_source

    def run(self, source: str) -> Notebook:
        name = f"<cell {next(NUMBERS)}>"  # an address may be given twice: then an old cell's source is found
        if self.keeps_source:
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), vars(self.module))
        return self


@pytest.fixture
def fingerprint(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(source: str, target: str, keeps_source: bool = True) -> Fingerprint:
        notebook = Notebook(keeps_source)
        monkeypatch.setitem(sys.modules, "__main__", notebook.module)
        notebook.run(source)
        return fingerprint_callable(eval(target, vars(notebook.module)), {})

    return run


def test_a_notebook_function_counts_with_all_that_it_names(fingerprint: Any) -> None:
    found = fingerprint(CELL, "make")
    assert set(found.files) == {f"__main__:{name}" for name in ("make", "helper", "deeper", "again")}
    assert "global SPACING" in found.state
    assert found.target == "__main__:make"
    assert found.notes == ()


def test_a_notebook_class_counts_with_its_bases_globals_and_imports(fingerprint: Any) -> None:
    found = fingerprint(CELL, "Data(1)")
    wanted = {f"__main__:{name}" for name in ("Data", "Base", "helper", "deeper", "again")}
    assert set(found.files) == wanted
    assert {"global SIZE", "global SPACING", "Base.size", "attribute first"} <= set(found.state)
    assert found.distributions == {"numpy": np.__version__}


@pytest.mark.parametrize("target", ["make", "Data(1)", "Data(1).scale"])
@pytest.mark.parametrize("keeps_source", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("SPACING = 2", "SPACING = 3", "global SPACING changed"),
        ("x + SPACING", "x - SPACING", "__main__:deeper changed"),
        ("if x else", "if not x else", "__main__:helper changed"),
    ],
)
def test_a_change_far_away_is_noticed_and_named(
    fingerprint: Any, target: str, keeps_source: bool, old: str, new: str, why: str
) -> None:
    before = fingerprint(CELL, target, keeps_source)
    after = fingerprint(CELL.replace(old, new), target, keeps_source)
    assert explain_difference(before, after) == [why]
    assert before == fingerprint(CELL, target, keeps_source)


def test_comments_docstrings_and_unused_globals_do_not_count(fingerprint: Any) -> None:
    source = CELL.replace("def deeper(x):", 'def deeper(x):\n    """Doc."""\n    # why\n')
    source = "\n# moved\n" + source.replace("UNUSED = 1", "UNUSED = 2")
    for target in ("make", "Data(1)"):
        assert fingerprint(source, target) == fingerprint(CELL, target)


def test_without_source_the_bytecode_counts_and_is_noted(fingerprint: Any) -> None:
    found = fingerprint(CELL, "make", keeps_source=False)
    assert any("no source of deeper: its bytecode is compared" in note for note in found.notes)
    changed = fingerprint(CELL.replace("self.first = first", "self.first = 1"), "Data(1)", False)
    assert explain_difference(fingerprint(CELL, "Data(1)", False), changed) == [
        "__main__:Data.__init__ changed"
    ]


def test_notebook_lambdas_closures_and_wrapped_functions(fingerprint: Any) -> None:
    cell = CELL + (
        "import functools\n"
        "pair = (lambda r: helper(r), lambda r: deeper(r))\n"
        "def close(k):\n    return lambda r: helper(r) * k\n"
        "@functools.lru_cache\ndef cached(r):\n    return helper(r)\n"
    )
    targets = ["pair[0]", "pair[1]", "close(1)", "close(2)", "cached", "functools.partial(make, 1)"]
    prints = {target: fingerprint(cell, target) for target in targets}
    assert len({found.digest for found in prints.values()}) == len(targets)
    changed = cell.replace("x + SPACING", "x - SPACING")
    for target, found in prints.items():
        assert fingerprint(cell, target).digest == found.digest
        assert "__main__:deeper changed" in explain_difference(found, fingerprint(changed, target))


def test_a_cell_run_again_with_other_code_counts_by_the_newest(fingerprint: Any) -> None:
    once = fingerprint("def make(r):\n    return 2", "make")
    assert fingerprint("def make(r):\n    return 1\ndef make(r):\n    return 2", "make") == once


def test_a_class_of_one_cell_counts_by_the_definition_that_made_it(fingerprint: Any) -> None:
    twice = "class R:\n    def f(self): return 2\nfirst = R\nclass R:\n    def f(self): return 7\n"
    first, last = fingerprint(twice, "first"), fingerprint(twice, "R")
    assert explain_difference(first, last) == ["__main__:R changed"]
    patched = fingerprint(twice + "R.f = lambda self: 9\n", "R")
    assert "R.f" in patched.state
    assert "R.f" not in last.state


SCRIPT = """
import json, sys
from flatout.store.fingerprint import fingerprint_callable
from fo_part import PART
class Data:
    def __getitem__(self, i):
        return PART
def make(row):
    return PART
if __name__ == "__main__":
    print(json.dumps([fingerprint_callable(t, {}).to_json() for t in (Data(), make, lambda r: 1)]))
"""


def run(*arguments: str, cwd: Path, text: str = "") -> list[Fingerprint]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, input=text, capture_output=True, text=True, check=True
    )
    return [Fingerprint.from_json(data) for data in json.loads(done.stdout)]


def test_a_script_counts_as_the_module_it_would_be(tmp_path: Path) -> None:
    (tmp_path / "fo_part.py").write_text("PART = 1")
    (tmp_path / "fo_script.py").write_text(SCRIPT)
    imported = "import json, fo_script as s; from flatout.store.fingerprint import fingerprint_callable as f\n"
    imported += "print(json.dumps([f(t, {}).to_json() for t in (s.Data(), s.make)]))"
    ways = [["fo_script.py"], ["-m", "fo_script"], [str(tmp_path / "fo_script.py")], ["-c", imported]]
    found = [run(*way, cwd=tmp_path) for way in ways]
    assert all(set(one.files) == {"fo_script.py", "fo_part.py"} for way in found for one in way)
    assert len({way[0].digest for way in found}) == len({way[1].digest for way in found}) == 1
    assert found[0][0].target == "fo_script:Data"


def test_functions_typed_at_a_prompt_count(tmp_path: Path) -> None:
    (tmp_path / "fo_part.py").write_text("PART = 1")
    source = SCRIPT.replace('if __name__ == "__main__":', "if True:")
    first = run("-c", source, cwd=tmp_path)
    second = run("-", cwd=tmp_path, text=source)
    assert [one.digest for one in first] == [one.digest for one in second]
    (tmp_path / "fo_part.py").write_text("PART = 2")
    changed = run("-c", source, cwd=tmp_path)
    assert "global PART changed" in explain_difference(first[1], changed[1])
