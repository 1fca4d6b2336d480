"""Recalls against counting by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.tasks.recalls import Recalls

SAMPLES = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30)


@given(st.lists(SAMPLES, max_size=4))
def test_batches(batches: list[list[tuple[int, bool, bool]]]) -> None:
    recalls = Recalls(4)
    recalls.add(torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), None)
    recalls.reset()
    for batch in batches:
        label, right, valid = (torch.tensor([sample[k] for sample in batch]) for k in range(3))
        recalls.add(label.long(), right.float(), valid.bool())
    counted = [sample for batch in batches for sample in batch if sample[2]]
    shares = []
    for kind in range(4):
        own = [right for label, right, _ in counted if label == kind]
        shares += [sum(own) / len(own)] if own else []
    assert float(recalls.balanced()) == pytest.approx(sum(shares) / max(len(shares), 1), abs=1e-6)


def test_all_of_a_batch_count_without_a_mask() -> None:
    recalls = Recalls(2)
    recalls.add(torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.0, 1.0]), None)
    assert float(recalls.balanced()) == 0.75
    assert float(recalls.balanced(2 * recalls.counts)) == 0.75
