"""Orders that a config asks for: every class equally often, or samples by their weights, and of train alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.loader import create_dataloaders
from flatout.loader.loader import FastDataLoader
from flatout.loader.ordering import stored_column
from flatout.store import StoreReader

FIELDS = {
    "image": {"kind": "array"},
    "label": {"kind": "label"},
    "weight": {"kind": "scalar"},
}
TWO_LABELS = FIELDS | {"side": {"kind": "label"}}


@pytest.fixture
def weighed(raw: Any) -> Any:
    """Four cats to two dogs to one eel, and weights 0, 1, 2, 3 in turn."""
    lines = (raw.folder / "rows.csv").read_text().splitlines()
    rows = []
    for at, line in enumerate(lines[1:]):
        name, image, series, sound, _, text = line.split(",")
        label = ("cat", "cat", "dog", "cat", "eel", "cat", "dog")[at % 7]
        rows.append(f"{name},{image},{series},{sound},{label},{text},{at % 4},{'lr'[at % 2]}")
    (raw.folder / "rows.csv").write_text("\n".join([f"{lines[0]},weight,side", *rows]) + "\n")
    return raw


def epochs_of(config: dict[str, Any], num_epochs: int = 6) -> list[dict[str, torch.Tensor]]:
    loader = create_dataloaders(config).train
    assert loader is not None
    return [batch for _ in range(num_epochs) for batch in loader]


def column(batches: list[dict[str, torch.Tensor]], name: str) -> list[Any]:
    return torch.cat([batch[name] for batch in batches]).tolist()


def test_every_class_comes_equally_often(weighed: Any) -> None:
    config = weighed.prepare(fields=FIELDS, order="class_balanced")
    train, val, _ = create_dataloaders(config)
    assert isinstance(train, FastDataLoader)
    assert isinstance(val, FastDataLoader)
    assert "balanced" in train.state_dict()["order"]
    assert val.state_dict()["order"] == "sequential"
    counts = Counter(column(epochs_of(config), "label"))
    assert len(counts) == 3
    assert max(counts.values()) - min(counts.values()) <= 6  # one an epoch, which is no multiple of three


def test_samples_come_by_their_weights(weighed: Any) -> None:
    config = weighed.prepare(fields=FIELDS, order="weighted", order_field="weight")
    found = Counter(column(epochs_of(config, 30), "weight"))
    assert 0.0 not in found
    assert found[1.0] < found[2.0] < found[3.0]


@pytest.mark.parametrize("order", [{"order": "class_balanced"}, {"order": "weighted", "order_field": "weight"}])
def test_raw_files_come_in_the_same_order(weighed: Any, order: dict[str, Any]) -> None:
    config = weighed.prepare(fields=FIELDS, **order)
    ones, others = epochs_of(config), epochs_of(config | {"use_fast_loader": False})
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_other_splits_are_seen_as_they_are(weighed: Any) -> None:
    config = weighed.prepare(
        fields=FIELDS, order="weighted", order_field="weight", validation_ds={"shuffle": True}
    )
    val = create_dataloaders(config).val
    assert isinstance(val, FastDataLoader)
    assert val.state_dict()["order"].startswith("shuffled")


def test_one_of_several_labels_is_named(weighed: Any) -> None:
    config = weighed.prepare(fields=TWO_LABELS)
    with pytest.raises(
        ConfigError, match=r"one label field, and there is several: label, side\. Name it in order_f"
    ):
        create_dataloaders(config | {"order": "class_balanced"})
    counts = Counter(column(epochs_of(config | {"order": "class_balanced", "order_field": "side"}), "side"))
    assert max(counts.values()) - min(counts.values()) <= 6


def test_what_cannot_be_chosen_by_is_named(weighed: Any) -> None:
    config = weighed.prepare(fields={name: FIELDS[name] for name in ("image", "weight")})
    with pytest.raises(ConfigError, match=r"there is none; fields of one number are: weight"):
        create_dataloaders(config | {"order": "class_balanced"})
    with pytest.raises(ConfigError, match=r"weighted needs order_field.* there are: weight"):
        create_dataloaders(config | {"order": "weighted"})
    for name in ("image", "nothing"):
        with pytest.raises(ConfigError, match=rf"order_field: '{name}' is no field of one number.*: weight"):
            create_dataloaders(config | {"order": "weighted", "order_field": name})
    asked = {"order": "weighted", "order_field": "weight", "train_ds": {"shuffle": False}}
    with pytest.raises(ConfigError, match="weighted draws samples, and shuffle is false"):
        create_dataloaders(config | asked)
    with pytest.raises(ConfigError, match="order"):
        load_config(config | {"order": "by_class"})


def test_weights_that_are_none_are_refused_by_name(weighed: Any) -> None:
    text = (weighed.folder / "rows.csv").read_text()
    (weighed.folder / "rows.csv").write_text(text.replace(",3,", ",-3,"))
    config = weighed.prepare(fields=FIELDS, order="weighted", order_field="weight")
    with pytest.raises(ConfigError, match="weighted by field 'weight': weights must be finite"):
        create_dataloaders(config)


def test_an_encoded_column_is_restored(weighed: Any) -> None:
    fields = FIELDS | {"weight": {"kind": "scalar", "encoding": "float16"}}
    store = StoreReader(weighed.prepare(fields=fields)["preprocessed_data_dir"])
    positions = store.positions("train")
    wanted = [float(store.read(int(at))["weight"]) for at in positions]
    np.testing.assert_allclose(stored_column(store, "weight", positions), wanted)
