"""docs/augment.md says what the code does: defaults are the config's, snippets run, the list is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from flatout import augment
from flatout.augment.ready import CHAIN
from flatout.config import load_config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "augment.md").read_text(encoding="utf-8")


def rows() -> dict[str, tuple[str, str]]:
    """Class -> (key of the config, defaults) as the page's table has them."""
    found = re.findall(r"^\| `(GPU\w+)` \| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    return {kind: (key, settings.strip()) for kind, key, settings in found}


def test_every_transform_has_its_row() -> None:
    assert {kind: key for kind, (key, _) in rows().items()} == {
        kind.__name__: key for key, kind in CHAIN.items()
    }


@pytest.mark.parametrize("name", CHAIN)
def test_the_defaults_of_the_page_are_those_of_the_config(name: str) -> None:
    section = getattr(load_config({"augmentation": {name: {}}}, environ={}).augmentation, name)
    told = yaml.safe_load("{" + rows()[CHAIN[name].__name__][1].replace("`", "") + "}")
    wanted = section.model_dump(mode="json")
    assert told == wanted


def test_every_public_name_is_on_the_page() -> None:
    assert [name for name in augment.__all__ if f"`{name}" not in PAGE and name not in PAGE] == []
    assert all(getattr(augment, name) is not None for name in augment.__all__)


def test_the_snippets_run() -> None:
    torch.manual_seed(0)
    batch = {"signal": torch.randn(6, 1, 4000), "key": torch.arange(6) * 77}
    names: dict[str, Any] = {"batch": batch, "epoch": 3}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "augment.md", "exec"), names)


def test_the_config_of_the_page_loads() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    signals, images = (load_config(yaml.safe_load(block), environ={}).augmentation for block in blocks)
    assert signals.polarity_inversion is not None
    assert list(images.images.named) == ["flip", "affine", "noise"]
