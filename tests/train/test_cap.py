"""The cap on the GPU's memory is one of the GPU that is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flatout.train.cap import cap_device
from flatout.train.largest_batch import MEMORY_SHARE


@pytest.mark.parametrize(("name", "is_capped"), [("cuda:1", True), ("cpu", False)])
def test_the_chosen_device_is_capped(name: str, is_capped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    capped: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: capped.append(given))
    device = torch.device(name)
    cap_device(device)
    assert capped == ([(MEMORY_SHARE, device)] if is_capped else [])
