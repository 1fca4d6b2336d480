"""Environment, --set and options become layers."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.config.overrides import environment_layer, options_layer, sets_layer
from flatout.errors import ConfigError


def test_environment_nests_by_two_underscores_and_reads_yaml() -> None:
    layer = environment_layer(
        {
            "FLATOUT_BATCH_SIZE": "4",
            "FLATOUT_CACHE_CONFIG__CACHE_SIZE": "500",
            "FLATOUT_LEARNING_RATE": "1e-4",
            "FLATOUT_EVAL_SCALES": "[0.5, 1]",
            "FLATOUT_PREFETCH_FACTOR": "",
            "FLATOUT_": "x",
            "PATH": "/bin",
        }
    )

    assert layer.values == {
        "batch_size": 4,
        "cache_config": {"cache_size": 500},
        "learning_rate": 1e-4,
        "eval_scales": [0.5, 1],
        "prefetch_factor": None,
    }
    assert layer.spelling(("cache_config", "cache_size")) == ("FLATOUT_CACHE_CONFIG__CACHE_SIZE",)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch_size=4", {"batch_size": 4}),
        ("a.b=c", {"a": {"b": "c"}}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": None}),
        ("manifest=s3://x/y.csv", {"manifest": "s3://x/y.csv"}),
        ("fields.ct.window=[-200, 300]", {"fields": {"ct": {"window": [-200, 300]}}}),
        ("cache_config={enable_cache: false}", {"cache_config": {"enable_cache": False}}),
        ("crc=off", {"crc": "off"}),
    ],
)
def test_set_takes_yaml(text: str, values: dict[str, Any]) -> None:
    assert sets_layer([text]).values == values


def test_a_later_set_wins() -> None:
    assert sets_layer(["a.b=1", "a.c=2", "a.b=3"]).values == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize("text", ["batch_size", "=4", "a..b=1", ".a=1", "a=[1"])
def test_a_set_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set "):
        sets_layer([text])


def test_options_that_were_not_given_are_left_out() -> None:
    layer = options_layer({"batch_size": 4, "manifest": None, "cache_config.cache_size": 0})

    assert layer.values == {"batch_size": 4, "cache_config": {"cache_size": 0}}
