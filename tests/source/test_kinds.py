"""Which steps a kind has, and kinds that other packages bring."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any, get_args

import pytest

from flatout.config.fields import UNSETTLED, AnyField, ArrayField, CustomField, LabelField
from flatout.errors import ConfigError
from flatout.source import kinds
from flatout.source.kinds import _STEPS, LIBRARIES, VERSIONS, custom_steps, plan_steps


def all_kinds() -> Iterator[str]:
    union, *_ = get_args(AnyField)
    for section in get_args(union):
        yield section.model_fields["kind"].default


def test_every_kind_of_the_config_has_a_version() -> None:
    assert set(all_kinds()) - {"transform", "custom", *UNSETTLED} == set(VERSIONS)


def test_every_target_is_there() -> None:
    for target in _STEPS.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_every_library_is_a_distribution_of_a_known_kind() -> None:
    assert set(LIBRARIES) <= set(VERSIONS)
    for names in LIBRARIES.values():
        for name in names:
            importlib.metadata.version(name)


def test_planned_steps_run() -> None:
    import numpy as np

    from flatout.types import Context, Decoded, Row

    steps = plan_steps("x", ArrayField(dtype="float64"), {})
    outputs = steps(Decoded(np.arange(3)), Context(Row("k", {})))
    assert outputs["x"].dtype == np.float64  # type: ignore[union-attr]


def test_a_kind_without_files_has_no_steps() -> None:
    with pytest.raises(ConfigError, match="field 'y': kind 'label' has no decoder; known: volume, image"):
        plan_steps("y", LabelField(), {})


def make_steps(name: str, params: dict[str, Any]) -> Any:
    return lambda decoded, context: {name: decoded.array * params["gain"]}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("loud", f"{__name__}:make_steps", "flatout.kinds")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_steps)
    monkeypatch.setattr(kinds, "entry_points", lambda group: [entry] if group == "flatout.kinds" else [])


def test_a_registered_kind_gets_its_parameters(registered: None) -> None:
    from flatout.types import Decoded

    steps = custom_steps("x", CustomField(name="loud", params={"gain": 3}))
    assert steps(Decoded(2), None) == {"x": 6}  # type: ignore[arg-type]


def test_a_kind_that_nobody_registers(registered: None) -> None:
    with pytest.raises(ConfigError, match=r"no installed package registers the kind 'quiet'.*\(found: loud\)"):
        custom_steps("x", CustomField(name="quiet"))
