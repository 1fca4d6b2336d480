"""Work that is spread over the workers: in order, and made ready while they are at what came before."""

from __future__ import annotations

import operator
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.crashing import wait_until

from flatout.errors import PrepareError
from flatout.store.pool import MEMORY_SHARE, PARTS_AHEAD, LocalPool


def test_the_next_part_is_made_while_a_worker_is_at_the_one_before(tmp_path: Path) -> None:
    """No worker waits until the parts of all of them are ready."""
    places = [tmp_path / name for name in "abcd"]
    were_made: list[bool] = []

    def parts() -> Iterator[str]:
        for place in places:
            yield str(place)
            were_made.append(wait_until(place.is_dir))

    with LocalPool(1) as pool:
        assert list(pool.spread(os.mkdir, parts())) == [None] * 4
    assert were_made == [True] * 4


@pytest.mark.parametrize("num_parts", [0, 1, 19])
def test_results_come_in_order_and_one_is_made_for_each_that_is_taken(num_parts: int) -> None:
    made: list[int] = []

    def parts() -> Iterator[int]:
        for number in range(num_parts):
            made.append(number)
            yield number

    with LocalPool(2) as pool:
        for number, found in enumerate(pool.spread(operator.neg, parts())):
            assert found == -number
            assert len(made) == min(num_parts, number + 2 * PARTS_AHEAD)
    assert len(made) == num_parts


def test_folders_that_come_later_hold_for_every_worker(tmp_path: Path) -> None:
    (tmp_path / "flatout_test_later.py").write_text("VALUE = 7\n")
    wanted = "flatout_test_later:VALUE"
    with LocalPool(2) as pool:
        pool.import_from([str(tmp_path)])
        assert list(pool.spread(pkgutil.resolve_name, [wanted] * 8)) == [7] * 8
        another = pool._replace(pool._take())
        assert another.ask("call", pkgutil.resolve_name, wanted) == 7


def test_what_the_manifest_has_taken_is_no_share_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start before it is read; with shares of then, all of them together would take too much."""
    free = 1 << 30
    monkeypatch.setattr("flatout.store.pool.free_memory_bytes", lambda: free)
    with LocalPool(2) as pool:
        free = 1 << 29
        pool.import_from([])
        assert [worker.max_bytes for worker in pool._workers] == [int(free * MEMORY_SHARE / 2)] * 2
        assert pool._replace(pool._take()).max_bytes == int(free * MEMORY_SHARE / 2)


def test_a_part_that_fails_ends_it() -> None:
    with LocalPool(1) as pool, pytest.raises(ZeroDivisionError):
        list(pool.spread(operator.truth, (1 // (3 - number) for number in range(40))))
    with LocalPool(1) as pool, pytest.raises(PrepareError, match="TypeError"):
        list(pool.spread(operator.neg, [1, "2", 3, 4, 5, 6, 7]))
