"""What a stack of frames means: the user's functions, the library's that they call, the innermost call."""

from __future__ import annotations

import ast
import itertools
import linecache
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import PurePath
from types import CodeType
from typing import Any

from flatout.doctor.patches.frames import is_users

READS = {
    *(
        "open",
        "read",
        "readinto",
        "read1",
        "readline",
        "readlines",
        "read_bytes",
        "read_text",
        "pread",
        "fromfile",
    ),
    *(
        "recv",
        "recv_into",
        "stat",
        "scandir",
        "listdir",
        "exists",
        "isfile",
        "getsize",
        "sleep",
        "wait",
        "select",
    ),
    *("poll", "acquire", "urlopen", "request", "seek", "mmap", "memmap", "readall"),
}
"""Calls that wait for a disk, a network or somebody else."""
LOGS = {"write", "writelines", "writerow", "writerows", "flush", "print", "dump", "fsync", "savefig", "close"}
LOGGERS = {
    "logging",
    "csv",
    "tensorboard",
    "tensorboardX",
    "wandb",
    "mlflow",
    "tqdm",
    "rich",
    "matplotlib",
    "loggers",
}
"""Packages that write to logs, consoles and trackers."""


def places_of(stack: Sequence[tuple[CodeType, int]], text: str) -> list[list[Any]]:
    """The user's functions, and the library's that these call themselves, from the outermost in.

    Each as [name, file, line, caller's file, caller's line]: whoever looks for a library's function looks for
    the line that calls it. A call of compiled code has no frame of its own; if the user makes it, it is named
    by its text, and its line is the caller's.
    """
    places: list[list[Any]] = []
    caller: tuple[str, int] | None = ("", 0)
    for code, instruction in reversed(stack):
        is_own = is_users(code.co_filename)
        if is_own or caller is not None:
            called_at = ("", 0) if is_own or caller is None else caller
            places.append([code.co_qualname, code.co_filename, code.co_firstlineno, *called_at])
        caller = (code.co_filename, line_of(code, instruction)) if is_own else None
    if text and stack and is_users(stack[0][0].co_filename):
        places.append([text, stack[0][0].co_filename, line_of(*stack[0]), "", 0])
    return places


@cache
def line_of(code: CodeType, instruction: int) -> int:
    """Line of an instruction."""
    return _position(code, instruction)[0] or code.co_firstlineno


@cache
def call_text(code: CodeType, instruction: int) -> str:
    """What is being called at an instruction, as the source says it: `np.load`, `file.read`; empty: unknown."""
    line, end_line, column, end_column = _position(code, instruction)
    if line is None or line != end_line:
        return ""
    text = linecache.getline(code.co_filename, line).encode()[column:end_column].decode(errors="replace")
    with suppress(SyntaxError, ValueError, MemoryError):
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Call):
            return _short(node.func)
    return ""


def _short(function: ast.expr) -> str:
    """`a.b.c` for names, `.read` for a method of something that is no name."""
    if isinstance(function, ast.Attribute):
        inner = _short(function.value) if isinstance(function.value, ast.Attribute | ast.Name) else ""
        return f"{inner}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    unknown = (None, None, None, None)
    return next(itertools.islice(code.co_positions(), max(instruction, 0) // 2, None), unknown)


def is_reading(text: str, files: Sequence[str]) -> bool:
    """Whether the innermost call waits for something outside."""
    return text.rpartition(".")[2] in READS


def is_logging(text: str, files: Sequence[str]) -> bool:
    """Whether it writes what nobody trains with."""
    if text.rpartition(".")[2] in LOGS:
        return True
    return any(LOGGERS & {part.removesuffix(".py") for part in PurePath(file).parts} for file in files)
