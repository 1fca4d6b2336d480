"""What stops a prepare: space that is short, reasons that are told by how often they come."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from flatout.errors import StoreSpaceError, TooManyBadError
from flatout.store.limits import check_bad_fraction, check_free_space, disk_errors, doubt_space
from flatout.store.receipt import BadRow

Usage = namedtuple("Usage", "total used free")


def test_what_fits_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 4 << 20))
    check_free_space(tmp_path, 2.9 * (1 << 20))
    told = r"\(4\.1 MiB\) are needed, 4,194,304 bytes \(4\.0 MiB\) are free"
    with pytest.raises(StoreSpaceError, match=told):
        check_free_space(tmp_path, 3 * (1 << 20))


def test_few_bytes_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 512))
    with pytest.raises(StoreSpaceError, match=r"\(\d\.\d GiB\) are needed, 512 bytes are free"):
        check_free_space(tmp_path, 5 << 30)
    no_space = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StoreSpaceError, match=r"512 bytes are free\)\. Nothing is lost"), disk_errors(tmp_path):
        raise no_space
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 300 << 10))
    with pytest.raises(StoreSpaceError, match=r"307,200 bytes are free, 300\.0 KiB\)"), disk_errors(tmp_path):
        raise no_space


def bad_rows(*errors: str) -> list[BadRow]:
    return [BadRow(f"k{n}", f"{n}.npy", "decode", error) for n, error in enumerate(errors)]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        (["0.npy is cut"], "0.npy: decode: 0.npy is cut. All so far"),
        (
            ["0.npy has 3 bytes", "1.npy has 77 bytes"],
            "All for one reason, as in 0.npy: decode: 0.npy has 3 bytes.",
        ),
        (["odd", "is cut", "is cut"], "Most often (2 rows): 1.npy: decode: is cut; 1 other reason."),
        (["a", "b", "c"], "3 different reasons, such as 0.npy: decode: a. All so far"),
        (["a", "b", "c", "c"], "Most often (2 rows): 2.npy: decode: c; 2 other reasons."),
    ],
)
def test_the_most_frequent_reason_is_told(tmp_path: Path, errors: list[str], told: str) -> None:
    with pytest.raises(TooManyBadError) as caught:
        check_bad_fraction(tmp_path, bad_rows(*errors), 10, 0.0)
    assert told in str(caught.value)
    assert (tmp_path / "quarantine.jsonl").exists()


def test_what_only_compression_makes_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 4 << 20))
    assert doubt_space(tmp_path, 2.9 * (1 << 20)) == ""
    told = doubt_space(tmp_path, 3 * (1 << 20))
    assert "before compression the samples take about 4,257,218 bytes (4.1 MiB), 4,194,304 bytes" in told
