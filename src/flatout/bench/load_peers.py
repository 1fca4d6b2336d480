"""The other loaders, each used as its own guide says, over the same numbers: endless dict batches out.

Every function takes the case, our store (unused) and a scratch folder of its own, writes its format there and
gives a function that starts the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from flatout.bench import load_samples as ordinary
from flatout.bench.load_cases import LoadCase
from flatout.bench.load_runner import Batches

NUM_WORKERS = 2
CHUNK_BYTES = 64 << 20
"""Of a tar."""

Start = Callable[[], Batches]


def ram(case: LoadCase, store: Path, scratch: Path, *, num_workers: int = 0) -> Start:
    """DataLoader over tensors in memory."""
    return _load(ordinary.RamSamples(case) if case.is_ragged else ordinary.tensors(case), case, num_workers)


def h5py_file(case: LoadCase, store: Path, scratch: Path, *, num_workers: int = 0) -> Start:
    """DataLoader over one HDF5 file that each worker opens."""
    with h5py.File(scratch / "samples.h5", "w") as file:
        if case.is_ragged:
            file["x"] = np.concatenate(list(case.samples()))
            file["offsets"] = np.concatenate([[0], np.cumsum(case.lengths)])
        else:
            file["x"] = case.array()
    return _load(ordinary.Hdf5Samples(scratch / "samples.h5", case.num_samples), case, num_workers)


def npy_files(case: LoadCase, store: Path, scratch: Path, *, num_workers: int = NUM_WORKERS) -> Start:
    """DataLoader over one .npy file a sample."""
    return _load(ordinary.NpySamples(ordinary.write_npy(case, scratch)), case, num_workers)


ram_2_workers = partial(ram, num_workers=NUM_WORKERS)
h5py_2_workers = partial(h5py_file, num_workers=NUM_WORKERS)


def _load(dataset: Any, case: LoadCase, num_workers: int) -> Start:
    loader = ordinary.loader_of(dataset, case, num_workers)
    return lambda: ordinary.named(ordinary.forever(loader))


def monai(case: LoadCase, store: Path, scratch: Path) -> Start:
    """MONAI's CacheDataset, everything cached, in its ThreadDataLoader."""
    from monai.data import CacheDataset, ThreadDataLoader

    items = [{"x": path, "y": number} for number, path in enumerate(ordinary.write_npy(case, scratch))]
    dataset = CacheDataset(items, ordinary.LoadNpy(), num_workers=NUM_WORKERS, progress=False)
    loader = ThreadDataLoader(dataset, batch_size=case.batch_size, shuffle=True, num_workers=0)
    return lambda: ordinary.named(ordinary.forever(loader))


def tensordict(case: LoadCase, store: Path, scratch: Path) -> Start:
    """A memory-mapped TensorDict, batches picked by a random permutation."""
    from tensordict import TensorDict

    whole = TensorDict(
        {"x": torch.from_numpy(case.array()), "y": torch.arange(case.num_samples)}, [case.num_samples]
    ).memmap(str(scratch / "memmap"))
    loader = DataLoader(whole, batch_size=case.batch_size, shuffle=True, collate_fn=ordinary.as_it_is)
    return lambda: ({"x": batch["x"], "y": batch["y"]} for batch in ordinary.forever(loader))


def datasets(case: LoadCase, store: Path, scratch: Path) -> Start:
    """Hugging Face datasets, saved to Arrow; told the dtype, else it makes int64 of uint8."""
    from datasets import Array2D, Array3D, Array4D, Features, List, Value, load_from_disk
    from datasets import Dataset as ArrowDataset

    shape = (None, *case.shape[1:]) if case.is_ragged else case.shape
    kinds: dict[int, Any] = {2: Array2D, 3: Array3D, 4: Array4D}
    one_axis = len(shape) == 1
    feature = List(Value(case.dtype), shape[0]) if one_axis else kinds[len(shape)](shape, case.dtype)
    made = ArrowDataset.from_generator(
        ordinary.Rows(case),
        features=Features({"x": feature, "y": Value("int64")}),
        cache_dir=str(scratch / "cache"),
    )
    made.save_to_disk(str(scratch / "arrow"))
    dataset = load_from_disk(str(scratch / "arrow")).with_format(
        "numpy", columns=["x"], output_all_columns=True, dtype=np.dtype(case.dtype)
    )
    return lambda: ordinary.named(ordinary.forever(ordinary.loader_of(dataset, case, NUM_WORKERS)))


def webdataset(case: LoadCase, store: Path, scratch: Path) -> Start:
    """Tar files of .npy members, shuffled by shards and a buffer."""
    import webdataset as wds

    per_tar = max(1, min(CHUNK_BYTES // case.sample(0).nbytes, case.num_samples // (2 * NUM_WORKERS)))
    with wds.ShardWriter(str(scratch / "%06d.tar"), maxcount=per_tar, verbose=0) as writer:
        for number, sample in enumerate(case.samples()):
            writer.write({"__key__": f"{number:09d}", "x.npy": sample, "y.json": number})
    tars = sorted(map(str, scratch.glob("*.tar")))
    dataset = (
        wds.WebDataset(tars, shardshuffle=len(tars), seed=1)
        .shuffle(1000 if case.batch_size > 8 else 50)
        .decode()
        .to_tuple("x.npy", "y.json")
        .batched(case.batch_size, collation_fn=partial(ordinary.stacked, is_ragged=case.is_ragged))
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=NUM_WORKERS, persistent_workers=True)
    return lambda: ordinary.forever(loader)


def litdata(case: LoadCase, store: Path, scratch: Path) -> Start:
    """litdata's optimised chunks through its StreamingDataLoader."""
    import litdata

    litdata.optimize(
        ordinary.Item(case),
        list(range(case.num_samples)),
        str(scratch / "chunks"),
        chunk_bytes="64MB",
        num_workers=NUM_WORKERS,
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )
    dataset = litdata.StreamingDataset(str(scratch / "chunks"), shuffle=True)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=case.batch_size,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        collate_fn=ordinary.padded if case.is_ragged else None,
    )
    return lambda: ordinary.named(ordinary.forever(loader))


def spdl(case: LoadCase, store: Path, scratch: Path) -> Start:
    """SPDL's pipeline: shuffled numbers in batches, read and joined by its threads."""
    from spdl.pipeline import PipelineBuilder

    rows = ordinary.rows_of(case, scratch)
    join = partial(ordinary.stacked, is_ragged=case.is_ragged)

    def read(numbers: Sequence[int]) -> dict[str, Any]:
        return join([(rows[number], number) for number in numbers])

    def start() -> Batches:
        builder = (
            PipelineBuilder()
            .add_source(ordinary.numbers(case))
            .pipe(read, concurrency=NUM_WORKERS, output_order="input")
            .add_sink(4)
        )
        pipeline = builder.build(num_threads=NUM_WORKERS)
        with pipeline.auto_stop():
            yield from pipeline

    return start


def grain(case: LoadCase, store: Path, scratch: Path) -> Start:
    """Grain's MapDataset over mapped samples, its threads reading ahead."""
    import grain as grains

    rows = ordinary.rows_of(case, scratch)
    read = grains.ReadOptions(num_threads=NUM_WORKERS, prefetch_buffer_size=4)
    join = partial(ordinary.stacked, is_ragged=case.is_ragged)

    def start() -> Batches:
        samples = grains.MapDataset.range(case.num_samples).shuffle(seed=1)
        batches = samples.map(lambda number: (rows[number], number)).batch(case.batch_size, batch_fn=join)
        yield from batches.repeat(None).to_iter_dataset(read)

    return start


PEERS: dict[str, tuple[str, bool]] = {
    "tensordict": ("tensordict", False),
    "ram": ("ram", True),
    "ram_2_workers": ("ram_2_workers", True),
    "h5py": ("h5py_file", True),
    "h5py_2_workers": ("h5py_2_workers", True),
    "npy": ("npy_files", True),
    "datasets": ("datasets", True),
    "monai": ("monai", False),
    "litdata": ("litdata", True),
    "webdataset": ("webdataset", True),
    "spdl": ("spdl", True),
    "grain": ("grain", True),
}
"""Name -> the function here, and whether it takes samples of different lengths."""
