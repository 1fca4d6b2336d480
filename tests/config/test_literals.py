"""Python assignments are parsed and never run."""

from __future__ import annotations

import pytest

from flatout.config.literals import parse_assignments
from flatout.errors import ConfigError


def test_settings_as_they_are_copied_out_of_a_script() -> None:
    text = '''"""Settings."""
ims_per_gpu=64
num_workers=8,              # as in a call
eval_scales = [0.5, 1.0]
shape = (8,)
torch.backends.cudnn.deterministic = False
'''

    values, lines = parse_assignments(text, "x")

    assert values == {
        "ims_per_gpu": 64,
        "num_workers": 8,
        "eval_scales": [0.5, 1.0],
        "shape": (8,),
        "torch": {"backends": {"cudnn": {"deterministic": False}}},
    }
    assert lines["num_workers",] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\na = 2", "x, line 2: 'a' stands here and in line 1"),
        ("a = __import__('os').getpid()", "x, line 1: 'a' is no plain value; code is not run"),
        ("a = 1\nimport os", "x, line 2: wanted lines such as"),
        ("a = b = 1", "x, line 1: wanted lines such as"),
        ("a = (", "x, line 1: '\\(' was never closed"),
    ],
)
def test_anything_else_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_assignments(text, "x")
