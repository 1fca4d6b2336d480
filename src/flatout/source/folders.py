"""A folder tree as a manifest: every file once, in an order that depends on the names alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from flatout.errors import ManifestError
from flatout.source.beside import notes_on_tables
from flatout.source.columns import kinds_by_suffix, suffix_of
from flatout.source.layouts import Item, are_few, arrange
from flatout.source.paths import is_inside
from flatout.source.series import are_series, holds_dicom, is_dicom_name

_IGNORED = {"Thumbs.db", "desktop.ini", "__MACOSX", "DICOMDIR"}
STORE_FILES = {"data_metadata.json", "journal.jsonl", "preprocessing.log", "prepare.lock"}
"""Of a folder with one of these beside `STORE_SHARDS` we know that it is a store, finished or not."""
STORE_SHARDS = "shards"


@dataclass(frozen=True)
class FolderPart:
    """What a folder tree holds, as a table of paths relative to `base`."""

    table: pa.Table
    base: Path
    path_columns: tuple[str, ...]
    notes: tuple[str, ...]


def read_folder(root: Path, allow_outside: bool = False) -> FolderPart:
    """One row a sample of a tree: image and mask by name, file and class by folder, or files alone.

    Symbolic links to folders outside the tree are followed only if allowed; links to files stay in the table
    and are judged when they are read.

    Raises:
        ManifestError: the folder cannot be listed, or holds nothing that a decoder knows.
    """
    tree = scan_tree(root, allow_outside)
    items = _of_one_kind(_with_series(root, tree.files, tree.notes), root, tree.notes)
    tree.notes += notes_on_tables(root, [item.path for item in items])
    base = root
    if items[0].path == "":  # the root itself is the series
        base, items = root.parent, [items[0]._replace(path=root.name)]
    layout = arrange(items)
    columns = {name: pa.array(values, pa.large_string()) for name, values in layout.columns.items()}
    return FolderPart(
        pa.table(columns),
        base,
        layout.path_columns,
        (*tree.notes, f"{root.name}: {layout.told}", *layout.notes),
    )


@dataclass
class Tree:
    """Relative paths of all files below a folder, sorted bytewise, and what was passed over."""

    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def scan_tree(root: Path, allow_outside: bool = False) -> Tree:
    """All files below `root`, hidden ones left out. A million files take a few seconds."""
    tree = Tree()
    passed_over: Counter[str] = Counter()
    start = os.fspath(root)
    real_root = os.path.realpath(start)
    stack: list[tuple[str, tuple[str, ...]]] = [("", (real_root,))]
    while stack:
        prefix, chain = stack.pop()
        entries = _entries(os.path.join(start, prefix) if prefix else start)
        if _are_store(entries):
            _leave_store(root, prefix, tree.notes)
            continue
        for entry in entries:
            name = prefix + entry.name
            if _is_folder(entry):
                target = _folder_to_enter(entry, chain, allow_outside)
                if target is None:
                    passed_over["linked folders that lead outside or in a circle"] += 1
                else:
                    stack.append((name + "/", target))
            elif not (entry.is_symlink() or entry.is_file()):
                passed_over["devices, pipes and sockets"] += 1
            elif not name.isascii() and not _is_utf8(name):
                passed_over["files whose names are not UTF-8"] += 1
            else:
                tree.files.append(name)
    tree.files.sort()  # by code point, which is the order of the UTF-8 bytes
    tree.notes += [f"{root.name}: left out {num:,} {what}" for what, num in sorted(passed_over.items())]
    return tree


def _are_store(entries: Sequence[os.DirEntry[str]]) -> bool:
    names = {entry.name for entry in entries}
    return STORE_SHARDS in names and not STORE_FILES.isdisjoint(names)


def _leave_store(root: Path, prefix: str, notes: list[str]) -> None:
    """A store that lies among the files is no source."""
    if not prefix:
        raise ManifestError(
            f"{root} is a store, or holds one among other files; name the folder of the source files, or move "
            "the store's files to a folder of their own"
        )
    notes.append(f"{root.name}: left out the store '{prefix.rstrip('/')}'")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if not e.name.startswith(".") and e.name not in _IGNORED]
    except OSError as error:
        raise ManifestError(f"{folder}: {error.strerror or error}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _folder_to_enter(
    entry: os.DirEntry[str], chain: tuple[str, ...], allow_outside: bool
) -> tuple[str, ...] | None:
    """The real folders that links led to on the way into this one; None: it is not entered."""
    if not entry.is_symlink():
        return chain
    target = os.path.realpath(entry.path)
    leads_back = is_inside(os.path.realpath(Path(entry.path).parent), target)
    if target in chain or leads_back or not (allow_outside or is_inside(target, chain[0])):
        return None
    return (*chain, target)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_series(root: Path, files: Sequence[str], notes: list[str]) -> list[Item]:
    """Files as items of their kind, folders of one DICOM series as one volume each.

    A few other files beside the slices (a report, a preview) are left out, as the decoder leaves them.
    """
    start = os.fspath(root)
    folders: dict[str, list[str]] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if is_dicom_name(name):
            folders.setdefault(folder, []).append(name)
    if folders:
        counts = Counter(path.rpartition("/")[0] for path in files)
        folders = {f: names for f, names in folders.items() if len(names) * 2 > counts[f]}
    dicom = {f: names for f, names in folders.items() if holds_dicom(os.path.join(start, f), names)}
    if not are_series((os.path.join(start, f), names) for f, names in dicom.items()):
        dicom = {}
    beside = [path for path in files if path.rpartition("/")[0] in dicom and not is_dicom_name(path)]
    if "" in dicom and len(dicom) > 1:
        slices = dicom.pop("")
        beside += slices
        if not are_few(len(slices), len(slices) + sum(map(len, dicom.values()))):
            raise ManifestError(
                f"{root} holds {len(slices):,} DICOM slices beside folders of series ({min(dicom)}, ...); move "
                "them into a folder of their own, or name one of the folders"
            )
    if beside:
        told = f"{len(beside):,} files beside DICOM series (first: {min(beside)})"
        notes.append(f"{root.name}: left out {told}; a series has a folder of its own")
    files = sorted(set(files).difference(beside))
    kinds = kinds_by_suffix()
    items = [Item(folder, "volume", len(names)) for folder, names in dicom.items()]
    items += [Item(p, kinds.get(suffix_of(p), "")) for p in files if p.rpartition("/")[0] not in dicom]
    return sorted(items)


def _of_one_kind(items: Sequence[Item], root: Path, notes: list[str]) -> list[Item]:
    """The items of the kind that most files are of; READMEs, tables and thumbnails beside them are noted."""
    kinds: Counter[str] = Counter()
    for item in items:
        if item.kind:
            kinds[item.kind] += max(item.num_slices, 1)
    others = Counter(suffix_of(item.path) or "no suffix" for item in items if not item.kind)
    if not kinds:
        told = ", ".join(f"{num:,} {suffix}" for suffix, num in others.most_common(5)) or "nothing"
        raise ManifestError(
            f"{root} holds no file that a decoder knows (found: {told}). Name another folder; or a manifest of "
            "these files, with a transform of your own that reads them"
        )
    order = ("volume", "image", "signal", "array", "sequence")
    kind = max(kinds, key=lambda k: (kinds[k], -order.index(k)))
    kept = [item for item in items if item.kind == kind]
    if kind == "sequence":  # a table of outcomes beside records in text
        suffix = Counter(suffix_of(item.path) for item in kept).most_common(1)[0][0]
        kept = [item for item in kept if suffix_of(item.path) == suffix]
    others += Counter(suffix_of(item.path) or "folders" for item in set(items) - set(kept) if item.kind)
    if others:
        told = ", ".join(f"{num:,} {suffix}" for suffix, num in others.most_common(5))
        notes.append(f"{root.name}: left out files that are not samples of kind {kind}: {told}")
    return kept
