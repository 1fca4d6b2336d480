"""Pairs: which files belong to one half of a NIfTI pair."""

from __future__ import annotations

import pytest

from flatout.source.pair import is_half, names_of


@pytest.mark.parametrize("name", ["a.hdr", "a.img", "a.b.hdr.gz", "A.IMG", "a.Img.gz"])
def test_either_half_is_known_by_its_name(name: str) -> None:
    assert is_half(name)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "hdr", "a.hdr.txt", "aimg"])
def test_others_are_none(name: str) -> None:
    assert not is_half(name)


@pytest.mark.parametrize("name", ["a.1.hdr", "a.1.img", "a.1.HDR", "a.1.img.gz"])
def test_both_halves_are_named_from_either(name: str) -> None:
    assert names_of(name, "hdr") == ["a.1.hdr", "a.1.hdr.gz", "a.1.HDR", "a.1.HDR.gz"]
    assert names_of(name, "img")[0] == "a.1.img"
