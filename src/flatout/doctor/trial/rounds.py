"""Trials in the script's process: what the command asks for, in turns with the script's own loader."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from flatout.doctor.ceiling.plan import Block, block_steps, in_turns, num_rounds
from flatout.doctor.ceiling.sources import LoaderSource, Source
from flatout.doctor.child.loaders import steps_of
from flatout.doctor.child.watch import WATCH
from flatout.doctor.trial.agreement import batches_agree
from flatout.doctor.trial.loaders import LOADER_SETTINGS, changed_loader
from flatout.doctor.trial.switches import SwitchedSource
from flatout.errors import FlatoutError

if TYPE_CHECKING:
    from flatout.doctor.child.session import Session

ANSWER_S = 120.0
"""The command answers at once; it is gone if it has not by then."""


def rounds_of(number: int, num_rounds: int) -> range:
    """Numbers of the rounds of one series of trials, unlike those of any other."""
    first = 100 * (number + 1)
    return range(first, first + num_rounds)


def trial_blocks(session: Session) -> Iterator[Block]:
    """Ask, try, tell, until there is nothing left to try."""
    folder, number = WATCH.log.folder, 0
    while trials := _ask(session, folder, number):
        sources = _sources(session, trials, folder / f"caches-{number}")
        if sources:
            yield from _rounds(session, sources, number)
        for source in sources:
            source.close()
        number += 1


def _ask(session: Session, folder: Path, number: int) -> list[dict[str, Any]]:
    """Write down all that is known, then wait for the next trials: [{"name": ..., "settings": {...}}]."""
    session.finish()
    (folder / f"ask-{number}").touch()
    answer, end = folder / f"trials-{number}.json", perf_counter() + ANSWER_S
    parent = os.getppid()
    while not answer.exists():
        if perf_counter() > end or os.getppid() != parent:
            return []
        sleep(0.02)
    trials: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))
    return trials


def _sources(session: Session, trials: list[dict[str, Any]], folder: Path) -> list[SwitchedSource]:
    """A source for each trial that can be made; the others are told with their reason."""
    sources = []
    for trial in trials:
        try:
            sources.append(_source(session, trial["name"], trial["settings"], folder / trial["name"]))
        except (FlatoutError, ValueError, TypeError, OSError) as error:
            WATCH.add(("refused", trial["name"], str(error)))
    return sources


def _source(session: Session, name: str, settings: dict[str, Any], folder: Path) -> SwitchedSource:
    if session.base is None or session.primary is None:
        raise ValueError("no training loader was seen")
    loader = session.primary.loader
    inner: Source = session.base
    if settings.keys() & {*LOADER_SETTINGS, "cache", "batch_size"}:
        changed: DataLoader[Any] = changed_loader(loader, settings, folder)
        inner = LoaderSource(name, lambda: session.torch_iterate(changed), session.torch_advance)
        inner.next()  # workers start before the first block
        inner.settle()
        WATCH.add(("agrees", name, batches_agree(loader, settings, folder.with_name(f"{name}-check"))))
    return SwitchedSource(name, inner, settings, session)


def _rounds(session: Session, sources: list[SwitchedSource], number: int) -> Iterator[Block]:
    base, seen = session.base, session.primary
    if base is None or seen is None:
        return
    workers = max(seen.loader.num_workers, *(source.num_ahead // 2 for source in sources))
    length = seen.epoch_steps or steps_of(seen.loader)
    steps = block_steps(session.mean_step_s, workers, length, session.unevenness)
    most = num_rounds(session.mean_step_s, steps, 1 + len(sources))
    yield from in_turns([base, *sources], steps, session.mean_step_s, rounds_of(number, most))
