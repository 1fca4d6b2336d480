"""What makes stored samples out of date, and what does not."""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import ConfigError
from flatout.store.fingerprint import (
    Fingerprint,
    explain_difference,
    fingerprint_callable,
    fingerprint_settings,
)

FILES = {
    "fo_task/__init__.py": '"""The package."""\n',
    "fo_task/steps.py": """
        import functools
        import json
        import numpy as np
        from . import shapes
        from fo_task.values import FACTOR

        SHIFT = 1

        def make(row, spacing=1.0):
            from fo_task import late
            return {"x": np.ones(3) * FACTOR + SHIFT + late.VALUE}

        def make_again(row):
            return make(row)

        def closed(factor):
            def inner(row):
                return factor
            return inner

        def closed_class(factor):
            class Inner:
                def __call__(self, row):
                    return factor
            return Inner()

        @functools.lru_cache
        def cached(row):
            return row

        def wrapped(function):
            @functools.wraps(function)
            def inner(row):
                return function(row)
            return inner

        def with_default(value):
            return lambda row, default=value: default

        PAIR = (lambda row: 1, lambda row: 2)

        class Base:
            SIZE = 3
            def __init__(self, size, **more):
                self.size = size
                vars(self).update(more)
            def __call__(self, row):
                return self.size
            @classmethod
            def build(cls, row):
                return cls(1)

        class Child(Base):
            pass

        class Slotted:
            __slots__ = ("size",)
            def __call__(self, row):
                return self.size
        """,
    "fo_task/shapes.py": """
        import importlib
        deep = importlib.import_module("fo_deep")
        from fo_task import steps  # a circle
        """,
    "fo_task/values.py": "FACTOR = 2\n",
    "fo_task/late.py": "from fo_space.far import VALUE\n",
    "fo_task/unused.py": "NOTHING = 1\n",
    "fo_space/far.py": "VALUE = 5\n",
    "fo_deep.py": "DEPTH = 1\n",
}


class Project:
    """A small project on disk; every fingerprint reads it anew."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        (self.root / name).write_text(text.replace(old, new))

    @property
    def steps(self) -> Any:
        return importlib.import_module("fo_task.steps")

    def fingerprint(self) -> Fingerprint:
        return fingerprint_callable(self.steps.make, {"spacing": [1, 1, 1]})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Project(tmp_path)
    for name in [n for n in sys.modules if n.startswith("fo_")]:
        del sys.modules[name]


def print_of(target: object, **params: Any) -> str:
    return fingerprint_callable(target, params).digest


def test_every_file_that_takes_part_is_named(project: Project) -> None:
    found = project.fingerprint()
    assert set(found.files) == set(FILES) - {"fo_task/unused.py"}
    assert found.distributions == {"numpy": np.__version__}
    assert found.target == "fo_task.steps:make"
    assert found.params == {"spacing": [1, 1, 1]}
    assert found.notes == ()


@pytest.mark.parametrize("name", sorted(set(FILES) - {"fo_task/unused.py"}))
def test_a_changed_statement_in_any_of_them_is_noticed_and_named(project: Project, name: str) -> None:
    before = project.fingerprint()
    (project.root / name).write_text((project.root / name).read_text() + "\nADDED = 1\n")
    after = project.fingerprint()
    assert before.digest != after.digest
    assert explain_difference(before, after) == [f"{name} changed"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_comments_layout_and_docstrings_are_not_noticed(project: Project, name: str) -> None:
    before = project.fingerprint()
    text = (project.root / name).read_text().replace(" = ", "  =   ").replace("(row):", "(row):  # why\n\n")
    (project.root / name).write_text(f'"""Another docstring."""\n# a comment\n\n{text}\n\n# end\n')
    assert project.fingerprint() == before


def test_a_file_that_is_not_imported_does_not_count(project: Project) -> None:
    before = project.fingerprint()
    project.edit("fo_task/unused.py", "1", "2")
    assert project.fingerprint().digest == before.digest


def test_a_new_and_a_dropped_import_are_named(project: Project) -> None:
    before = project.fingerprint()
    project.edit("fo_task/late.py", "from fo_space.far import VALUE", "from fo_task.unused import NOTHING")
    assert explain_difference(before, project.fingerprint()) == [
        "fo_space/far.py is no longer used",
        "fo_task/late.py changed",
        "fo_task/unused.py is now used",
    ]


@settings(deadline=None, max_examples=30)
@given(factor=st.integers(-5, 5), default=st.sampled_from(["1.0", "2.0", "None"]), deep=st.integers(0, 3))
def test_two_projects_have_equal_fingerprints_when_their_code_is_equal(
    tmp_path_factory: pytest.TempPathFactory, factor: int, default: str, deep: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("moved")
        patch.syspath_prepend(root)
        project = Project(root)
        try:
            before = project.fingerprint()
            project.edit("fo_task/values.py", "FACTOR = 2", f"FACTOR = {factor}")
            project.edit("fo_task/steps.py", "spacing=1.0", f"spacing={default}")
            project.edit("fo_deep.py", "DEPTH = 1", f"DEPTH = {deep}")
            same = (factor, default, deep) == (2, "1.0", 1)
            assert (project.fingerprint() == before) == same
        finally:
            for name in [n for n in sys.modules if n.startswith("fo_")]:
                del sys.modules[name]


def test_process_folder_and_hash_seed_do_not_count(project: Project, tmp_path: Path) -> None:
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1])\n"
        "from fo_task.steps import Base\n"
        "from flatout.store.fingerprint import fingerprint_callable\n"
        "target = Base({'b', 'a', 'c'}, more={'x': 1, 'y': frozenset('pqr')})\n"
        "print(fingerprint_callable(target, {'k': {1, 2, 3}}).digest)"
    )
    moved = Project(tmp_path / "elsewhere")
    found = set()
    for seed, folder, root in (("0", "/", project.root), ("1", tmp_path, moved.root)):
        run = subprocess.run(
            [sys.executable, "-c", code, str(root)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_installed_libraries_count_by_version(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = project.fingerprint()
    import flatout.store.code.walk as walk

    real = walk.distribution

    class Newer:
        version = "99.1+cpu"

    monkeypatch.setattr(walk, "distribution", lambda name: Newer if name == "numpy" else real(name))
    after = project.fingerprint()
    assert explain_difference(before, after) == [f"numpy {np.__version__} -> 99.1"]


def test_a_missing_library_counts_as_absent(project: Project) -> None:
    project.edit("fo_deep.py", "DEPTH = 1", "try:\n    import fo_missing.part\nexcept ImportError:\n    pass")
    before = project.fingerprint()
    assert before.distributions["fo_missing"] == "absent"
    project.write("fo_missing/__init__.py", "")
    project.write("fo_missing/part.py", "x = 1")
    assert explain_difference(before, project.fingerprint()) == [
        "fo_missing/__init__.py is now used",
        "fo_missing/part.py is now used",
        "fo_missing absent is no longer used",
    ]


def test_two_functions_of_one_module_differ(project: Project) -> None:
    steps = project.steps
    prints = {print_of(f) for f in (steps.make, steps.make_again, *steps.PAIR, steps.Base, steps.Child)}
    assert len(prints) == 6


def test_parameters_are_named_in_the_difference(project: Project) -> None:
    old = fingerprint_callable(project.steps.make, {"spacing": (1, 1, 1), "window": {"low": 0}, "gone": 1})
    new = fingerprint_callable(project.steps.make, {"spacing": [2, 2, 2], "window": {"low": -5}, "new": "a"})
    assert explain_difference(old, new) == [
        "parameter gone is gone (was 1)",
        'parameter new is new: "a"',
        "parameter spacing changed from [1,1,1] to [2,2,2]",
        "parameter window.low changed from 0 to -5",
    ]


CARRIERS: dict[str, Callable[[Any, Any], Any]] = {
    "partial": lambda steps, value: functools.partial(steps.make, spacing=value),
    "positional": lambda steps, value: functools.partial(steps.make, value),
    "closure": lambda steps, value: steps.closed(value),
    "closed class": lambda steps, value: steps.closed_class(value),
    "wrapped closure": lambda steps, value: steps.wrapped(steps.closed(value)),
    "instance": lambda steps, value: steps.Base(value),
    "method": lambda steps, value: steps.Base(value).__call__,
    "nested": lambda steps, value: steps.Base([steps.Child({"k": (value, None)})]),
    "default": lambda steps, value: steps.with_default(value),
}


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_values_that_an_object_carries_count(project: Project, carrier: Callable[[Any, Any], Any]) -> None:
    steps = project.steps
    values = [1, 2, 1.0, "1", None, [1], (1,), {"a": 1}, np.arange(3), np.arange(4), steps.make, steps.cached]
    prints = [print_of(carrier(steps, value)) for value in values]
    assert len(set(prints)) == len(values)
    assert [print_of(carrier(steps, value)) for value in values] == prints


def test_the_attribute_that_changed_is_named(project: Project) -> None:
    old = fingerprint_callable(project.steps.Base(1, threshold=0.5), {})
    new = fingerprint_callable(project.steps.Base(1, threshold=0.7), {})
    assert explain_difference(old, new) == ["attribute threshold changed"]
    assert "0.5" not in json.dumps(old.to_json())


def test_slots_count(project: Project) -> None:
    one, other = project.steps.Slotted(), project.steps.Slotted()
    one.size, other.size = 1, 2
    assert print_of(one) != print_of(other)


def test_locks_and_open_files_count_by_type_and_are_noted(project: Project) -> None:
    target = project.steps.Base(1, lock=threading.Lock())
    with open(project.root / "fo_deep.py") as file:
        other = fingerprint_callable(project.steps.Base(1, lock=file), {})
    found = fingerprint_callable(target, {})
    assert found.digest == print_of(project.steps.Base(1, lock=threading.Lock()))
    assert found.digest != other.digest
    assert found.notes == ("values inside lock objects are not compared",)


def test_circular_values_end(project: Project) -> None:
    one, other = project.steps.Base(1), project.steps.Base(2)
    one.friend, other.friend = other, one
    changed = project.steps.Base(1, friend=project.steps.Base(3))
    assert len({print_of(one), print_of(other), print_of(changed)}) == 3


def test_values_nested_too_deeply_ask_for_a_version(project: Project) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigError, match=r"fo_task.steps:Base are nested too deeply.*transform_version"):
        fingerprint_callable(project.steps.Base(deep), {})
    while deep:
        deep = deep.pop()  # CPython frees a long chain by recursion


def test_an_explicit_version_replaces_the_code(project: Project) -> None:
    old = fingerprint_callable(project.steps.make, {"a": 1}, "v1")
    project.edit("fo_task/values.py", "FACTOR = 2", "FACTOR = 3")
    assert fingerprint_callable(project.steps.make_again, {"a": 1}, "v1").digest == old.digest
    assert old.files == {}
    assert explain_difference(old, fingerprint_callable(project.steps.make, {"a": 2}, "v2")) == [
        "transform_version changed from 'v1' to 'v2'",
        "parameter a changed from 1 to 2",
    ]
    code = fingerprint_callable(project.steps.Base(1), {"a": 1})
    assert explain_difference(code, old) == ["transform_version changed from none (the code itself) to 'v1'"]


def test_installed_and_built_in_callables_work() -> None:
    for target in (len, np.log, np.linalg.norm, str.lower, os.path.join, [].append, json.JSONDecoder()):
        found = fingerprint_callable(target, {})
        assert found.digest == fingerprint_callable(target, {}).digest
    assert fingerprint_callable(np.log, {}).distributions == {"numpy": np.__version__}
    assert "numpy" in fingerprint_callable(np.linalg.norm, {}).distributions
    assert print_of(np.log) != print_of(np.exp)


def test_the_own_file_of_an_installed_callable_counts() -> None:
    import pytest_timeout

    found = fingerprint_callable(pytest_timeout.pytest_addoption, {})
    assert list(found.files) == ["pytest_timeout.py"]
    assert {"pytest", "pytest-timeout"} <= set(found.distributions)


def test_a_torch_dataset_counts_by_class_and_attributes(project: Project) -> None:
    torch = pytest.importorskip("torch")
    project.write(
        "fo_data.py",
        """
        import torch
        class Pictures(torch.utils.data.Dataset):
            def __init__(self, size, model=None):
                self.size, self.files, self.mean, self.model = size, ["a", "b"], torch.ones(3), model
            def __len__(self):
                return 2
            def __getitem__(self, i):
                return self.mean * self.size
        """,
    )
    pictures = importlib.import_module("fo_data").Pictures
    first = fingerprint_callable(pictures(2), {})
    assert list(first.files) == ["fo_data.py", "torch/utils/data/dataset.py"]
    assert first.distributions["torch"] == torch.__version__.partition("+")[0]
    assert first.digest == print_of(pictures(2))
    assert explain_difference(first, fingerprint_callable(pictures(3), {})) == ["attribute size changed"]
    changed = pictures(2)
    changed.mean[0] = 0
    assert explain_difference(first, fingerprint_callable(changed, {})) == ["attribute mean changed"]
    subset = torch.utils.data.Subset(pictures(2), [0])
    assert "fo_data.py" in fingerprint_callable(subset, {}).files
    assert print_of(subset) != print_of(torch.utils.data.Subset(pictures(2), [1]))
    assert print_of(pictures(2, torch.nn.Linear(2, 2))) != print_of(pictures(2, torch.nn.Linear(2, 2)))


def test_settings_of_decoders_have_a_fingerprint_too() -> None:
    old = fingerprint_settings({"image": {"spacing": [1.0, 1.0], "decoder": 1}})
    new = fingerprint_settings({"image": {"decoder": 2, "spacing": (1.0, 1.0)}})
    assert explain_difference(old, new) == ["parameter image.decoder changed from 1 to 2"]
    assert old == fingerprint_settings({"image": {"decoder": 1, "spacing": [1.0, 1.0]}})


def test_a_fingerprint_survives_json(project: Project) -> None:
    found = fingerprint_callable(project.steps.Base(1), {"spacing": np.float32(0.5), "path": Path("a/b")})
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Fingerprint.from_json(json.loads(text)) == found
    later = json.loads(text) | {"field_of_a_later_release": 1}
    assert Fingerprint.from_json(later) == found


def test_another_way_of_computing_is_said() -> None:
    found = fingerprint_settings({"a": 1})
    other = Fingerprint.from_json(found.to_json() | {"digest": "0", "algorithm": 0})
    assert explain_difference(other, found) == ["flatout computes fingerprints in another way (0 -> 1)"]
    assert explain_difference(found, found) == []
