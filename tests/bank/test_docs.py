"""docs/views.md says what the code does: its snippets run on a store, its commands too."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bank.conftest import Signals, make_store

from flatout import bank
from flatout.cli.main import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "views.md").read_text(encoding="utf-8")

MINE = """
import torch
from flatout.augment import GPUTimeShift

chain = GPUTimeShift(p=1.0)


def band(x, rng):
    return x * rng.uniform()


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(48, 2)

    def forward(self, x):
        return self.linear(x)[:, 0]
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that the page speaks of."""
    make_store(tmp_path / "store", Signals(20))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "config.yaml").write_text("num_workers: 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


def test_the_snippets_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flatout.bank import bank as banks

    made = banks.make_shared
    monkeypatch.setattr(banks, "make_shared", lambda *a, **k: made(*a, **{**k, "num_workers": 0}))
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "views.md", "exec"), names)
    told = re.search(r"print\(bank.diversity\)  # (.*)", PAGE)
    assert told is not None
    assert capsys.readouterr().out.strip() == told[1]


def test_the_commands_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mine import Encoder  # type: ignore[import-not-found]

    torch.save(Encoder().state_dict(), here / "encoder.ckpt")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "flatout"
        extra = ["--num-workers", "0"] if "precompute-views" in line else []
        assert main([*arguments, *extra]) == 0, capsys.readouterr().err
    found = torch.load(here / "views.pt", weights_only=True)
    assert found["view2"].shape == (20, 1, 48)
    assert np.isfinite(found["subs1"].numpy()).all()


def test_every_public_name_is_on_the_page() -> None:
    pages = PAGE + (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text()
    hidden = {"ViewRecipe", "Diversity"}  # met through others
    assert [name for name in bank.__all__ if name not in pages and name not in hidden] == []
    assert all(getattr(bank, name) is not None for name in bank.__all__)
