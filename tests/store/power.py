"""A disk that forgets: what a trace of system calls leaves behind when the power is cut after any of them.

Until a file is synced, each of its writes may be lost, whole or in part; until a folder is synced, so may each
name that was made, moved or deleted in it, whatever happened to the others. POSIX promises no more than that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Keep = Callable[[], bool]
State = dict[Path, bytes | None]
"""Bytes of every file by its relative name; None: a folder."""

_TEXT = re.compile(r'[<"]((?:\\x[0-9a-f]{2})*)[>"]')
_LINE = re.compile(r"\d+\s+(\w+)\((.*)\)\s+= (\d+)")


@dataclass(eq=False)
class File:
    """One file, whatever it is called: its bytes on the disk, and what was written since it was synced."""

    synced: bytes = b""
    data: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def write(self, at: int, data: bytes) -> None:
        self.data[at : at + len(data)] = data
        self.pending.append((at, data))

    def sync(self) -> None:
        self.synced, self.pending = bytes(self.data), []

    def survives(self, keep: Keep, cut: Callable[[int], int]) -> bytes:
        """Its bytes after the cut; the last write may be torn."""
        found = bytearray(self.synced)
        for number, (at, data) in enumerate(self.pending):
            if keep():
                kept = data[: cut(len(data))] if number == len(self.pending) - 1 else data
                found.extend(bytes(max(0, at - len(found))))
                found[at : at + len(kept)] = kept
        return bytes(found)


Change = dict[Path, File | None]
"""Names that one call changes together: what they mean from then on; None: nothing. A folder is a File, too."""


class Disk:
    """Files below a folder, as programs see them and as they are on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[Path, File] = {}
        self.synced: dict[Path, File] = {}
        self.pending: list[Change] = []
        self.folders: set[Path] = set()
        for path in sorted(root.rglob("*")):
            self.names[path] = File(data=bytearray(path.read_bytes() if path.is_file() else b""))
            self.names[path].sync()
            self.folders |= {path} if path.is_dir() else set()
        self.synced = dict(self.names)

    def change(self, change: Change) -> None:
        self.pending.append(change)
        _apply(self.names, change)

    def sync_folder(self, folder: Path) -> None:
        mine = [change for change in self.pending if all(path.parent == folder for path in change)]
        self.pending = [change for change in self.pending if change not in mine]
        for change in mine:
            _apply(self.synced, change)

    def after_cut(
        self, keep_name: Keep, keep_data: Keep, cut: Callable[[int], int]
    ) -> dict[Path, bytes | None]:
        """What there is when the power is back."""
        names = dict(self.synced)
        for change in self.pending:
            if keep_name():
                _apply(names, change)
        found: State = {}
        for path, file in sorted(names.items()):
            if path.parent == self.root or path.parent in names:  # its folder may be lost
                data = None if path in self.folders else file.survives(keep_data, cut)
                found[path.relative_to(self.root)] = data
        return found


def _apply(names: dict[Path, File], change: Change) -> None:
    for path, file in change.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def replay(trace: Path, disk: Disk) -> Iterator[str]:
    """Do to the disk what the trace says, call by call; the name of each call that changed it."""
    open_files: dict[int, tuple[Path, File, bool]] = {}
    places: dict[int, int] = {}
    for line in trace.read_text().splitlines():
        match = _LINE.match(line)
        if match is None:
            assert "unfinished" not in line, "calls of several threads overlap"
            continue
        name, arguments, result = match[1], match[2], int(match[3])
        texts = [
            bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments + line[match.end() :])
        ]
        paths = [Path(text.decode(errors="replace")) for text in texts if text.startswith(b"/")]
        number = int(digits[0]) if (digits := re.match(r"\d+", arguments)) else -1
        if name == "openat":
            open_files.pop(result, None)
            path = paths[-1]
            if disk.root in path.parents and ("O_WRONLY" in arguments or "O_RDWR" in arguments):
                if path not in disk.names:
                    disk.change({path: File()})
                file = disk.names[path]
                assert "O_TRUNC" not in arguments or not file.data, f"{path} is written over in place"
                open_files[result], places[result] = (path, file, "O_APPEND" in arguments), 0
                yield name
        elif name == "fsync" and (paths[0] == disk.root or paths[0] in disk.folders):
            disk.sync_folder(paths[0])
            yield name
        elif name in ("write", "fsync", "ftruncate") and number in open_files:
            _, file, is_appending = open_files[number]
            if name == "fsync":
                file.sync()
            elif name == "write":
                at = len(file.data) if is_appending else places[number]
                file.write(at, texts[1][:result])
                places[number] = at + result
            else:
                assert not file.data, "a file is cut"
            yield name
        elif name in ("rename", "unlink", "mkdir", "rmdir") and paths and disk.root in paths[0].parents:
            _rearrange(disk, name, paths)
            yield name
        else:
            assert name not in ("writev", "pwrite64", "link", "renameat2") or not any(
                disk.root in path.parents for path in paths
            ), line[:200]


def _rearrange(disk: Disk, name: str, paths: list[Path]) -> None:
    if name == "rename":
        disk.change({paths[0]: None, paths[1]: disk.names[paths[0]]})
    elif name == "mkdir":
        disk.folders.add(paths[0])
        disk.change({paths[0]: File()})
    else:
        disk.change({paths[0]: None})


def states(trace: Path, disk: Disk, seed: int) -> Iterator[State]:
    """What may be left after each call: of what is unsynced nothing, names alone, data alone, anything."""
    draw = random.Random(seed)
    seen: list[State] = []

    def half() -> bool:
        return draw.random() < 0.5

    for _ in replay(trace, disk):
        for keep_name, keep_data in ((_no, _no), (_yes, _no), (_no, _yes), (half, half), (half, _yes)):
            found = disk.after_cut(keep_name, keep_data, lambda size: draw.randint(0, size) if half() else size)
            if found not in seen:
                seen = [*seen[-20:], found]
                yield found


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


def put(state: State, folder: Path) -> None:
    """Lay a state out on a real disk."""
    folder.mkdir(parents=True)
    for path, data in state.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
