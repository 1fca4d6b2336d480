"""Trials in the script's process: what the command asks for, in turns with the script's own loader."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from flatout.doctor.ceiling.plan import (
    Block,
    block_steps,
    in_turns,
    num_rounds,
    sources_in_time,
    steps_in_time,
)
from flatout.doctor.ceiling.sources import LoaderSource, Source
from flatout.doctor.child.exit import own_rank
from flatout.doctor.child.loaders import steps_of
from flatout.doctor.child.watch import WATCH
from flatout.doctor.trial.agreement import batches_agree
from flatout.doctor.trial.loaders import LOADER_SETTINGS, changed_loader
from flatout.doctor.trial.ranks import refused_by_any
from flatout.doctor.trial.switches import SwitchedSource, reason_of

if TYPE_CHECKING:
    from flatout.doctor.child.session import Session

ANSWER_S = 120.0
"""The command answers at once; it is gone if it has not by then."""
NO_TIME = "its steps would take longer than the time limit: give more with --time-limit"


def rounds_of(number: int, num_rounds: int) -> range:
    """Numbers of the rounds of one series of trials, unlike those of any other."""
    first = 100 * (number + 1)
    return range(first, first + num_rounds)


def trial_blocks(session: Session) -> Iterator[Block]:
    """Ask, try, tell, until there is nothing left to try."""
    folder, number = WATCH.log.folder, 0
    while trials := _ask(session, folder, number):
        sources = _sources(session, trials, folder / f"caches-{number}-{own_rank()}")
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
    """A source for each trial that can be made, by every rank; the others are told with their reason."""
    # one of those that there is time for is the script as it is
    most = max(0, sources_in_time(session.mean_step_s, session.settings.time_limit_s) - 1)
    sources: dict[str, SwitchedSource] = {}
    refused = {trial["name"]: NO_TIME for trial in trials[most:]}
    for trial in trials[:most]:
        name, settings = trial["name"], trial["settings"]
        try:
            sources[name] = _source(session, name, settings, folder / name)
        except (
            Exception
        ) as error:  # somebody else's dataset in another place: one remedy that fails is one less
            refused[name] = reason_of(error)
    return _without(sources, refused_by_any(refused))


def _without(sources: dict[str, SwitchedSource], refused: Mapping[str, str]) -> list[SwitchedSource]:
    for name, why in refused.items():
        WATCH.add(("refused", name, why))
        if name in sources:
            sources.pop(name).close()
    return list(sources.values())


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
        check = folder.with_name(f"{name}-check")
        WATCH.add(("agrees", name, batches_agree(loader, settings, check, session.torch_advance)))
    return SwitchedSource(name, inner, settings, session)


def _rounds(session: Session, sources: list[SwitchedSource], number: int) -> Iterator[Block]:
    base, seen = session.base, session.primary
    if base is None or seen is None:
        return
    workers = max(seen.loader.num_workers, *(source.num_ahead // 2 for source in sources))
    length = seen.epoch_steps or steps_of(seen.loader)
    steps = block_steps(session.mean_step_s, workers, length, session.unevenness)
    steps = steps_in_time(session.mean_step_s, steps, 1 + len(sources), session.settings.time_limit_s)
    most = num_rounds(session.mean_step_s, steps, 1 + len(sources))
    yield from in_turns([base, *sources], steps, session.mean_step_s, rounds_of(number, most))
