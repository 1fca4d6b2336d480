"""Where a run trains, on machines of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.train.device import Place, choose_place


def place(num_cuda: int = 0, has_mps: bool = False, **settings: Any) -> Place:
    return choose_place(load_config(settings, environ={}), num_cuda, has_mps)


@pytest.mark.parametrize(
    ("found", "accelerator", "devices"),
    [
        (place(), "cpu", 1),
        (place(2), "cuda", "auto"),
        (place(has_mps=True), "mps", "auto"),
        (place(2, device="cpu"), "cpu", 1),
        (place(2, device="cpu", devices=2), "cpu", 2),
        (place(device="cpu", devices=[0, 1]), "cpu", 2),
        (place(2, device="cuda:1"), "cuda", [1]),
        (place(4, devices=[1, 3]), "cuda", [1, 3]),
        (place(4, devices=2), "cuda", 2),
    ],
)
def test_the_place(found: Place, accelerator: str, devices: Any) -> None:
    assert (found.accelerator, found.devices, found.notes) == (accelerator, devices, ())


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_said_once(device: str) -> None:
    found = place(device=device)
    assert found.accelerator == "cpu"
    assert found.notes == (f"device: {device} is not there; the CPU is used",)


@pytest.mark.parametrize("settings", [{"devices": 3}, {"devices": [0, 5]}, {"device": "cuda:2"}])
def test_more_devices_than_there_are(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="this machine has 2; 'auto' takes what is there"):
        place(2, **settings)


def test_how_many_processes_and_the_first_device() -> None:
    assert place(4, devices=[1, 3]).num_devices == 2
    assert place(4, devices=[1, 3]).device == torch.device("cuda", 1)
    assert place(device="cpu", devices=3).num_devices == 3
    assert place().device == torch.device("cpu")
