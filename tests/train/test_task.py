"""Tasks: a user's own is found and its defaults stand below everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.tiny import Tiny

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.train import Task, TaskData, load_task
from flatout.types import FieldSpec

OWN = "tests.train.tiny:Tiny"


def test_a_users_own_task_is_loaded() -> None:
    assert isinstance(load_task(load_config({"task": OWN}, environ={})), Tiny)


def test_its_defaults_stand_below_preset_and_file() -> None:
    plain = load_config({"task": OWN}, environ={})
    assert (plain.batch_size, plain.learning_rate) == (4, 0.01)
    assert list(plain.fields) == ["x", "y"]
    assert load_config({"task": OWN, "preset": "debug"}, environ={}).batch_size == 1
    assert load_config({"task": OWN, "batch_size": 9}, environ={}).batch_size == 9


def test_given_fields_take_the_place_of_the_tasks() -> None:
    given = {"image": {"kind": "image"}}
    assert list(load_config({"task": OWN, "fields": given}, environ={}).fields) == ["image"]
    assert load_config({"task": OWN, "transform": "a.b:c"}, environ={}).fields == {}


def test_given_fields_may_change_the_tasks_own() -> None:
    config = load_config({"task": OWN, "fields": {"x": {"encoding": "float16"}}}, environ={})
    assert list(config.fields) == ["x", "y"]
    assert (config.fields["x"].kind, config.fields["x"].encoding) == ("array", "float16")
    other = load_config({"task": OWN, "fields": {"x": {"kind": "signal"}}}, environ={})
    assert list(other.fields) == ["x"]


def test_a_module_beside_the_config_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_config.py").write_text(
        "from tests.train.tiny import Tiny\nclass Mine(Tiny):\n    defaults = {'batch_size': 7}\n"
    )
    (tmp_path / "config.yaml").write_text("task: beside_the_config:Mine\n")
    monkeypatch.setattr("sys.path", __import__("sys").path[:])
    config = load_config(tmp_path / "config.yaml", environ={})
    assert config.batch_size == 7
    assert type(load_task(config)).__name__ == "Mine"


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("no.such.module:Task", "cannot be imported: No module named"),
        ("tests.train.tiny:Nothing", "has no 'Nothing'"),
        ("tests.train.tiny:Tny", r"has no 'Tny' .*; did you mean 'Tiny'\?"),
        ("tests.train.tinny:Tiny", r"No module named 'tests.train.tinny'; did you mean 'tests.train.tiny'\?"),
        ("nonsense", "a class of your own as package.module:Name"),
    ],
)
def test_a_task_that_is_not_there(task: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config({"task": task}, environ={})


def test_a_module_that_is_no_package_has_none_in_it() -> None:
    with pytest.raises(ConfigError, match=r"'tests.train.tiny' is not a package$"):
        load_config({"task": "tests.train.tiny.jsn:Tiny"}, environ={})


def test_a_class_that_is_no_task() -> None:
    config = load_config({"task": "tests.train.tiny:NotATask"}, environ={})
    assert config.batch_size == 3
    with pytest.raises(ConfigError, match="wanted a subclass of flatout"):
        load_task(config)


def test_a_module_that_fails_names_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_task.py").write_text("x = 1\nraise ValueError('on purpose')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"failing_task\.py, line 2: ValueError: on purpose"):
        load_config({"task": "failing_task:Task"}, environ={})


def spec(name: str, kind: str) -> FieldSpec:
    return FieldSpec(name=name, kind=kind, dtype="float32", shape=(1, 4, 4))


def data(**kinds: str) -> TaskData:
    return TaskData({name: spec(name, kind) for name, kind in kinds.items()})


def test_a_field_is_found_by_its_kind() -> None:
    assert data(picture="image", truth="mask").field_of("mask").name == "truth"
    assert data(image="image", other="image").field_of("image").name == "image"


@pytest.mark.parametrize("kinds", [{"a": "image", "b": "image"}, {"a": "signal"}])
def test_a_field_that_nobody_can_tell(kinds: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the samples have: a "):
        data(**kinds).field_of("image")


def test_a_task_needs_a_module() -> None:
    with pytest.raises(TypeError, match="module"):
        Task()  # type: ignore[abstract]
