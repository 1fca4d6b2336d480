"""AMX: a CPU that reports tiles is believed only once a product in bfloat16 has come through."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flatout.train import amx
from flatout.train.precision import choose_precision, describe_device

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """Nothing is remembered of other trials."""
    amx._dies.cache_clear()
    yield
    amx._dies.cache_clear()


@pytest.fixture
def tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU that reports tiles and knows bfloat16."""
    info = tmp_path / "cpuinfo"
    info.write_text("flags : fpu avx512f amx_bf16 amx_tile amx_int8\n")
    monkeypatch.setattr(amx, "_CPU_INFO", info)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True})
    return info


def test_tiles_that_end_a_process_are_broken(tiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "TRIAL", DIES)
    assert amx.has_broken_tiles()


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("trial", ["pass", "raise RuntimeError", "raise SystemExit(3)", KILLED])
def test_other_failures_say_nothing(trial: str, tiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "TRIAL", trial)
    assert not amx.has_broken_tiles()


def test_a_trial_without_end_says_nothing(tiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(amx, "TRIAL_S", 0.2)
    assert not amx.has_broken_tiles()


def test_a_cpu_without_tiles_is_not_tried(tiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "TRIAL", DIES)
    tiles.write_text("flags : fpu avx2\n")
    assert not amx.has_broken_tiles()
    tiles.unlink()
    assert not amx.has_broken_tiles()


def test_the_real_product_is_tried(tiles: Path) -> None:
    # These tests run below the level at which tiles are used, wherever that is needed.
    assert subprocess.run([sys.executable, "-c", amx.TRIAL], check=False).returncode == 0
    assert not amx.has_broken_tiles()


def test_precision_falls_back_and_says_why(tiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "TRIAL", DIES)
    found = describe_device(torch.device("cpu"))
    precision, note = choose_precision("auto", found)
    assert precision == "32-true"
    assert note is not None
    assert f"{amx.LIMIT}={amx.BELOW_AMX}" in note
    assert describe_device(torch.device("cpu"), "32").trouble is None  # which needs no trial
