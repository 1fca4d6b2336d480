"""StandardDataset: samples decoded when asked for, equal to those of the store."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from flatout.errors import ConfigError, LoaderError
from flatout.loader.collate import Collate
from flatout.loader.dataset import FastDataset
from flatout.loader.machine import Machine
from flatout.loader.raw import RawSource
from flatout.loader.standard import StandardDataset
from flatout.store import DataPreprocessor

FIELDS: dict[str, dict[str, Any]] = {
    "plain": {
        "image": {"kind": "array"},
        "series": {"kind": "sequence"},
        "label": {"kind": "label"},
        "text": {"kind": "text"},
    },
    "encoded": {
        "image": {"kind": "array", "encoding": "uint8"},
        "series": {"kind": "sequence", "encoding": "float16", "compression": "zstd"},
        "sound": {"kind": "signal", "source_rate": 100, "encoding": "int16", "ragged": True},
        "label": {"kind": "label"},
    },
    "halved": {
        "image": {"kind": "array", "encoding": "bfloat16", "dtype": "float32"},
        "label": {"kind": "label"},
    },
    "windows": {
        "sound": {
            "kind": "signal",
            "source_rate": 100,
            "split": "windows",
            "length": 10,
            "normalise": "sample",
        },
        "label": {"kind": "label"},
    },
}

TRANSFORM = """
import numpy as np

def halves(row):
    values = np.load(row["image"])
    if row["key"] == "s05":
        raise ValueError("no good")
    if row["label"] == "cat":
        return [{"half": half, "label": 3} for half in values]
    return {"half": values[0], "label": 1}
"""


def samples_of(dataset: Any) -> dict[int, dict[str, torch.Tensor]]:
    return {int(sample["key"]): sample for sample in (dataset[at] for at in range(len(dataset)))}


def assert_equal(ones: dict[int, dict[str, torch.Tensor]], others: dict[int, dict[str, torch.Tensor]]) -> None:
    assert list(ones) == list(others)
    for key, sample in ones.items():
        assert sample.keys() == others[key].keys()
        for name, value in sample.items():
            assert value.dtype == others[key][name].dtype
            assert torch.equal(value, others[key][name]), name


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("has_store", [False, True])
def test_samples_are_those_of_the_store_bit_for_bit(raw: Any, kind: str, has_store: bool) -> None:
    without = raw.config(fields=FIELDS[kind], preprocessed_data_dir=None)
    config = raw.prepare(fields=FIELDS[kind])
    for split in ("train", "val", "test"):
        standard = StandardDataset(config if has_store else without, split)
        assert_equal(samples_of(standard), samples_of(FastDataset(raw.store, split)))


def test_a_transform_of_the_users_own(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (raw.folder / "my_halves.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(str(raw.folder))
    config = raw.config(transform="my_halves:halves") | {"fields": {}, "max_bad_fraction": 0.1}
    unprepared = StandardDataset(config)
    with pytest.raises(LoaderError, match=r"'s05' .*ValueError: no good"):
        samples_of(unprepared)
    DataPreprocessor(config).run()
    assert_equal(samples_of(StandardDataset(config)), samples_of(FastDataset(raw.store)))


def test_a_bad_row_is_named_with_key_path_and_remedy(raw: Any) -> None:
    (raw.folder / "s07.npy").write_bytes(b"garbage")
    dataset = StandardDataset(raw.config())
    with pytest.raises(
        LoaderError, match=r"sample 's07' \(s07\.npy\) cannot be read: decode: .*flatout prepare"
    ):
        dataset[7]
    with pytest.raises(LoaderError, match="'s07'"):
        StandardDataset(raw.config(), cache_in_memory=True)
    config = raw.prepare(max_bad_fraction=0.5)
    assert len(samples_of(StandardDataset(config))) == 23


def test_a_file_that_gives_fewer_parts_than_the_store_says(raw: Any, windows: dict[str, Any]) -> None:
    config = raw.prepare(fields=windows)
    np.save(raw.folder / "s02-sound.npy", np.zeros(11, np.float32))
    dataset = StandardDataset(config)
    at = 2 + 3 + 3  # the last window of s02
    with pytest.raises(LoaderError, match=r"'s02'.*gives 1 samples, at least 4"):
        dataset[at]


def test_rows_that_split_although_the_first_did_not(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (raw.folder / "late_split.py").write_text(
        "import numpy as np\n"
        "def run(row):\n"
        "    one = {'x': np.zeros(3)}\n"
        "    return [one, one] if row['key'] == 's20' else one\n"
    )
    monkeypatch.syspath_prepend(str(raw.folder))
    dataset = StandardDataset(raw.config(transform="late_split:run") | {"fields": {}})
    assert len(dataset) == 24
    with pytest.raises(LoaderError, match=r"'s20'.*gives 2 samples, one sample expected: prepare a store"):
        dataset[20]


def test_indices(prepared: dict[str, Any]) -> None:
    dataset = StandardDataset(prepared)
    assert dataset[-1]["key"] == dataset[len(dataset) - 1]["key"]
    for index in (24, -25):
        with pytest.raises(IndexError, match=f"{index} of a dataset with 24"):
            dataset[index]


def test_a_split_without_rows(prepared: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"split 'dev' has no rows; there are: test, train, val"):
        StandardDataset(prepared, "dev")


def test_splits_share_a_source(prepared: dict[str, Any]) -> None:
    source = RawSource(prepared)
    assert sum(len(StandardDataset(source, split)) for split in source.splits) == 24


def test_a_kept_split_is_not_decoded_again_nor_changed(raw: Any) -> None:
    dataset = StandardDataset(raw.config(), cache_in_memory=True, transform=zeroed)
    for name in raw.names:
        (raw.folder / f"{name}.npy").unlink()
    dataset[3]
    dataset.transform = None
    assert dataset[3]["image"].any()


def zeroed(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sample["image"].zero_()
    return sample


def test_a_split_too_large_to_keep_is_refused(prepared: dict[str, Any]) -> None:
    with pytest.raises(LoaderError, match=r"cache_in_memory of split 'val'.*do not fit"):
        StandardDataset(prepared, "val", cache_in_memory=True, machine=Machine("linux", 1, 100, 100))


def test_parts_of_one_row_do_not_share_memory(raw: Any) -> None:
    dataset = StandardDataset(raw.config(fields=FIELDS["windows"]))
    dataset[0]["label"].fill_(77)
    dataset[0]["sound"].zero_()
    assert dataset[0]["label"] != 77
    assert dataset[0]["sound"].any()


def test_it_survives_a_pickle_after_use(prepared: dict[str, Any]) -> None:
    dataset = StandardDataset(prepared, "train")
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert_equal(samples_of(again), samples_of(dataset))


@pytest.mark.parametrize(("start", "num_workers"), [("fork", 2), ("forkserver", 1)])
def test_workers_give_the_same(raw: Any, start: str, num_workers: int) -> None:
    (raw.folder / "my_reader.py").write_text(
        "import numpy as np\ndef run(row):\n    return {'x': np.load(row['image']), 'y': len(row['label'])}\n"
    )
    (raw.folder / "config.json").write_text(
        '{"manifest": "rows.csv", "transform": "my_reader:run", "num_workers": 0}'
    )
    dataset = StandardDataset(raw.folder / "config.json")  # its folder is where the module is found
    here = Collate(dataset.fields)([dataset[at] for at in range(24)])
    loader: Any = DataLoader(
        dataset, 6, num_workers=num_workers, multiprocessing_context=start, collate_fn=Collate(dataset.fields)
    )
    found = list(loader)
    for name, value in here.items():
        assert torch.equal(torch.cat([batch[name] for batch in found]), value)


def test_an_error_in_a_worker_keeps_its_type_and_names_the_sample(raw: Any) -> None:
    (raw.folder / "s07.npy").write_bytes(b"garbage")
    loader: Any = DataLoader(StandardDataset(raw.config()), batch_size=None, sampler=[7, 8], num_workers=1)
    samples = iter(loader)
    with pytest.raises(LoaderError, match=r"'s07' \(s07\.npy\)"):
        next(samples)
    assert len(list(samples)) == 1  # to the end: torch waits 5 s for the workers of an iterator that is not


def test_whoever_gets_a_kept_sample_may_change_it(raw: Any) -> None:
    dataset = StandardDataset(raw.config(), cache_in_memory=True)
    zeroed(dataset[3])
    assert dataset[3]["image"].any()


def test_kept_samples_that_are_collated_are_not_copied_but_for_a_transform(raw: Any) -> None:
    dataset = StandardDataset(raw.config(), cache_in_memory=True, is_collated=True)
    assert dataset[3]["image"].data_ptr() == dataset[3]["image"].data_ptr()
    batch = Collate(dataset.fields)([dataset[3]])
    batch["image"].zero_()
    batch["series"].zero_()
    assert dataset[3]["image"].any()
    assert dataset[3]["series"].any()
    dataset.transform = zeroed
    dataset[3]
    dataset.transform = None
    assert dataset[3]["image"].any()
