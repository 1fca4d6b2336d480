"""What the folders of a tree mean: splits, image and mask side by side, classes, patients, or nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flatout.errors import ManifestError
from flatout.source.columns import kinds_by_suffix, suffix_of
from flatout.source.splits import SPELLINGS, is_split_name, normalise_split

MAX_NAMED = 5
"""Folders that an error names."""
MANY_CLASSES = 20
"""More top folders than this are classes only if each holds a handful of files; else patients."""

_ROLE = re.compile(
    r"(?:(?P<image>images?|imgs?|volumes?|scans?)|"
    r"(?P<mask>labels?|masks?|annotations?|segmentations?|segs?|ground_?truths?|gts?))"
    rf"(?:[_-]?(?P<split>tr|ts|{'|'.join(SPELLINGS)}))?",
    re.IGNORECASE,
)
_SHORT = {"tr": "train", "ts": "test"}
_MASK_ENDING = re.compile(r"[_-](masks?|segs?|segmentation|labels?|gt)$", re.IGNORECASE)
_CHANNEL = re.compile(r"(.*)_(\d{4})$")


class Item(NamedTuple):
    """One file, or one DICOM folder: its path relative to the root, and its kind."""

    path: str
    kind: str
    num_slices: int = 0
    """Files of a DICOM folder; 0: a file."""


@dataclass
class Layout:
    """Columns of equal length, and a sentence on how the tree was read."""

    columns: dict[str, list[str | None]]
    path_columns: tuple[str, ...]
    told: str
    notes: list[str] = field(default_factory=list)


class _Placed(NamedTuple):
    path: str
    inner: str
    """The path below the folders that all share and the folder of its split."""
    split: str | None
    num_slices: int


def arrange(items: Sequence[Item]) -> Layout:
    """Rows and columns for the items of one kind, in order of their paths."""
    placed, notes = _place(items)
    layout = None
    if items[0].kind in ("image", "volume", "array"):
        layout = _pairs(placed)
    layout = layout or _by_folder(placed)
    layout.notes[:0] = notes
    if "split" in layout.columns:
        layout.told += ", split = folder"
    return layout


def _place(items: Sequence[Item]) -> tuple[list[_Placed], list[str]]:
    """Takes folders that all items share, and split folders, off the front of each path.

    Raises:
        ManifestError: several top folders are splits, and others are not: as classes, each would be wrong.
    """
    inner = [item.path for item in items]
    while (top := _only_top(inner)) and not is_split_name(top) and not _ROLE.fullmatch(top):
        inner = [path[len(top) + 1 :] for path in inner]
    tops = {path.split("/", 1)[0] for path in inner if "/" in path}
    splits = set(filter(is_split_name, tops))
    if not splits or (len(splits) == 1 and len(tops) > 1):
        pairs = zip(items, inner, strict=True)
        return [_Placed(item.path, path, None, item.num_slices) for item, path in pairs], []
    placed, beside = [], []
    for item, path in zip(items, inner, strict=True):
        top, slash, rest = path.partition("/")
        if slash and top in splits:
            placed.append(_Placed(item.path, rest, normalise_split(top), item.num_slices))
        else:
            beside.append(item.path)
    if tops != splits and not are_few(len(beside), len(items)):
        others = sorted(tops.difference(splits))
        told = ", ".join(others[:MAX_NAMED]) + (", ..." if len(others) > MAX_NAMED else "")
        raise ManifestError(
            f"folders {', '.join(sorted(splits))} are splits, but beside them stand {told}; move those away, "
            "or write a manifest that says what each file is"
        )
    told = f"left out {len(beside):,} files beside the split folders (first: {min(beside, default='')})"
    return placed, [told] if beside else []


def are_few(num_odd: int, num_all: int) -> bool:
    """Whether those that stand elsewhere are strays."""
    return num_odd * 10 <= num_all


def _only_top(paths: Sequence[str]) -> str | None:
    """The folder that all paths start with; None where they differ or one has none."""
    first, slash, _ = paths[0].partition("/")
    if not slash or not all(path.startswith(first + "/") for path in paths):
        return None
    return first


def _by_folder(placed: Sequence[_Placed]) -> Layout:
    """Files with their class, or their patient, or alone.

    A few files beside the folders of all others have neither: one must not cost the others theirs.
    """
    columns: dict[str, list[str | None]] = {"file": [item.path for item in placed]}
    tops: list[str | None] = [item.inner.partition("/")[0] if "/" in item.inner else None for item in placed]
    beside = [item.path for item, top in zip(placed, tops, strict=True) if top is None]
    told, notes = _counted(placed), []
    num_tops = len(set(tops) - {None})
    each = (len(placed) - len(beside)) / max(num_tops, 1)
    if num_tops > 1 and are_few(len(beside), len(placed)):
        are_classes = each >= 5 or (num_tops <= MANY_CLASSES and each >= 2)
        columns["label" if are_classes else "group"] = tops
        told += f" in {num_tops:,} folders, taken as {'classes' if are_classes else 'groups (patients)'}"
        if beside and are_classes:
            notes.append(
                f"{len(beside):,} files beside the folders of the others (first: {beside[0]}) have no class: "
                "they will fail and be listed; move them into a folder, or away"
            )
    elif num_tops > 1:
        notes.append(f"{len(beside):,} files stand beside the folders of the others, so folders are no classes")
    if placed[0].split is not None:
        columns["split"] = [item.split for item in placed]
    return Layout(columns, ("file",), told, notes)


def _counted(placed: Sequence[_Placed]) -> str:
    """`12 files`, `one DICOM series of 24 slices`, or both."""
    slices = [item.num_slices for item in placed if item.num_slices]
    num_files, num_slices = len(placed) - len(slices), sum(slices)
    told = [f"{num_files:,} files" if num_files > 1 else "one file"] if num_files else []
    if slices:
        series = f"{len(slices):,}" if len(slices) > 1 else "one"
        told.append(f"{series} DICOM series of {num_slices:,} slice{'s' if num_slices > 1 else ''}")
    return " and ".join(told)


class _Side(NamedTuple):
    """A file in an image or a mask folder, and the name that both sides share."""

    stem: str
    path: str


_Sides = dict[str, dict[str, list[_Side]]]
"""Images and masks by split ("": none)."""

_Row = dict[str, str | None]


def _pairs(placed: Sequence[_Placed]) -> Layout | None:
    """Images and masks paired by name; None where the tree has no such folders side by side."""
    sides, passed_over = _two_sides(placed)
    whole = {name: side for name, side in sides.items() if side["images"] and side["masks"]}
    if not whole:
        return None
    rows = [row | {"split": split} for split, side in whole.items() for row in _matched(**side)]
    # imagesTr alone says nothing: Medical Decathlon sets come without labelled test images.
    if placed[0].split is None and (len(whole) == 1 or "" in whole):
        _split_by_subfolder(rows)
    layout = _layout_of_pairs(rows)
    for name in sides.keys() - whole.keys():
        num = sum(map(len, sides[name].values()))
        layout.notes.append(
            f"left out {num:,} files of '{name or 'no split'}': only one of images and masks is there"
        )
    layout.notes += [f"left out {num:,} files in {top}" for top, num in passed_over.items()]
    return layout


def _two_sides(placed: Sequence[_Placed]) -> tuple[_Sides, Counter[str]]:
    sides: _Sides = {}
    passed_over: Counter[str] = Counter()
    for item in placed:
        top, slash, rest = item.inner.partition("/")
        role = _ROLE.fullmatch(top) if slash else None
        if role is None:
            passed_over[top if slash else "the top folder"] += 1
            continue
        word = (role["split"] or "").lower()
        split = item.split or _SHORT.get(word) or normalise_split(word)
        side = sides.setdefault(split, {"images": [], "masks": []})
        side["images" if role["image"] else "masks"].append(_Side(_stem(rest), item.path))
    return sides, passed_over


def _stem(path: str) -> str:
    suffix = suffix_of(path)
    return path[: -len(suffix)] if suffix in kinds_by_suffix() else path


def _matched(images: Sequence[_Side], masks: Sequence[_Side]) -> list[_Row]:
    """One row an image with its mask; one row several images where names end in _0000, _0001 (nnU-Net)."""
    by_stem = {_MASK_ENDING.sub("", mask.stem): mask for mask in reversed(masks)}
    by_stem |= {mask.stem: mask for mask in masks}
    rows: dict[str, _Row] = {}
    used = set()
    for image in images:
        stem, column = image.stem, "image"
        channel = _CHANNEL.fullmatch(stem)
        if stem not in by_stem and channel and channel[1] in by_stem:
            stem, column = channel[1], f"image_{channel[2]}"
        mask = by_stem.get(stem)
        used.add(mask)
        row = rows.setdefault(stem, {})
        if column in row:  # x.jpg beside x.png
            row = rows.setdefault(image.path, {})
        row |= {column: image.path, "mask": mask.path if mask else None, "stem": stem}
    lone: list[_Row] = [{"mask": mask.path, "stem": mask.stem} for mask in masks if mask not in used]
    return [*rows.values(), *lone]


def _split_by_subfolder(rows: Sequence[_Row]) -> None:
    """Sets each row's split where all stand in split folders (images/train/x.png), else none."""
    tops = [str(row["stem"]).split("/", 1)[0] for row in rows]
    named = all("/" in str(row["stem"]) and is_split_name(top) for row, top in zip(rows, tops, strict=True))
    for row, top in zip(rows, tops, strict=True):
        row["split"] = normalise_split(top) if named else None


def _layout_of_pairs(rows: list[_Row]) -> Layout:
    images = sorted({name for row in rows for name in row if name.startswith("image")})
    if len(images) == 1:
        rows = [{"image" if name == images[0] else name: v for name, v in row.items()} for row in rows]
        images = ["image"]
    paths = (*images, "mask")
    rows.sort(key=lambda row: next(path for name in paths if (path := row.get(name))))
    columns = {name: [row.get(name) for row in rows] for name in (*paths, "split")}
    if not columns["split"][0]:
        del columns["split"]
    lacking = {name: sum(value is None for value in columns[name]) for name in paths}
    notes = [
        f"{num:,} rows have no {name}: they will fail and be listed" for name, num in lacking.items() if num
    ]
    return Layout(columns, paths, f"{len(rows):,} pairs of image and mask by name", notes)
