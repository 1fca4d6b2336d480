"""Globals that code in a file reads: what decides a sample counts, what just lives does not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.store.fingerprint import Fingerprint, explain_difference, fingerprint_callable

LIB = """
import argparse, collections, contextlib, dataclasses, enum, functools, itertools
import logging, os, random, threading, time, uuid
import numpy as np
from pathlib import Path
GIVEN = float(os.environ["FO_GAIN"])
SAME = 7
"""


class Program:
    """A module of the user's own that is run anew with each value of an environment variable."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        patch.syspath_prepend(folder)

    def run(self, source: str, gain: float = 2, then: str = "", **files: str) -> Fingerprint:
        for name, text in {"fo_main": LIB + source, **files}.items():
            (self.folder / f"{name}.py").write_text(text)
        return self.again(gain, then)

    def again(self, gain: float = 2, then: str = "") -> Fingerprint:
        self.patch.setenv("FO_GAIN", str(gain))
        for name in [n for n in sys.modules if n.startswith("fo_")]:
            del sys.modules[name]
        module = importlib.import_module("fo_main")
        exec(compile(then, "then.py", "exec"), vars(module))
        made: Any = module.make
        return fingerprint_callable(made() if isinstance(made, type) else made, {})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield Program(tmp_path, monkeypatch)
    for name in [n for n in sys.modules if n.startswith("fo_")]:
        del sys.modules[name]


MAKE = "\ndef make(row): return "
READ = {
    "global": MAKE + "GIVEN",
    "class": "\nclass make:\n    def __getitem__(self, i): return i * GIVEN",
    "helper": "\ndef deep(x): return x * GIVEN" + MAKE + "deep(row)",
    "method of another class": "\nclass R:\n    def read(self): return GIVEN" + MAKE + "R().read()",
    "two at once": "\na, b = GIVEN, 2" + MAKE + "a",
    "branches": "\nif GIVEN == 2:\n    G = 1\nelse:\n    G = 2" + MAKE + "G",
    "array": "\nG = np.arange(GIVEN)" + MAKE + "G",
    "dictionary": "\nG = {'gain': [GIVEN, None, b'x', Path('a')]}" + MAKE + "G['gain']",
    "arguments": "\nG = argparse.Namespace(gain=GIVEN)" + MAKE + "G.gain",
    "arguments whole": "\nG = argparse.Namespace(gain=GIVEN)" + MAKE + "vars(G)",
    "dataclass": "\n@dataclasses.dataclass\nclass C:\n    gain: float\nG = C(GIVEN)" + MAKE + "G.gain",
    "object": "\nclass C:\n    def __init__(self, g): self.gain = g\nG = C(GIVEN)" + MAKE + "G.gain",
    "partial": "\ndef f(g): return g\nG = functools.partial(f, GIVEN)" + MAKE + "G()",
    "closure": "\ndef f(g):\n    return lambda: g\nG = f(GIVEN)" + MAKE + "G()",
    "decorator": (
        "\ndef by(g):\n    def wrap(f):\n        return functools.wraps(f)(lambda x: f(x) * g)\n"
        "    return wrap\n"
        "@by(GIVEN)\ndef deep(x): return x" + MAKE + "deep(row)"
    ),
    "decorator of a method": (
        "\ndef by(g):\n    return lambda f: functools.wraps(f)(lambda self, i: f(self, i) * g)\n"
        "class make:\n    @by(GIVEN)\n    def __getitem__(self, i): return i"
    ),
    "decorator of a library": "\n@contextlib.contextmanager\ndef f(): yield GIVEN" + MAKE + "f()",
    "member of an enumeration": "\nclass E(enum.Enum):\n    A = GIVEN" + MAKE + "E.A.value",
    "cached": "\n@functools.lru_cache\ndef deep(x): return x * GIVEN" + MAKE + "deep(row)",
    "one of two functions": "\ndef f(): 1\ndef g(): 2\nG = f if GIVEN == 2 else g" + MAKE + "G()",
    "list of functions": "\ndef f(): return GIVEN\nG = [f]" + MAKE + "G[0]()",
    "one of two of a name": "\nif GIVEN == 2:\n    def deep(): 1\nelse:\n    def deep(): 2" + MAKE + "deep()",
    "class attribute": "\nclass make:\n    gain = GIVEN\n    def __getitem__(self, i): return self.gain",
    "default": "\nclass make:\n    def __getitem__(self, i, gain=GIVEN): return gain",
    "keyword default": "\ndef make(row, *, gain=GIVEN): return gain",
    "loop": "\nfor G in range(int(GIVEN)): pass" + MAKE + "G",
    "set by main": "\nG = 0\ndef main():\n    global G\n    G = GIVEN\nmain()" + MAKE + "G",
    "dictionary filled by main": "\nG = {}\ndef main():\n    G.update(g=GIVEN)\nmain()" + MAKE + "G['g']",
    "class of two branches": (
        "\nif GIVEN == 2:\n    class make:\n        def __getitem__(self, i): return 1\n"
        "else:\n    class make:\n        def __getitem__(self, i): return 2"
    ),
    "function of two branches": (
        "\nif GIVEN == 2:\n    def make(row): return 1\nelse:\n    def make(row): return 2"
    ),
}


@pytest.mark.parametrize("source", READ.values(), ids=READ)
def test_a_value_that_the_code_reads_counts(program: Program, source: str) -> None:
    found = program.run(source)
    assert program.again().digest == found.digest
    assert program.again(3).digest != found.digest
    assert found.notes == ()


UNREAD = {
    "other global": MAKE + "SAME",
    "attribute of a class that is not used": "\nclass C:\n    gain = GIVEN" + MAKE + "1",
    "memo": "\nG = {}\nG['a'] = GIVEN" + MAKE + "G.setdefault(row, 1)",
    "memo by index": "\nG = {1: GIVEN}\ndef make(row):\n    G[row] = 1\n    return G[row]",
    "counter": "\nG = GIVEN\ndef make(row):\n    global G\n    G += 1\n    return G",
    "memo of an object": (
        "\nclass C:\n    def __init__(self): self.memo = {}\n"
        "    def get(self, k): return self.memo.setdefault(k, 1)\nG = C()\n"
        "G.memo['a'] = GIVEN" + MAKE + "G.get(row)"
    ),
    "memo in a class": (
        "\nclass make:\n    memo = {'a': GIVEN}\n    def __getitem__(self, i): return self.memo.pop(i)"
    ),
    "memo as default": "\nD = {'a': GIVEN}\ndef make(row, memo=D):\n    memo[row] = 1\n    return memo",
    "scratch array": "\nG = np.full(3, GIVEN)\ndef make(row):\n    np.add(1, 2, out=G)\n    return G",
    "registry": (
        "\nG = {'a': GIVEN}\ndef register(f):\n    G[f.__name__] = f\n    return f\n@register\ndef f(): pass"
        + MAKE + "G['f']()"
    ),
    "random generator": "\nG = random.Random(GIVEN)" + MAKE + "G.random()",
    "numpy generator": "\nG = np.random.default_rng(int(GIVEN))" + MAKE + "G.random()",
    "iterator": "\nG = itertools.count(GIVEN)" + MAKE + "next(G)",
    "logger": "\nG = logging.getLogger(str(GIVEN))" + MAKE + "G.info('x')",
    "lock": "\nG = threading.Lock() if GIVEN == 2 else threading.RLock()\ndef make(row):\n    with G: return 1",
    "clock": "\nG = time.time() + GIVEN" + MAKE + "G",
    "id": "\nG = str(uuid.uuid4())" + MAKE + "G",
    "folder": "\nH = Path(__file__).parent\nG = H / str(GIVEN)" + MAKE + "G",
    "own name": MAKE + "(__file__, __name__)",
}  # fmt: skip


@pytest.mark.parametrize("source", UNREAD.values(), ids=UNREAD)
def test_what_is_not_read_or_does_not_last_does_not_count(program: Program, source: str) -> None:
    found = program.run(source)
    assert program.again(3).digest == found.digest
    assert found.state == {}


FIXED = {
    "literal": "\nG = (1, -2.5, {'a': [None]})" + MAKE + "G",
    "imported": "\nfrom fo_part import PART, f as g" + MAKE + "g(PART)",
    "starred": "\nfrom fo_part import *" + MAKE + "f(PART)",
    "of a library": "\nfrom numpy import pi, linspace" + MAKE + "linspace(pi, 1, 2)",
    "function": "\nf = lambda x: x\ndef g(): return f(1)" + MAKE + "g()",
    "decorated": "\n@functools.lru_cache\ndef f(x): return x" + MAKE + "f(1)",
    "classes": (
        "\n@functools.total_ordering\n@dataclasses.dataclass\nclass C:\n    n: int = 3\n    __k = 2\n"
        "    def __lt__(self, o): return True\n    def __f(self): pass\n    g = __f\n    @property\n"
        "    def p(self): return 1\n    @p.setter\n    def p(self, v): pass\n"
        "    @functools.cached_property\n    def q(self): return 1\n    @staticmethod\n    def s(): pass\n"
        "class D(C):\n    @functools.wraps(len)\n    def w(self): pass\n"
        "P = collections.namedtuple('P', 'a b')\nclass make:\n    def __getitem__(self, i): return C(), D()"
    ),
}
PART = {"fo_part": "PART = 3\ndef f(x): return x"}


@pytest.mark.parametrize("source", FIXED.values(), ids=FIXED)
def test_what_the_file_says_itself_adds_nothing(program: Program, source: str) -> None:
    """So that the digest of code without such globals is what it was before they counted."""
    assert program.run(source, **PART).state == {}


@pytest.mark.parametrize(
    ("source", "then", "why"),
    [
        ("import fo_part as p" + MAKE + "p.PART", "p.PART = 4", "global fo_part.PART"),
        ("import fo_part as p" + MAKE + "p.f(1)", "p.f = lambda x: 2", "global fo_part.f"),
        ("from fo_part import PART" + MAKE + "PART", "PART = 4", "global fo_main.PART"),
        ("import fo_part as p" + MAKE + "p.deep()", "p.PART = 4", "global fo_part.PART"),
        (MAKE + "SAME", "SAME = 8", "global fo_main.SAME"),
        ("def make(row):\n    from fo_part import PART\n    return PART", PART_SET := "import fo_part\n"
         "fo_part.PART = 4", "global fo_part.PART"),
        ("class make:\n    n = 1\n    def f(self): return self.n", "make.n = 2", "global fo_main.make.n"),
        ("class make:\n    def f(self): return 1", "make.f = lambda self: 2", "method make.f"),
        ("class B:\n    def f(self): 1\nclass make(B): pass", "B.f = lambda self: 2", "method B.f"),
        ("class make:\n    def f(self): return 1", "make.g = lambda self: 2", "method make.g"),
    ],
)  # fmt: skip
def test_what_is_put_in_while_running_counts(program: Program, source: str, then: str, why: str) -> None:
    part = {"fo_part": PART["fo_part"] + "\ndef deep(): return PART"}
    before, after = program.run(source, **part), program.again(then=then)
    assert before.state == {}
    assert set(after.state) == {why}
    assert explain_difference(before, after) == [f"{why} is now compared"]


def test_of_a_record_only_the_attributes_that_are_read_count(program: Program) -> None:
    found = program.run("\nG = argparse.Namespace(gain=GIVEN, n=1)" + MAKE + "G.n")
    assert set(found.state) == {"global fo_main.G.n"}
    assert program.again(3).digest == found.digest


def test_the_global_that_changed_is_named(program: Program) -> None:
    assert explain_difference(program.run(READ["helper"]), program.again(3)) == ["global fo_main.GIVEN changed"]


def test_what_is_no_plain_data_is_noted(program: Program) -> None:
    found = program.run("import torch" + "\nG = torch.nn.Linear(2, 2)" + MAKE + "G(row)")
    assert found.notes == ("global fo_main.G (Linear) holds more than plain data: it is not compared",)


SCRIPT = """
import sys
from flatout.store.fingerprint import fingerprint_callable as f
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
gain = float(sys.argv[1])
@dataclass
class Record:
    n: int = 1
class Kind(Enum):
    A = 1
class Pair(NamedTuple):
    a: int = 1
class Hostile:
    def __getattr__(self, name): raise RuntimeError(name)
hostile = Hostile()
def plain(row): return Record(), Kind.A, Pair(), hostile.x
class R:
    def __getitem__(self, i): return i * gain
first = R
class R:
    def __getitem__(self, i): return i * gain + 1
R.__len__ = lambda self: 2
def once(row): return 1
one = once
def once(row): return 2
if __name__ == "__main__":
    found = f(plain, {})
    assert list(found.state) == ["global fo_script.hostile"], found
    assert (found.notes, list(found.files)) == ((), ["fo_script.py"]), found
    print(*(f(t, {}).digest for t in (first, R, first(), R(), one, once)))
"""


def test_a_script_counts_alike_in_every_process_and_each_definition_by_itself(tmp_path: Path) -> None:
    def run(*arguments: str) -> list[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    (tmp_path / "fo_script.py").write_text(SCRIPT)
    found = run("fo_script.py", "2")
    assert found == run("-m", "fo_script", "2")
    assert len(set(found[:2] + found[4:])) == 4
    other = run("fo_script.py", "3")
    assert [a == b for a, b in zip(found, other, strict=True)] == [False] * 4 + [True] * 2
