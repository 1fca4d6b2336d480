"""Threads for compiled loops: the rows of a batch shared among as many as torch may use.

The caller is one of them: to wake one thread less makes the chain of six transforms a quarter faster. Threads
of our own, because Numba's work queue aborts the process when two threads use it at once, and its OpenMP one
when the process forks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch

PARTS_A_THREAD = 8
"""Rows outside the picture are cheaper than others: a thread that is done early takes another part."""


_own = threading.local()
"""`is_part`: this thread is at a part of something already, and splits no further."""


def run_rows(kernel: Callable[..., None], num_rows: int, *arguments: Any) -> None:
    """Call `kernel(*arguments, first, last)` for parts of the rows until all are done."""
    num_threads = 1 if getattr(_own, "is_part", False) else min(torch.get_num_threads(), num_rows)
    if num_threads <= 1:
        kernel(*arguments, 0, num_rows)
        return
    num_parts = min(num_threads * PARTS_A_THREAD, num_rows)
    edges = [num_rows * part // num_parts for part in range(num_parts + 1)]
    parts = iter(list(pairwise(edges)))  # whoever is free takes the next: one step for the interpreter

    def work() -> None:
        for part in parts:
            kernel(*arguments, *part)

    pool = _pool(os.getpid(), num_threads - 1)
    under_way = [pool.submit(work) for _ in range(num_threads - 1)]
    _own.is_part = True
    try:
        work()
    finally:
        _own.is_part = False
        for each in under_way:  # also after an error: they write into the caller's memory
            each.exception()
    for each in under_way:
        each.result()


@cache
def _pool(pid: int, num_threads: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, so each process has its own."""
    return ThreadPoolExecutor(num_threads, thread_name_prefix="flatout-augment", initializer=_mark_own)


def _mark_own() -> None:
    _own.is_part = True
