"""Settings that only some tasks follow: one that was given, and that the run's task does not read, is named."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from flatout.config import Config

ALONE = ("mode", "eval_scales", "kl_annealing")
SECTIONS = ("model", "augmentation")
"""Their settings are looked at one by one."""


def unread(config: Config, task: str, reads: Collection[str] | None) -> list[str]:
    """A note on each setting that is not as by default and has no effect.

    Args:
        reads: names of those settings that the task follows, or of whole sections; None: nobody knows.
    """
    if reads is None:
        return []
    names = [name for name in _given(config) if name not in reads and name.partition(".")[0] not in reads]
    return [f"{name}: task {task} does not read it; no effect" for name in names]


def _given(config: Config) -> Iterator[str]:
    for name in ALONE:
        if getattr(config, name) != type(config).model_fields[name].get_default(call_default_factory=True):
            yield name
    for section in SECTIONS:
        own = getattr(config, section)
        plain = type(own)()
        yield from (
            f"{section}.{name}" for name in type(own).model_fields if getattr(own, name) != getattr(plain, name)
        )
