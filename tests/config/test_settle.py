"""What follows from several settings together."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flatout.config import resolve_config
from flatout.config.monitor import FAST_DETECTION


def resolved(values: dict[str, Any], **more: Any) -> tuple[Any, list[str]]:
    config, notes = resolve_config(values, environ={}, **more)
    return config, [note for note in notes if "is kept" not in note]


def test_no_workers_means_no_prefetch_and_nothing_persistent() -> None:
    config, notes = resolved({"num_workers": 0})

    assert config.prefetch_factor is None
    assert config.persistent_workers is False
    assert notes == [], "nothing that the user wrote was changed"


def test_what_the_user_wrote_is_changed_with_a_note() -> None:
    _, notes = resolved({"num_workers": 0, "prefetch_factor": 4, "persistent_workers": True})

    assert notes == [
        "prefetch_factor: 4 has no effect with 0 workers; it becomes null",
        "persistent_workers: true has no effect with 0 workers; it becomes false",
    ]


def test_what_already_fits_needs_no_note() -> None:
    assert resolved({"num_workers": 0, "prefetch_factor": None, "persistent_workers": False})[1] == []


def test_a_split_without_workers() -> None:
    config, notes = resolved({"num_workers": 4, "validation_ds": {"num_workers": 0, "prefetch_factor": 8}})

    assert config.prefetch_factor == 4
    assert config.loader_for("train").prefetch_factor == 4
    assert config.loader_for("val").prefetch_factor is None
    assert config.loader_for("val").persistent_workers is False
    assert notes == ["validation_ds.prefetch_factor: 8 has no effect with 0 workers; it becomes null"]


def test_a_split_with_workers_below_a_top_level_without() -> None:
    config, notes = resolved({"num_workers": 0, "train_ds": {"num_workers": 4}})

    assert config.prefetch_factor is None
    assert config.loader_for("train").prefetch_factor == 4
    assert config.loader_for("train").persistent_workers is True
    assert notes == []


def test_a_split_that_prefetches_without_workers() -> None:
    config, notes = resolved({"num_workers": 0, "train_ds": {"prefetch_factor": 2}})

    assert config.loader_for("train").prefetch_factor is None
    assert len(notes) == 1


def test_an_option_for_all_splits_outdoes_an_exception_in_the_file() -> None:
    config, _ = resolved({"train_ds": {"batch_size": 8, "drop_last": True}}, overrides={"batch_size": 4})

    assert config.loader_for("train").batch_size == 4
    assert config.loader_for("train").drop_last is True


def test_an_exception_outdoes_its_own_and_weaker_layers() -> None:
    config, _ = resolved({"task": "heart_sound", "batch_size": 2, "train_ds": {"batch_size": 8}})

    assert config.loader_for("train").batch_size == 8
    assert config.loader_for("val").batch_size == 2
    config, _ = resolved({"batch_size": 2}, sets=["train_ds.batch_size=3"])
    assert config.loader_for("train").batch_size == 3


def test_fast_detection_is_weaker_than_the_monitor_section() -> None:
    plain, _ = resolved({"task": "sequence_vae"})
    fast, _ = resolved({"task": "sequence_vae", "fast_detection": True})
    own, _ = resolved({"fast_detection": True, "plot_frequency": 7})

    assert (plain.monitor.update_frequency, plain.monitor.plot_frequency) == (100, 1000)
    assert plain.monitor.window_size == 50
    assert (fast.monitor.update_frequency, fast.monitor.plot_frequency) == (200, 2000)
    assert (own.monitor.update_frequency, own.monitor.plot_frequency) == (200, 7)
    assert FAST_DETECTION == {"update_frequency": 200, "plot_frequency": 2000}


@pytest.mark.parametrize(
    ("cores", "workers", "is_noted"), [(4, 4, False), (4, 5, True), (64, 16, False), (64, 17, True)]
)
def test_many_workers_are_kept_with_a_note(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, is_noted: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)

    config, notes = resolve_config({"train_ds": {"num_workers": workers}}, environ={})

    assert config.loader_for("train").num_workers == workers
    assert bool(notes) == is_noted
