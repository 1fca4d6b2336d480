"""The guides' other spellings, and the canonical name and value each becomes when a config is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from flatout.config.findings import Findings
from flatout.config.layer import Layer, Path, dotted, leaves, lookup, put, word
from flatout.config.train import Precision

_LOADER = {"ims_per_gpu": "batch_size"}

_SPLIT_SECTIONS = {"train_ds": "train", "validation_ds": "val", "test_ds": "test"}

RENAMED: dict[str, str] = {
    # where the data is
    "csv_path": "manifest",
    "data_dir": "manifest",
    "manifest_filepath": "manifest",
    **{f"{section}.manifest_filepath": f"manifest.{split}" for section, split in _SPLIT_SECTIONS.items()},
    **{f"{section}.tarred_audio_filepaths": "tarred_audio_filepaths" for section in _SPLIT_SECTIONS},
    # batches
    **_LOADER,
    **{f"{section}.{old}": f"{section}.{new}" for section in _SPLIT_SECTIONS for old, new in _LOADER.items()},
    "val_ds": "validation_ds",
    "model.train_ds": "train_ds",
    "model.validation_ds": "validation_ds",
    "model.test_ds": "test_ds",
    # training
    "use_fp16": "precision",
    "use_amp": "precision",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "max_epochs": "epochs",
    "cudnn_deterministic": "deterministic",
    "torch.backends.cudnn.deterministic": "deterministic",
    "torch.backends.cudnn.benchmark": "cudnn_benchmark",
    # augmentation and monitoring
    "augmentation_config": "augmentation",
    "sample_rate": "augmentation.sample_rate",
    "update_frequency": "monitor.update_frequency",
    "plot_frequency": "monitor.plot_frequency",
    "window_size": "monitor.window_size",
    "verbose": "monitor.verbose",
}
"""Other spelling -> canonical name, both as dotted paths."""

JOINED: Path = ("tarred_audio_filepaths",)
"""NeMo names the tars of each split, and one list has them all: a manifest's rows say which they are in."""

FLATTENED = ("hardware", "data_cache", "trainer")
"""Sections whose keys belong to the top level."""

RANGED = frozenset({"batch_size", "preprocess_batch_size", "num_workers", "prefetch_factor"})
"""Keys that may be written as a range, of which the lower end is taken."""

_TABLE: dict[Path, Path] = {tuple(old.split(".")): tuple(new.split(".")) for old, new in RENAMED.items()}
_RANGE = re.compile(r"\s*(\d+)\s*[-~\u2013]\s*(\d+)\s*")

_PRECISIONS = {
    **dict.fromkeys(("16", "fp16", "float16"), "16-mixed"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16-mixed"),
    **dict.fromkeys(("32", "32-true", "fp32", "float32"), "32"),
    **dict.fromkeys(("64", "64-true", "fp64", "float64"), "64"),
}
_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1"), "16-mixed"),
    **dict.fromkeys(("false", "no", "off", "0"), "32"),
}


def canonical(path: Path) -> Path:
    """The canonical name of `path`; `path` itself where it has no other spelling."""
    if path[0] in FLATTENED and len(path) > 1:
        return canonical(path[1:])
    for end in range(len(path), 0, -1):
        if path[:end] in _TABLE:
            return canonical(_TABLE[path[:end]] + path[end:])
    return path


def translate(layer: Layer, findings: Findings) -> Layer:
    """The layer with canonical names and values.

    Values that were chosen for the user become notes; two spellings that differ become a problem. Null, or a
    section without keys, gives way to what another spelling says.
    """
    values: dict[Any, Any] = {}
    spelled: dict[Path, Path] = {}
    said = {canonical(key) for key, given in leaves(layer.values) if not _is_nothing(given)}
    for key, given in leaves(layer.values):
        if key[0] in FLATTENED and len(key) == 1 and not given:
            continue  # a section with nothing in it
        path, written = canonical(key), layer.spelling(key)
        if _is_nothing(given) and any(_touch(path, other) for other in said):
            continue
        if path == ("precision",) and (wrong := _wrong_switch(key, given)):
            findings.problems.append(f"{layer.describe(key)}: '{dotted(written)}' {wrong}")
            continue
        value = _precision(key, given) if path == ("precision",) else given
        if (lower := _lower_end(path, value)) is not None:
            findings.notes.append(f"{dotted(written)}: {value} is a range; took {lower}")
            value = lower
        if path == JOINED and path in spelled:
            value = _joined(lookup(values, path), value)
        elif not _is_nothing(value) and (other := _conflict(path, value, spelled, values)):
            findings.problems.append(
                f"{layer.describe(key)}: '{dotted(other)}' and '{dotted(written)}' both set "
                f"'{dotted(path)}' and differ; keep one of them"
            )
        put(values, path, value)
        spelled[path] = written
    return replace(layer, values=values, spelled=spelled)


def _joined(before: Any, value: Any) -> list[Any]:
    """Both, as lists or alone, each of them once."""
    lists = [each if isinstance(each, list) else [each] for each in (before, value)]
    return list(dict.fromkeys([each for one in lists for each in one if each is not None]))


def _lower_end(path: Path, value: Any) -> int | None:
    """The lower end of a range such as 16-32, for the keys that take one."""
    is_ranged = path[-1] in RANGED and (len(path) == 1 or path[0] in _SPLIT_SECTIONS)
    match = _RANGE.fullmatch(value) if is_ranged and isinstance(value, str) else None
    return min(int(match[1]), int(match[2])) if match else None


def _precision(key: Path, value: Any) -> Any:
    """A Lightning precision; `use_fp16` and its like are switches: true is 16-mixed, false 32."""
    text = str(value).lower()
    if key[-1] != "precision":
        return _SWITCH.get(text, value)
    if isinstance(value, bool):
        return value
    return _PRECISIONS.get(text, text if isinstance(value, str) else value)


def _wrong_switch(key: Path, value: Any) -> str | None:
    """What to say of a `use_fp16` or its like that is neither on nor off, and no precision either."""
    if key[-1] == "precision" or _precision(key, value) in get_args(Precision):
        return None
    return f"is {word(value)}; wanted true or false"


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)


def _touch(one: Path, other: Path) -> bool:
    """Whether both are one setting, or one of them is around the other."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _conflict(path: Path, value: Any, spelled: dict[Path, Path], values: dict[Any, Any]) -> Path | None:
    """The spelling that already set `path`, something in it or around it, to something else."""
    for other, written in spelled.items():
        is_same = other == path and lookup(values, path) == value
        if _touch(other, path) and not is_same:
            return written
    return None
