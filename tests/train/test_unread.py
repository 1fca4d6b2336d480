"""Settings that a task does not follow are named, those that it follows are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.train.tiny import Tiny

from flatout.config import load_config
from flatout.train import fit, load_task
from flatout.train.unread import unread

CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("speech", {"model": {"dim": 8, "latent_dim": 4}}, ["model.latent_dim"]),
    ("speech", {"eval_scales": [2.0], "mode": "finetune"}, ["mode", "eval_scales"]),
    ("speech", {"augmentation": {"time_mask": {"p": 1}, "time_shift": {"p": 1}}}, ["augmentation.time_shift"]),
    ("heart_sound", {"augmentation": {"time_shift": {"p": 1.0}}, "mode": "supervised"}, []),
    ("heart_sound", {"augmentation": {"images": {"flip": {}}}}, ["augmentation.images"]),
    ("cardiac_ct", {"augmentation": {"low_pass": {}}, "mode": "pretrain"}, ["mode", "augmentation.low_pass"]),
    ("segmentation", {"eval_scales": [0.5], "kl_annealing": {"warmup": 3}}, ["kl_annealing"]),
    ("sequence_vae", {"model": {"network": "resnet", "num_heads": 2}}, ["model.network"]),
]


@pytest.mark.parametrize(("task", "settings", "names"), CASES)
def test_what_has_no_effect_is_named(task: str, settings: dict[str, Any], names: list[str]) -> None:
    config = load_config({"task": task, **settings}, environ={})
    wanted = [f"{name}: task {task} does not read it; no effect" for name in names]
    assert unread(config, task, load_task(config).reads) == wanted


@pytest.mark.parametrize("task", ["cardiac_ct", "heart_sound", "speech", "segmentation", "sequence_vae"])
def test_nothing_is_said_of_defaults(task: str) -> None:
    """Also where a file has every setting, as that of a run does."""
    whole = load_config({"task": task}, environ={}).model_dump(mode="json")
    config = load_config(whole, environ={})
    assert unread(config, task, load_task(config).reads) == []


class Picky(Tiny):
    reads = ("model.num_layers",)


def test_a_run_says_it_once_if_its_task_does(make_config: Callable[..., dict[str, Any]]) -> None:
    said: list[str] = []
    settings: dict[str, Any] = {"epochs": 1, "model": {"dim": 3, "num_layers": 2}}
    fit(make_config(**settings), say=said.append)  # a task of one's own may read anything
    assert not any("does not read it" in text for text in said)
    result = fit(make_config(**settings, task="tests.train.test_unread:Picky"), say=said.append)
    wanted = "model.dim: task tiny does not read it; no effect"
    assert [text for text in said if "does not read it" in text] == [wanted]
    assert wanted in result.notes
