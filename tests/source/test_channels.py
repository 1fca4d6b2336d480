"""List columns are channels of one sequence by the lengths of their first lists."""

from __future__ import annotations

import pytest

from flatout.source.channels import equally_long


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ({"x": [2, 3, 4], "y": [2, 3, 4]}, [["x", "y"]]),
        ({"x": [2, 3, 4], "y": [2, 3, 5]}, [["x"], ["y"]]),
        ({"x": [2, 3, 4, 5, 6], "y": [2, None, 4, 5, 6], "z": [0, 3, 4, 5, 6]}, [["x", "y", "z"]]),
        ({"x": [None, 3, 4], "y": [5, 3, 4], "z": [6, 3, 4]}, [["x", "y"], ["z"]]),
        ({"x": [None, 3, 4], "z": [6, 3, 5], "y": [None, 3, 4]}, [["x", "y"], ["z"]]),
        ({"x": [5, 3, 4], "a": [None, 3, 4], "y": [5, 3, 4]}, [["x", "a", "y"]]),
        ({"x": [0, 0, 0], "y": [0, 0, 0]}, [["x", "y"]]),
        ({"x": [2, 2], "y": [0, 2]}, [["x"], ["y"]]),  # one row of two is no reason
        ({}, []),
    ],
)
def test_rows_without_a_list_do_not_tell_columns_apart(
    lengths: dict[str, list[int | None]], groups: list[list[str]]
) -> None:
    assert equally_long(lengths) == groups
