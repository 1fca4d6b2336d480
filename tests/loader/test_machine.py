"""What is found out about this machine, with the limits of a container over it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flatout.loader.machine import Gpu, count_cores, describe_machine
from flatout.store.cgroup import Limits


def test_limits_count_not_the_host(tmp_path: Path) -> None:
    machine = describe_machine(limits=Limits(1000, 600, 1), shared_memory=tmp_path)
    assert (machine.memory_bytes, machine.free_bytes, machine.num_cores) == (1000, 600, 1)
    assert machine.shared_bytes is not None
    assert machine.shared_bytes > 0


def test_without_limits_it_is_the_host(tmp_path: Path) -> None:
    machine = describe_machine(limits=Limits(), shared_memory=tmp_path / "none")
    assert machine.num_cores == count_cores() <= (os.cpu_count() or 1)
    assert 0 < machine.free_bytes <= machine.memory_bytes
    assert machine.shared_bytes is None


def test_the_limits_of_this_process_are_readable() -> None:
    assert describe_machine().num_cores >= 1


def test_cuda_is_asked_only_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: 1 / 0)
    assert describe_machine().gpu is None


def test_the_gpu_has_name_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="Fast 24", total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    assert describe_machine().gpu == Gpu("Fast 24", 24 << 30)
    assert describe_machine(look_for_gpu=False).gpu is None
