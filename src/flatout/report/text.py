"""Text of unknown origin made fit to be shown: bounded in length, without characters that act."""

from __future__ import annotations

import re
from typing import Any

NAME_LENGTH = 120
VALUE_LENGTH = 400
TRACEBACK_LENGTH = 20_000

_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters: a terminal would obey them
    "\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff"  # reversed and invisible text reads other than it is
    "\ud800-\udfff\ufffe\uffff]"  # no characters: they cannot be written as UTF-8
)


def cleaned(text: str) -> str:
    """The text with a visible sign in place of each character that would act; line ends stay."""
    return _ACTING.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def clipped(value: Any, length: int = VALUE_LENGTH) -> str:
    """A value as text, cut at `length` characters."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def clipped_end(text: str, length: int = TRACEBACK_LENGTH) -> str:
    """The end of a text, which is where a traceback says what happened."""
    return text if len(text) <= length else f"…{text[1 - length :]}"
