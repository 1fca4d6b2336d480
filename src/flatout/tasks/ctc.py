"""Connectionist temporal classification: texts as numbers of characters, frames as texts, and how far off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatout.errors import ConfigError
from flatout.types import Array

BLANK = 0
"""The output that stands for no character; those of the alphabet follow."""


class Alphabet(nn.Module):
    """The characters that are known, saved with the weights: output 1 is the first of them."""

    points: Tensor
    """(characters,) int64: code points, sorted."""

    def __init__(self, characters: Iterable[str]) -> None:
        super().__init__()
        self.characters = "".join(sorted(set(characters)))
        self.register_buffer("points", torch.tensor([ord(one) for one in self.characters], dtype=torch.int64))
        self.register_load_state_dict_post_hook(_refuse_others)  # type: ignore[no-untyped-call]

    @property
    def num_outputs(self) -> int:
        """Characters and the blank."""
        return len(self.characters) + 1

    def targets(self, text: Tensor, num_bytes: Tensor) -> tuple[Tensor, Tensor]:
        """UTF-8 (B, n) uint8 and its lengths in, numbers of characters (B, n) and how many out.

        All of it on the device, without a synchronisation.
        """
        padded = torch.nn.functional.pad(text.long(), (0, 3))
        first, *further = (padded[:, at : at + text.shape[1]] for at in range(4))
        one, two, three = (byte & 0x3F for byte in further)
        point = torch.where(first < 0x80, first, (first & 0x1F) << 6 | one)
        point = torch.where(first >= 0xE0, (first & 0x0F) << 12 | one << 6 | two, point)
        point = torch.where(first >= 0xF0, (first & 0x07) << 18 | one << 12 | two << 6 | three, point)
        is_inside = torch.arange(text.shape[1], device=text.device) < num_bytes[:, None]
        starts = ((first & 0xC0) != 0x80) & is_inside
        # Characters close up to the left; the bytes between them go to a last column, which is cut off.
        place = torch.where(starts, starts.cumsum(1) - 1, text.shape[1])
        numbers = torch.searchsorted(self.points, point.contiguous()) + 1
        packed = torch.zeros_like(padded[:, : text.shape[1] + 1]).scatter(1, place, numbers)
        return packed[:, :-1], starts.sum(1)

    def decode(self, best: Tensor, num_frames: Tensor) -> list[str]:
        """The best output of each frame, (B, F), in, texts out: repeats are one character, blanks none."""
        rows = zip(best.cpu().numpy(), num_frames.tolist(), strict=True)
        return ["".join(self.characters[at - 1] for at in _collapsed(row[:num]).tolist()) for row, num in rows]


def least_frames(targets: Tensor, num: Tensor) -> Tensor:
    """Frames that each text needs: one a character, and a blank between two that are the same."""
    same = targets[:, 1:] == targets[:, :-1]
    inside = torch.arange(same.shape[1], device=targets.device) + 1 < num[:, None]
    return num + (same & inside).sum(1)


def read_texts(text: Tensor, num_bytes: Tensor) -> list[str]:
    """UTF-8 (B, n) uint8 and its lengths in, texts out."""
    rows = zip(text.cpu().numpy(), num_bytes.tolist(), strict=True)
    return [row[:num].tobytes().decode() for row, num in rows]


def error_rate(said: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Edits from one to the other, of characters or words, by the length of what was wanted; NaN for none."""
    return num_edits(said, wanted) / len(wanted) if wanted else float("nan")


def num_edits(said: Sequence[Any], wanted: Sequence[Any]) -> int:
    """Fewest characters or words to insert, delete or replace (Levenshtein)."""
    numbers = {one: number for number, one in enumerate({*said, *wanted})}
    columns = np.array([numbers[one] for one in wanted], np.int64)
    steps = np.arange(len(wanted) + 1)
    row = steps.copy()
    for one in said:
        kept = np.minimum(row[:-1] + (columns != numbers[one]), row[1:] + 1)
        # Inserting is a running minimum along the row: each place costs one more than that before it.
        row = np.minimum.accumulate(np.concatenate([row[:1] + 1, kept]) - steps) + steps
    return int(row[-1])


def _refuse_others(alphabet: Alphabet, _: object) -> None:
    """Weights of another alphabet of the same size would load, and spell nonsense."""
    if (loaded := "".join(map(chr, alphabet.points.tolist()))) != alphabet.characters:
        raise ConfigError(
            f"the weights spell with {loaded!r}, the train texts with {alphabet.characters!r}. Set "
            "model.params.alphabet to the first, or do without these weights"
        )


def _collapsed(row: Array) -> Array:
    changes: Array = row[np.concatenate([[True], row[1:] != row[:-1]])] if len(row) else row
    kept: Array = changes[changes != BLANK]
    return kept
