"""Views as a store: the same whoever makes them, continued after a stop, made anew where a sample changed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tests.bank.conftest import NUM_ITEMS, Signals, make_store
from tests.bank.transforms import chain, failing, scaled

from flatout.bank.fields import kept_fields
from flatout.bank.order import ViewOrder
from flatout.bank.recipe import ViewRecipe
from flatout.errors import ConfigError, TooManyBadError
from flatout.loader import FastDataset
from flatout.store import StoreReader, verify
from flatout.store.progress import Silent


def order(store: Any, split: str | None = None, **settings: Any) -> ViewOrder:
    recipe = settings.pop("recipe", None) or ViewRecipe(scaled, seed=2)
    keep = settings.pop("keep", ())
    dataset = FastDataset(store, split, fields=["signal", *keep])
    return ViewOrder(dataset, "signal", recipe, keep=keep, **settings)


class StopAfter(Silent):
    """Ctrl-C after so many rows."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def advance(self, rows: int) -> None:
        self.left -= rows
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("split", [None, "train", "val"])
def test_every_sample_has_the_views_of_its_key(store: StoreReader, tmp_path: Path, split: str | None) -> None:
    made = order(store, split, epoch=3, keep=("label", "age"))
    stats = made.make(tmp_path / "views", num_workers=0)
    views = StoreReader(tmp_path / "views")
    assert verify(tmp_path / "views")
    positions = made.dataset.positions
    assert stats.num_samples == len(views) == len(positions)
    assert np.array_equal(views.numbers["key_hash"], store.numbers["key_hash"][positions])
    assert [views.meta.splits[n] for n in views.numbers["split"]] == [
        store.meta.splits[n] for n in store.numbers["split"][positions]
    ]
    for at in (0, len(views) // 2, len(views) - 1):
        sample, source = views.read(at), store.read(int(positions[at]))
        own = made.recipe.make(made.dataset[at]["signal"][None], made.dataset[at]["key"][None], 3)
        assert sample["label"] == source["label"]
        assert sample["age"] == source["age"]
        for name in made.recipe.names:
            np.testing.assert_array_equal(sample[name], own[name][0].numpy())


@pytest.mark.parametrize("recipe", [ViewRecipe(scaled), ViewRecipe(chain=chain())], ids=["transform", "chain"])
def test_a_run_that_was_stopped_is_continued_to_the_same_store(
    store: StoreReader, tmp_path: Path, recipe: ViewRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 2048)
    whole = order(store, recipe=recipe).make(tmp_path / "whole", num_workers=0)
    assert len(StoreReader(tmp_path / "whole").meta.shards) > 8
    with pytest.raises(KeyboardInterrupt):
        order(store, recipe=recipe).make(tmp_path / "views", num_workers=0, progress=StopAfter(NUM_ITEMS // 2))
    finished = {path.name for path in (tmp_path / "views" / "shards").glob("*.h5")}
    assert finished
    again = order(store, recipe=recipe).make(tmp_path / "views", num_workers=0)
    assert again.content_hash == whole.content_hash
    assert finished <= {shard.file for shard in StoreReader(tmp_path / "views").meta.shards}


@pytest.mark.slow
def test_worker_processes_make_the_same_store(store: StoreReader, tmp_path: Path) -> None:
    made = order(store, recipe=ViewRecipe(chain=chain()))
    alone = made.make(tmp_path / "alone", num_workers=0)
    assert made.make(tmp_path / "together", num_workers=2).content_hash == alone.content_hash


def test_what_is_up_to_date_stays(store: StoreReader, tmp_path: Path) -> None:
    order(store).make(tmp_path / "views", num_workers=0)
    again = order(store).make(tmp_path / "views", num_workers=0)
    assert (again.processed, again.unchanged) == (0, NUM_ITEMS)


@pytest.mark.parametrize(
    "change",
    [{"epoch": 1}, {"recipe": ViewRecipe(scaled, seed=3)}, {"recipe": ViewRecipe(chain=chain(), seed=2)}],
)
def test_other_settings_make_all_views_anew(store: StoreReader, tmp_path: Path, change: dict[str, Any]) -> None:
    order(store).make(tmp_path / "views", num_workers=0)
    assert order(store, **change).make(tmp_path / "views", num_workers=0).processed == NUM_ITEMS


def test_travelled_by_value_it_makes_the_same_plan(store: StoreReader) -> None:
    """The process behind may be taken over, so its shards must be those that this one would make."""

    def local(x: Any) -> Any:
        return x + 1

    made = order(store, recipe=ViewRecipe(local))
    there = pickle.loads(cloudpickle.dumps(made))
    assert there.recipe.transform.__code__ is not local.__code__
    assert there.job().fingerprint == made.job().fingerprint
    assert order(store, recipe=ViewRecipe(lambda x: x + 2)).job().fingerprint != made.job().fingerprint


def test_only_views_of_changed_samples_are_made_anew(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    before = order(tmp_path / "store").make(tmp_path / "views", num_workers=0)
    make_store(tmp_path / "other", Signals(changed=7))
    after = order(tmp_path / "other").make(tmp_path / "views", num_workers=0)
    assert (after.processed, after.unchanged) == (1, NUM_ITEMS - 1)
    assert after.content_hash != before.content_hash


def test_a_sample_without_views_is_named(store: StoreReader, tmp_path: Path) -> None:
    with pytest.raises(TooManyBadError, match="above zero"):
        order(store, recipe=ViewRecipe(failing)).make(tmp_path / "views", num_workers=0)
    made = order(store, recipe=ViewRecipe(failing)).make(
        tmp_path / "views", num_workers=0, max_bad_fraction=0.9
    )
    negative = sum(store.read(at)["signal"][0, 0] <= 0 for at in range(NUM_ITEMS))
    assert made.num_samples == negative
    assert made.failed == NUM_ITEMS - negative


def test_a_damaged_sample_costs_only_its_own_views(tmp_path: Path) -> None:
    folder = make_store(tmp_path / "store", signal={"kind": "signal", "compression": "zstd"})
    shard = StoreReader(folder).shard(0)
    place = int(shard.tables["flatout/chunks/signal"][5, 0])
    path = folder / "shards" / shard.meta.file
    data = bytearray(path.read_bytes())
    data[place + 40] ^= 0xFF
    path.write_bytes(bytes(data))
    made = order(folder, recipe=ViewRecipe(chain=chain())).make(
        tmp_path / "views", num_workers=0, max_bad_fraction=0.5
    )
    assert (made.failed, [row.key for row in made.bad]) == (1, ["5"])


def test_samples_that_are_no_signals_stop_it_at_once(store: StoreReader, tmp_path: Path) -> None:
    dataset = FastDataset(store, fields=["label"])
    with pytest.raises(ConfigError, match="field 'label'"):
        ViewOrder(dataset, "label", ViewRecipe(chain=chain())).make(tmp_path / "views", num_workers=0)


def test_ragged_signals_give_ragged_views(tmp_path: Path) -> None:
    class Ragged(Signals):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"signal": super().__getitem__(at)["signal"][:, : 20 + at % 5], "label": 0}

    folder = make_store(tmp_path / "store", Ragged(9))
    recipe = ViewRecipe(chain=chain(), num_substructures=0)
    made = order(folder, recipe=recipe)
    made.make(tmp_path / "views", num_workers=0)
    views = StoreReader(tmp_path / "views")
    assert [views.read(at)["view1"].shape for at in range(9)] == [(1, 20 + at % 5) for at in range(9)]


def test_float16_halves_the_views(store: StoreReader, tmp_path: Path) -> None:
    order(store, encoding="float16").make(tmp_path / "views", num_workers=0)
    assert StoreReader(tmp_path / "views").fields["view1"].stored_dtype == np.float16
    with pytest.raises(ConfigError, match="float17"):
        order(store, encoding="float17")


def test_fields_to_keep(store: StoreReader) -> None:
    assert kept_fields(store, None, ["view1"]) == ["age", "label"]
    assert kept_fields(store, ["signal"], ["view1"]) == ["signal"]
    with pytest.raises(ConfigError, match="no field 'lable'"):
        kept_fields(store, ["lable"], [])
    with pytest.raises(ConfigError, match="name of a view"):
        kept_fields(store, ["age"], ["age"])
