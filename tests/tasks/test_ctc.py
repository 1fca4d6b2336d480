"""Texts as numbers and back, against plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ConfigError
from flatout.tasks.ctc import Alphabet, error_rate, least_frames, num_edits, read_texts

TEXTS = st.lists(st.text(max_size=8).filter(lambda text: text.isprintable()), min_size=1, max_size=5)


def bytes_of(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """As a loader gives them: UTF-8, padded with zeros, and the lengths."""
    rows = [text.encode() for text in texts]
    width = max(map(len, rows))
    padded = [list(row) + [0] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.uint8).reshape(len(rows), width), torch.tensor([*map(len, rows)])


@given(TEXTS)
def test_texts_of_any_script_become_numbers(texts: list[str]) -> None:
    alphabet = Alphabet("".join(texts) + "x")
    targets, num = alphabet.targets(*bytes_of(texts))
    assert num.tolist() == [len(text) for text in texts]
    for row, text in zip(targets.tolist(), texts, strict=True):
        assert row[: len(text)] == [alphabet.characters.index(one) + 1 for one in text]
        assert not any(row[len(text) :])
    assert read_texts(*bytes_of(texts)) == texts


@given(TEXTS)
def test_frames_become_texts(texts: list[str]) -> None:
    """A character may stand in several frames; the same again has a blank between."""
    alphabet = Alphabet("".join(texts) + "x")
    rows = []
    for text in texts:
        row: list[int] = []
        for one in text:
            number = alphabet.characters.index(one) + 1
            row += ([0] if row and row[-1] == number else []) + [number] * (1 + number % 3)
        rows.append(row)
    width = max(map(len, rows)) + 2
    best = torch.tensor([row + [1] * (width - len(row)) for row in rows])
    assert alphabet.decode(best, torch.tensor([len(row) for row in rows])) == texts


def test_frames_that_a_text_needs() -> None:
    alphabet = Alphabet("aben")
    targets, num = alphabet.targets(*bytes_of(["banana", "been", "aaa", ""]))
    assert least_frames(targets, num).tolist() == [6, 5, 5, 0]


def slow_edits(said: str, wanted: str) -> int:
    if not said or not wanted:
        return len(said) + len(wanted)
    return min(
        slow_edits(said[1:], wanted) + 1,
        slow_edits(said, wanted[1:]) + 1,
        slow_edits(said[1:], wanted[1:]) + (said[0] != wanted[0]),
    )


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edits(said: str, wanted: str) -> None:
    assert num_edits(said, wanted) == slow_edits(said, wanted)


def test_rates() -> None:
    assert error_rate("seven", "eleven") == pytest.approx(2 / 6)
    assert error_rate("", "one") == 1.0
    assert error_rate(["one", "two"], ["one", "too", "many"]) == pytest.approx(2 / 3)
    assert error_rate("a", "") != error_rate("a", "")  # NaN: nothing was to be said


def test_weights_of_another_alphabet_are_refused() -> None:
    alphabet = Alphabet("abc")
    alphabet.load_state_dict(Alphabet("cba").state_dict())
    with pytest.raises(ConfigError, match="spell with 'abd', the train texts with 'abc'"):
        alphabet.load_state_dict(Alphabet("abd").state_dict())
