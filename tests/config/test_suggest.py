"""The nearest known key, across sections and spellings."""

from __future__ import annotations

import pytest

from flatout.config.suggest import nearest_key, nearest_name


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("batchsize", "batch_size"),
        ("batchSize", "batch_size"),
        ("batch-size", "batch_size"),
        ("num_worker", "num_workers"),
        ("cache_size", "cache_config.cache_size"),
        ("cache_config.cache_sise", "cache_config.cache_size"),
        ("cache_cfg", "cache_config"),
        ("preload_val", "cache_config.preload_val_data"),
        ("ims_per_gp", "batch_size"),
        ("acumulate_grad_batches", "gradient_accumulation_steps"),
        ("hardwre", "hardware"),
        ("train_dss", "train_ds"),
        ("train_ds.batch_sise", "train_ds.batch_size"),
        ("cache_config.batch_size", "batch_size"),
        ("fields.ct.spaceing", "fields.ct.spacing"),
        ("patience", "early_stopping.patience"),
        ("spacing", "fields.NAME.spacing"),
        ("fields.label.size", None),
        ("xyzzy", None),
    ],
)
def test_nearest(unknown: str, nearest: str | None) -> None:
    assert nearest_key(tuple(unknown.split("."))) == nearest


def test_the_nearest_of_any_names() -> None:
    names = ("path", "Label", "file_name")
    assert nearest_name("paht", names) == "path"
    assert nearest_name("lable", names) == "Label"
    assert nearest_name("FileName", names) == "file_name"
    assert nearest_name("zebra", names) is None
    assert nearest_name("path", ()) is None
