"""Threads for compiled loops: the rows of a batch shared among as many as torch may use.

Threads of our own, because Numba's work queue aborts the process when two threads use it at once, and its
OpenMP one when the process forks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch

_PARTS_A_THREAD = 4
"""Rows outside the picture are cheaper than others: a thread that is done early takes another part."""


def run_rows(kernel: Callable[..., None], num_rows: int, *arguments: Any) -> None:
    """Call `kernel(*arguments, first, last)` for parts of the rows until all are done."""
    num_threads = min(torch.get_num_threads(), num_rows)
    if num_threads <= 1:
        kernel(*arguments, 0, num_rows)
        return
    num_parts = min(num_threads * _PARTS_A_THREAD, num_rows)
    edges = [num_rows * part // num_parts for part in range(num_parts + 1)]
    pool = _pool(os.getpid(), num_threads)
    under_way = [pool.submit(kernel, *arguments, first, last) for first, last in pairwise(edges)]
    for part in under_way:
        part.result()


@cache
def _pool(pid: int, num_threads: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, so each process has its own."""
    return ThreadPoolExecutor(num_threads, thread_name_prefix="flatout-augment")
