"""JSON as people write it: comments and trailing commas allowed, duplicate keys refused, lines remembered."""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder
from typing import Any, NoReturn

from flatout.config.layer import Path, dotted
from flatout.errors import ConfigError

_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_SCALARS = JSONDecoder(parse_constant=_refuse_constant)
"""Reads the strings, numbers and words; lists and mappings are ours, for their commas and lines."""


def parse_jsonc(text: str, origin: str) -> tuple[Any, dict[Path, int]]:
    """The value that `text` holds, and the line of each key.

    Raises:
        ConfigError: the text is no JSON, or a key stands twice; names `origin` and the line.
    """
    parser = _Parser(text, origin)
    try:
        value = parser.value(())
    except RecursionError as error:
        raise ConfigError(f"{origin}, line {parser.line()}: nested too deeply") from error
    if parser.peek():
        parser.fail(f"wanted the end of the file, got {parser.peek()!r}")
    return value, parser.lines


class _Parser:
    """Recursive descent over one text; `at` is where it stands."""

    def __init__(self, text: str, origin: str) -> None:
        self.text = text
        self.origin = origin
        self.at = 0
        self.lines: dict[Path, int] = {}

    def fail(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self.origin}, line {self.line()}: {reason}")

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def peek(self) -> str:
        """The next character that counts; "" at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def value(self, path: Path) -> Any:
        start = self.peek()
        if start == "{":
            return self.mapping(path)
        if start == "[":
            return self.sequence(path)
        return self.scalar()

    def mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.at += 1
        while self.peek() != "}":
            if self.peek() != '"':
                self.fail(f"wanted a key in double quotes or '}}', got {self.peek() or 'the end'!r}")
            line = self.line()
            key = str(self.scalar())
            here = (*path, key)
            if key in found:
                first = self.lines[here]
                raise ConfigError(
                    f"{self.origin}, line {line}: '{dotted(here)}' stands here and in line {first}; keep one"
                )
            self.lines[here] = line
            self.expect(":")
            found[key] = self.value(here)
            self.separator("}")
        self.at += 1
        return found

    def sequence(self, path: Path) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while self.peek() != "]":
            found.append(self.value((*path, len(found))))
            self.separator("]")
        self.at += 1
        return found

    def separator(self, end: str) -> None:
        """A comma, or the end of the list or mapping; a comma right before the end is fine."""
        if self.peek() == ",":
            self.at += 1
        elif self.peek() != end:
            self.fail(f"wanted ',' or '{end}', got {self.peek() or 'the end'!r}")

    def expect(self, character: str) -> None:
        if self.peek() != character:
            self.fail(f"wanted '{character}', got {self.peek() or 'the end'!r}")
        self.at += 1

    def scalar(self) -> Any:
        try:
            value, self.at = _SCALARS.raw_decode(self.text, self.at)
        except JSONDecodeError as error:
            self.at = error.pos
            self.fail(f"{error.msg.lower()}, got {self.peek() or 'the end'!r}")
        except ValueError as error:
            self.fail(str(error))
        return value
