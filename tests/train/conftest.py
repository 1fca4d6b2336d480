"""A prepared store of 22 tiny samples, and configs over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tiny import config_of, prepare, write_rows


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of a tiny product only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files whose store is made; do not change either."""
    path = write_rows(tmp_path_factory.mktemp("tiny") / "raw")
    prepare(config_of(path, path.parent))
    return path


@pytest.fixture
def make_config(manifest: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Settings in, a config with its runs in this test's folder out."""
    return lambda **settings: config_of(manifest, tmp_path / "runs", **settings)
