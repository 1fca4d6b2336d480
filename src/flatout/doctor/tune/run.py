"""tune: a config in; the loader settings that are fastest on this machine, with the trials as proof, out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from flatout.config import Config, resolve_config
from flatout.config.load import Source
from flatout.doctor.tune.facts import Facts
from flatout.doctor.tune.interval import Interval
from flatout.doctor.tune.model import Service
from flatout.doctor.tune.options import RESULTS, TuneOptions
from flatout.doctor.tune.process import Trials
from flatout.doctor.tune.race import LEAST_ROUNDS, Entry
from flatout.doctor.tune.search import Search
from flatout.doctor.tune.setting import AS_IT_IS, Setting, keys_of
from flatout.doctor.tune.space import Space
from flatout.doctor.tune.stage import Found, Stage
from flatout.loader.create import prepare_command
from flatout.loader.machine import describe_machine

KIND = "flatout.tune"
PROOF_VERSION = 1
PROBE_S = 0.5
SLICE_BATCHES = 8
"""Batches that a stretch has about."""
SLICE_S = (0.3, 3.0)
"""Shortest and longest stretch."""
LEAST_SEARCH = 0.5
"""Part of the budget that the search has even where opening the data took longer than the rest."""
PATIENCE = 0.5
"""Part of the budget that a stretch without an answer is waited for."""
SLICES = 60
"""Stretches that a budget must have room for: with less time they are shorter."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tuned:
    """What a tuning found."""

    config: Config
    facts: Facts
    service: Service
    found: Found
    options: TuneOptions
    slice_s: float
    seconds: float
    predicted: dict[Setting, float]
    """Samples a second that the model predicted."""

    @property
    def start(self) -> Setting:
        """What stood before."""
        return self.facts.start

    @property
    def setting(self) -> Setting:
        """What is best."""
        return self.found.setting

    @property
    def keys(self) -> dict[str, Any]:
        """The config keys to change, by dotted name."""
        keys = keys_of(self.setting, self.start, self.facts.encodable, self.facts.num_samples)
        if self.setting.encoding != AS_IT_IS:
            unnamed = set(self.facts.encodable) - self.config.fields.keys() if self.config.transform else set()
            keys |= {f"fields.{name}.kind": "transform" for name in sorted(unnamed)}
            suffix = self.setting.encoding.replace("+", "-")
            keys["preprocessed_data_dir"] = f"{str(self.config.preprocessed_data_dir).rstrip('/')}-{suffix}"
        if self.found.keeps_workers:
            keys["train_ds.persistent_workers"] = True
        return keys

    @property
    def changes_results(self) -> list[str]:
        """Which of the changes make another training of it."""
        return [name for name in RESULTS if getattr(self.setting, name) != getattr(self.start, name)]

    @property
    def not_tried(self) -> dict[str, str]:
        """What was left alone, and why."""
        facts, allow = self.facts, self.options.allow
        reasons = {
            name: f"it changes results; --allow {name} tries it" for name in RESULTS if name not in allow
        }
        if not facts.is_fast:
            reasons |= dict.fromkeys(("encoding", "order"), "raw files have neither; a store does")
        elif "order" in allow and not facts.is_larger_than_memory:
            reasons["order"] = "the store fits into memory, where every order is equally fast"
        if facts.is_fast and not facts.is_compressed and not facts.has_cuda:
            reasons["cache"] = "no field is compressed: the system's page cache keeps the samples already"
        return reasons | self.found.skipped

    def to_json(self) -> dict[str, Any]:
        """The proof."""
        gain = self.found.gain
        return {
            "kind": KIND,
            "version": PROOF_VERSION,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "path": "store" if self.facts.is_fast else "raw files",
            "consumer": self.facts.consumer,
            "before": self.start.to_json(),
            "after": self.setting.to_json(),
            "keys": self.keys,
            "changes_results": self.changes_results,
            "gain": None if gain is None else {"middle": gain.middle, "low": gain.low, "high": gain.high},
            "is_complete": self.found.is_complete,
            "seconds": self.seconds,
            "slice_s": self.slice_s,
            "budget": {
                "seconds": self.options.budget_s,
                "cpu": self.options.cpu_budget,
                "memory": self.options.memory_budget,
                "allow": sorted(self.options.allow),
            },
            "service": self.service.to_json(),
            "stages": [self._stage_json(stage) for stage in self.found.stages],
            "not_tried": self.not_tried,
            "notes": list(self.facts.notes),
            "machine": self.facts.machine,
        }

    def _stage_json(self, stage: Stage) -> dict[str, Any]:
        trials = [self._trial_json(entry) for entry in stage.entries if entry.slices or entry.failure]
        taken = None if stage.taken is None else stage.taken.to_json()
        return {"name": stage.name, "taken": taken, "reason": stage.reason, "trials": trials}

    def _trial_json(self, entry: Entry) -> dict[str, Any]:
        known = {
            "setting": entry.setting.to_json(),
            "predicted_samples_per_s": self.predicted.get(entry.setting),
        }
        if not entry.slices:
            return {**known, "rounds": 0, "failure": entry.failure}
        spread: Interval = entry.spread
        is_sure = len(entry.slices) >= LEAST_ROUNDS
        return {
            **known,
            "rounds": len(entry.slices),
            "samples_per_s": entry.rate,
            "low": spread.low if is_sure else None,
            "high": spread.high if is_sure else None,
            "each": entry.rates,
            "wait_share": entry.wait_share,
            "cpu_share": entry.cpu_share,
            "memory_bytes": entry.memory_bytes,
            "failure": entry.failure,
        }


def tune(
    source: Source,
    *,
    sets: Sequence[str] = (),
    options: TuneOptions = TuneOptions(),  # noqa: B008  frozen
    say: Callable[[str], None] = _log.info,
) -> Tuned:
    """Find the loader settings of a config's train split that are fastest here.

    A model of what a batch costs says what is worth a trial; trials are stretches of real loading with the
    task's own step, measured in turn. What changes results stays unless another is better beyond noise, the
    rest unless another is likely better. Ctrl-C ends the search with the best so far.

    Args:
        source: a Config, a dict, or the path of a config file.
        sets: "a.b=c" texts, as `--set` takes them.
        say: takes a line on each stage.

    Raises:
        ConfigError, LoaderError, StoreError, SourceError: the data cannot be opened or measured.
        KeyboardInterrupt: before anything was measured.
    """
    started = time.monotonic()
    config, notes = resolve_config(source, sets=sets)
    for note in notes:
        say(note)
    free_bytes = describe_machine(look_for_gpu=False).free_bytes
    memory_bytes = int(options.memory_budget * free_bytes)
    command = prepare_command(source, config)
    with Trials(config, memory_bytes, command, patience_s=PATIENCE * options.budget_s) as trials:
        facts = trials.facts()
        for note in facts.notes:
            say(note)
        service = trials.probe(min(PROBE_S, options.budget_s / 20))
        slice_s = slice_of(service, options.budget_s)
        space = Space(facts, service, memory_bytes, options.allow)
        search = Search(
            space,
            partial(_run, trials, slice_s),
            budget_s=left_of(options.budget_s, time.monotonic() - started),
            cpu_budget=options.cpu_budget,
            get_ready=trials.get_ready,
            say=say,
        )
        found = search.run()
    tried = {entry.setting for stage in found.stages for entry in stage.entries}
    predicted = {setting: rate for setting in tried if (rate := search.predicted(setting)) is not None}
    seconds = time.monotonic() - started
    return Tuned(config, facts, service, found, options, slice_s, seconds, predicted)


def left_of(budget_s: float, spent_s: float) -> float:
    """Seconds for the search after the data were opened and one batch was measured."""
    return max(budget_s - spent_s, LEAST_SEARCH * budget_s)


def slice_of(service: Service, budget_s: float) -> float:
    """Seconds of a stretch: some batches, and no more than the budget allows."""
    shortest, longest = SLICE_S
    wanted = SLICE_BATCHES * (service.make_s + service.step_s)
    return min(max(shortest, wanted), longest, max(budget_s / SLICES, 0.01))


def _run(trials: Trials, slice_s: float, setting: Setting, *, on_sample: bool) -> Any:
    return trials.run(setting, slice_s, on_sample=on_sample)
