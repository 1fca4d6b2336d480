"""Which samples come next and where they stand, by compiled code: what a loader looks up for each stretch.

NumPy takes a pass over memory for each step, and lets go of the interpreter in each. Here it is one pass: 4,096
places of a permutation take 37 us instead of 108. The interpreter is kept: who lets go of it beside a busy
thread gets it back half a millisecond later.

All numbers are unsigned: no index has to be looked at for being negative, and the smaller of x and x - n is x
modulo n for every x below 2n. A branch in its place would be foretold wrong half of the time.
"""

from __future__ import annotations

import numpy as np

from flatout.compiled import compiled
from flatout.types import Array


def _shuffle(cells: Array, num_items: int, by_right: Array, by_left: Array, out: Array) -> None:
    """Where each cell goes in a permutation of `num_items`, see `permutation`."""
    side, height = np.uint64(by_right.shape[1]), np.uint64(by_left.shape[1])
    stop = np.uint64(num_items)
    for at in range(len(cells)):
        cell = cells[at]
        while True:
            left = cell // side
            right = cell - left * side
            for turn in range(len(by_right)):
                left = left + by_right[turn, right]
                left = min(left, left - height)
                right = right + by_left[turn, left]
                right = min(right, right - side)
            cell = left * side + right
            if cell < stop:
                break
        out[at] = cell


shuffle = compiled(_shuffle, nogil=False)
