"""docs/augment.md has every transform of images with the defaults that the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.augment.image_cases import IMAGE_CASES

from flatout import augment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "augment.md").read_text(encoding="utf-8")
OTHERS = {"GPURandomCrop", "MixUp", "CutMix"}
NAMES = sorted({type(make(1.0)).__name__ for make in IMAGE_CASES.values()} | OTHERS)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_the_page_are_those_of_the_class(name: str) -> None:
    told = re.findall(rf"^\| `{name}` \| `\(([^`]+)\)` \|", PAGE, re.MULTILINE)
    settings = inspect.signature(getattr(augment, name)).parameters.values()
    assert told == [
        ", ".join(
            one.name if one.default is inspect.Parameter.empty else f"{one.name}={one.default!r}"
            for one in settings
        )
    ]
