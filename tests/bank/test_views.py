"""BankViews: a bank that is made late, told in words, and given back."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from tests.bank.transforms import filtered, scaled

from flatout.bank import BankViews, ViewBank
from flatout.errors import LoaderError
from flatout.store import StoreReader


def views_of(store: StoreReader, **settings: Any) -> BankViews:
    given = {"transform": scaled, "seed": 4, "view_cache_refresh_epochs": 3}
    return BankViews(store, "train", has_processes=False, **{**given, **settings})


def test_views_are_the_banks(store: StoreReader) -> None:
    keys = torch.from_numpy(store.numbers["key_hash"][store.positions("train")][:5].view("i8").copy())
    batch = {"key": keys, "label": torch.arange(5)}
    views = views_of(store)
    same = {"seed": 4, "view_cache_refresh_epochs": 3, "background": False, "num_workers": 0}
    with ViewBank(store, "train", transform=scaled, **same) as bank:  # type: ignore[arg-type]
        for epoch in (0, 2, 3):
            made, wanted = views(batch, epoch), bank(batch, epoch)
            assert made.keys() == wanted.keys()
            assert all(torch.equal(made[name], wanted[name]) for name in wanted)
    folder = views.bank.folder
    assert folder.exists()
    views.close()
    assert not folder.exists()
    with pytest.raises(LoaderError, match="closed"):
        views(batch, 3)


def test_nothing_is_made_before_the_first_batch(store: StoreReader) -> None:
    views = views_of(store, field="no such field")
    copy = pickle.loads(pickle.dumps(views))
    assert copy._bank is None
    views.close()
    with pytest.raises(LoaderError, match="closed"):
        views.bank  # noqa: B018


def test_its_text_is_its_settings(store: StoreReader) -> None:
    assert str(views_of(store)) == str(views_of(store))
    other = BankViews(store, "train", transform=scaled, seed=4, view_cache_refresh_epochs=3)
    assert str(views_of(store)) == str(other)
    assert str(views_of(store)) != str(views_of(store, view_cache_refresh_epochs=4))
    assert str(views_of(store)) != str(views_of(store, transform=filtered))
    for transform in (scaled, partial(scaled, factor=2)):  # a resumed run has them at other addresses
        assert "scaled" in str(views_of(store, transform=transform))
        assert "0x" not in str(views_of(store, transform=transform))
