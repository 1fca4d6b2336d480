"""Contrastive losses against their definition, written out one pair at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.tasks.contrastive import TEMPERATURE, contrast, contrast_parts


def views(num: int, seed: int, dim: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(num, dim, generator=generator, dtype=torch.float64)
    return first, first + 0.5 * torch.randn(num, dim, generator=generator, dtype=torch.float64)


def written_out(first: torch.Tensor, second: torch.Tensor) -> tuple[list[float], list[float]]:
    """Loss and retrieval of each sample, term by term."""
    num, each = len(first), [*first, *second]
    losses, found = [], []
    for at in range(num):
        terms, right = [], []
        for own, other in ((at, at + num), (at + num, at)):
            similar = {
                k: float(torch.cosine_similarity(each[own], each[k], dim=0)) / TEMPERATURE
                for k in range(2 * num)
                if k != own
            }
            terms.append(-similar[other] + math.log(sum(math.exp(value) for value in similar.values())))
            right.append(float(max(similar, key=lambda k: similar[k]) == other))
        losses.append(sum(terms) / 2)
        found.append(sum(right) / 2)
    return losses, found


@settings(max_examples=25)
@given(st.integers(1, 7), st.integers(0, 1000))
def test_cycles(num: int, seed: int) -> None:
    first, second = views(num, seed)
    made = contrast(first, second)
    losses, found = written_out(first, second)
    assert made.loss.tolist() == pytest.approx(losses, abs=1e-4)
    assert made.is_found.tolist() == found


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_parts(num: int, num_parts: int, seed: int) -> None:
    """Every part is a sample of its own; a sample's loss is the mean over its parts."""
    first, second = views(num * num_parts, seed)
    made = contrast_parts(first.view(num, num_parts, -1), second.view(num, num_parts, -1))
    losses = torch.tensor(written_out(first, second)[0]).view(num, num_parts).mean(1)
    torch.testing.assert_close(made.loss, losses.float(), atol=1e-4, rtol=1e-4)


@settings(max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(0, 100))
def test_samples_that_only_fill_up_a_batch_are_nobodys_others(valid: list[bool], seed: int) -> None:
    first, second = views(len(valid), seed)
    kept = torch.tensor([True, *valid[1:]])
    whole, alone = contrast(first, second, kept), contrast(first[kept], second[kept])
    torch.testing.assert_close(whole.loss[kept], alone.loss)
    assert torch.equal(whole.is_found[kept], alone.is_found)
    assert whole.loss.isfinite().all()
    parts = [view[:, None].repeat(1, 2, 1) for view in (first, second)]
    made = contrast_parts(*parts, kept).loss[kept]
    torch.testing.assert_close(made, contrast_parts(*(part[kept] for part in parts)).loss)


def test_gradients_are_finite_with_samples_that_do_not_count() -> None:
    first, second = (view.float().requires_grad_() for view in views(4, 0))
    contrast(first, second, torch.tensor([True, False, True, False])).loss[[0, 2]].sum().backward()
    assert first.grad is not None
    assert first.grad.isfinite().all()
    assert torch.equal(first.grad[[1, 3]], torch.zeros(2, 5))


def test_half_precision_is_widened() -> None:
    first, second = (view.to(torch.bfloat16) for view in views(3, 0))
    assert contrast(first, second).loss.dtype == torch.float32
