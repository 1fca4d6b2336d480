"""What is seen while a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flatout.train import fit


def test_the_bar_counts_epochs_as_their_lines_do(
    make_config: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    fit(make_config(), shows_bar=True, say=said.append)
    told = "".join(capsys.readouterr())
    assert "waiting for data=" in told
    for epoch in ("epoch 1/2:", "epoch 2/2:"):
        assert epoch in told
        assert any(line.startswith(epoch) for line in said)
