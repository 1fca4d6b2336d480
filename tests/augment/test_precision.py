"""Narrow dtypes are widened, and come back rounded and within their range."""

from __future__ import annotations

import pytest
import torch

from flatout.augment.memory import new_batch
from flatout.augment.precision import narrowed, widened


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8])
def test_narrow_dtypes_are_widened(dtype: torch.dtype) -> None:
    x = torch.arange(5).to(dtype)
    assert widened(x).dtype == torch.float32
    assert narrowed(widened(x), dtype).equal(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_others_stay(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    assert widened(x) is x
    assert narrowed(x, dtype) is x


def test_bytes_are_rounded_and_cut_off() -> None:
    found = narrowed(torch.tensor([-3.0, 0.4, 0.6, 254.9, 255.4, 300.0]), torch.uint8)
    assert found.tolist() == [0, 0, 1, 255, 255, 255]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.float32, torch.int64, torch.complex128])
def test_new_memory_has_shape_and_dtype(dtype: torch.dtype) -> None:
    made = new_batch((2, 3, 0), dtype)
    assert (made.shape, made.dtype) == ((2, 3, 0), dtype)
    assert new_batch((2, 3), dtype).fill_(1).sum() == 6
