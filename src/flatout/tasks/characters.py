"""What the texts of a training are spelled with, checked before the first batch."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.config import Config
from flatout.errors import ConfigError
from flatout.train import TaskData

NUM_SHOWN = 20
"""Characters that a message lists."""


def find_characters(config: Config, data: TaskData, name: str) -> str:
    """What texts are spelled with: the characters of the train split, or `model.params.alphabet`.

    Raises:
        ConfigError: there are none, or a text has another one.
    """
    texts = {split: [bytes(value).decode() for value in data.values(name, split)] for split in data.num_samples}
    given = config.model.params.get("alphabet")
    if not isinstance(given, str | None):
        raise ConfigError(f"model.params.alphabet is {given!r}; wanted a text with every character, as 'abc '")
    known = set("".join(texts.get("train", ())) if given is None else given)
    if not known:
        raise ConfigError(
            f"all texts of '{name}' are empty in the train split: there is nothing to spell. Look at the "
            f"column of the manifest; fields.{name}: null leaves it out, and a label is told apart instead"
        )
    for split, found in texts.items():
        _refuse_unknown(known, name, split, found, is_given=given is not None)
    return "".join(sorted(known))


def _refuse_unknown(known: set[str], name: str, split: str, texts: Sequence[str], *, is_given: bool) -> None:
    unknown = set("".join(texts)) - known
    if not unknown:
        return
    first = next(text for text in texts if unknown & set(text))
    source = "model.params.alphabet lacks" if is_given else "no text of the train split has"
    shown = "".join(sorted(unknown)[:NUM_SHOWN])
    raise ConfigError(
        f"split '{split}' has characters in '{name}' that {source}: {shown!r}, first in {shortened(first)}. "
        "Mend the texts (case, punctuation), or list every character in model.params.alphabet: those that "
        "train lacks then count as errors"
    )


def shortened(text: str) -> str:
    """A text as a message quotes it."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
