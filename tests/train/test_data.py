"""RunData: what it gives back at the end, however the augmentation is wrapped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from flatout.bank import BankViews
from flatout.errors import LoaderError
from flatout.train.data import RunData


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_view_bank_is_closed_after_the_loader(is_wrapped: bool) -> None:
    store: Any = None
    bank = BankViews(store, "train")
    ended: list[bool] = []
    train = SimpleNamespace(close=lambda: ended.append(bank._is_closed))
    loaders: Any = SimpleNamespace(splits={"train": train})
    RunData(loaders, nn.Sequential(bank) if is_wrapped else bank).close()
    assert ended == [False]
    with pytest.raises(LoaderError, match="closed"):
        bank.bank  # noqa: B018
