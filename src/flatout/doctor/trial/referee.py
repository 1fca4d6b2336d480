"""Referee: tells the running script what to try next, and judges what its blocks of steps showed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from flatout.doctor.ceiling.measure import base_starts_s, block_seconds
from flatout.doctor.child.log import read_rows
from flatout.doctor.record import DoctorRecord, Remedy, Trial
from flatout.doctor.rules.case import look_at
from flatout.doctor.steps.cut import steps_of
from flatout.doctor.steps.epochs import epochs_of, starts_of
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import Trace, read_trace
from flatout.doctor.trial.together import TOGETHER, going_together
from flatout.doctor.tune.interval import spread_of

FLAGS = {"matmul_precision", "cudnn_benchmark"}
"""Switches that change how numbers are rounded: tried only when they are asked for."""
MAX_TRIED = 5
LEAST_GAIN = 1.02
"""A remedy that gives less is not kept even if it is sure: nobody would notice."""

Look = Callable[[Path], DoctorRecord]


class Referee:
    """One observation's trials: each remedy alone, then the good ones together.

    Args:
        look: the diagnosed record of a run folder, so far.
        with_flags: whether to try switches that change rounding.
        say: told about each step.
    """

    def __init__(
        self, look: Look, *, with_flags: bool = False, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._look = look
        self._with_flags = with_flags
        self._say = say
        self._asked: dict[str, Remedy] = {}
        self.trials: dict[str, Trial] = {}
        self._together: Remedy | None = None
        self._parts: list[str] = []
        self._instead: dict[str, str] = {}

    def answer(self, folder: Path) -> None:
        """Answer the script's question, if it has asked one."""
        number = len(list(folder.glob("trials-*.json")))
        if not (folder / f"ask-{number}").exists():
            return
        wanted = self._singles(folder) if number == 0 else self._combination(folder) if number == 1 else []
        self._judge(folder)
        text = json.dumps([{"name": remedy.name, "settings": dict(remedy.settings)} for remedy in wanted])
        part = folder / f"trials-{number}.part"
        part.write_text(text, encoding="utf-8")
        part.rename(folder / f"trials-{number}.json")

    def _singles(self, folder: Path) -> list[Remedy]:
        found = [remedy for remedy in self._look(folder).remedies if self._can_be_tried(remedy)][:MAX_TRIED]
        self._asked = {remedy.name: remedy for remedy in found}
        if found:
            self._say(f"trying {', '.join(remedy.name for remedy in found)}, in turns with the script as it is")
        return found

    def _can_be_tried(self, remedy: Remedy) -> bool:
        return bool(remedy.settings) and (self._with_flags or not FLAGS & remedy.settings.keys())

    def _combination(self, folder: Path) -> list[Remedy]:
        """All that was kept and goes together, at once, if that is more than one thing."""
        self._judge(folder)
        kept = going_together(
            [
                replace(remedy, trial=trial)
                for name, remedy in self._asked.items()
                if (trial := self.trials.get(name)) is not None and trial.is_kept
            ]
        )
        if len(kept) < 2:
            return []
        merged: dict[str, Any] = {}
        for remedy in kept:
            merged |= remedy.settings
        if any(merged == remedy.settings for remedy in kept):
            return []
        names = " and ".join(remedy.name for remedy in kept)
        self._together = Remedy(
            name=TOGETHER,
            evidence=f"{names}, each faster alone",
            predicted_gain=None,
            cost="; ".join(remedy.cost for remedy in kept),
            how="; ".join(remedy.how for remedy in kept),
            settings=merged,
            changes_results=any(remedy.changes_results for remedy in kept),
        )
        self._parts = [remedy.name for remedy in kept]
        self._asked[TOGETHER] = self._together
        self._say(f"trying {names} together")
        return [self._together]

    def _judge(self, folder: Path) -> None:
        """Judge every trial that the rows tell something about."""
        traces = [read_trace(pid, rows) for pid, rows in read_rows(folder, "events").items()]
        for trace in traces:
            if trace.train_number is not None:
                phases = Phases(trace)
                self.trials |= {
                    name: trial
                    for name, remedy in self._asked.items()
                    if (trial := judged(trace, phases, remedy)) is not None
                }

    def finish(self, record: DoctorRecord, folder: Path) -> DoctorRecord:
        """The record with the trials beside their remedies."""
        self._judge(folder)
        self._compare_together()
        remedies = list(record.remedies) + ([self._together] if self._together in self._asked.values() else [])
        tried = (replace(remedy, trial=self.trials.get(remedy.name)) for remedy in remedies if remedy)
        found = tuple(replace(each, how=self._instead.get(each.name, each.how)) for each in tried)
        return replace(record, remedies=found, warnings=(*record.warnings, *self._without_flags(record)))

    def _without_flags(self, record: DoctorRecord) -> list[str]:
        """That switches were asked for, and there is none to try."""
        if not self._with_flags or not record.steps:
            return []
        if not look_at(record).is_on_gpu:
            return ["--flags had nothing to try: TF32 and cuDNN are for a GPU, and this training is on the CPU"]
        if any(FLAGS & remedy.settings.keys() for remedy in record.remedies):
            return []
        return ["--flags had nothing to try: TF32 and cuDNN are on already, or nothing is to be won by them"]

    def _compare_together(self) -> None:
        """Several remedies at once are kept only if they beat the best of them alone, beyond noise."""
        together = self.trials.get(TOGETHER)
        alone = {name: trial for name, trial in self.trials.items() if name != TOGETHER and trial.is_kept}
        if together is None or together.low == together.high or not alone:  # equal: refused, and it says why
            return
        best = max(alone, key=lambda name: alone[name].gain)
        if together.high < alone[best].low:
            self._leave_parts(best, together)
        elif together.low <= alone[best].gain:
            note = f"{best} alone is as fast, as far as can be told"
            self.trials[TOGETHER] = replace(together, is_kept=False, note=note)

    def _leave_parts(self, best: str, together: Trial) -> None:
        """The others slow the best of them down: whoever follows the list must not add them to it."""
        note = f"slower than {best} alone, beyond noise"
        self.trials[TOGETHER] = replace(together, is_kept=False, note=note)
        self._instead[TOGETHER] = f"not at once; {best} alone"
        for name in self._parts:
            if name != best and name in self.trials:
                note = f"faster than the script as it is, but together with {best} slower than {best} alone"
                self.trials[name] = replace(self.trials[name], is_kept=False, note=note)
                self._instead[name] = f"instead of {best}, not beside it: {self._asked[name].how}"


def judged(trace: Trace, phases: Phases, remedy: Remedy) -> Trial | None:
    """What the blocks of a remedy show against those of the script as it is; None: it was not tried."""
    if remedy.name in trace.refusals:
        return Trial(1.0, 1.0, 1.0, is_kept=False, note=trace.refusals[remedy.name])
    evaluated = "evaluate_batches" in remedy.settings
    theirs_s, own_s = _starts(trace, phases, remedy)
    mine = _blocks(trace, phases, remedy.name, evaluated, own_s)
    base = _blocks(trace, phases, "base", evaluated, theirs_s)
    rounds = sorted(mine.keys() & base.keys())
    if len(rounds) < 2:
        return None
    scale = _scale(trace, remedy.settings)
    found = spread_of([scale * base[number] / mine[number] for number in rounds])
    agrees = trace.agreements.get(remedy.name)
    is_frozen = _is_frozen(trace, remedy)
    is_kept = found.low > 1.0 and found.middle >= LEAST_GAIN and agrees is not False and not is_frozen
    high = found.high if math.isfinite(found.high) else found.middle
    is_noise = found.low <= 1.0 and high >= LEAST_GAIN
    return Trial(found.middle, found.low, high, is_kept, agrees, _note(remedy, agrees, is_frozen, is_noise))


def _starts(trace: Trace, phases: Phases, remedy: Remedy) -> tuple[float | None, float | None]:
    """Seconds a step of starts of epochs, of the script as it is and of the remedy; None: as they fell.

    Blocks are seldom whole epochs, so that workers which start for each would be in some of them by chance.
    """
    epochs = epochs_of(trace, steps_of(trace, phases, 0))
    base_s = base_starts_s(trace, epochs)
    if base_s is None or not epochs.length:
        return None, None
    if own := starts_of(trace, remedy.name):
        return base_s, median(own) / epochs.length * _scale(trace, remedy.settings)
    has_none = remedy.settings.get("persistent_workers") or remedy.settings.get("num_workers") == 0
    return base_s, 0.0 if has_none else base_s


def _blocks(
    trace: Trace, phases: Phases, name: str, evaluated: bool, starts_s: float | None
) -> dict[int, float]:
    """Mean step by round; all of it, or without evaluations but with their mean."""
    blocks = [block for block in trace.blocks if block.name == name]
    if evaluated:
        return {b.round: sum(phases.seconds(b.start, b.end).values()) / b.num_steps for b in blocks}
    means = [phases.seconds(b.start, b.end)["evaluate"] / b.num_steps for b in trace.blocks if b.name == "base"]
    return block_seconds(trace, name, phases, fmean(means) if means else 0.0, starts_s)


def _scale(trace: Trace, settings: Mapping[str, Any]) -> float:
    """A larger batch makes fewer steps."""
    known = trace.loader(trace.train_number) if trace.train_number is not None else None
    if "batch_size" not in settings or not known or not known["batch_size"]:
        return 1.0
    return float(settings["batch_size"] / known["batch_size"])


def _is_frozen(trace: Trace, remedy: Remedy) -> bool:
    """A cache of samples that come out otherwise each time, as far as they could be compared."""
    return bool(remedy.settings.get("cache")) and trace.agreements.get(remedy.name, True) is None


def _note(remedy: Remedy, agrees: bool | None, is_frozen: bool, is_noise: bool) -> str:
    if is_frozen:
        return "its samples are random: a cache would give what was drawn first again and again"
    if agrees is False:
        return "its batches hold other numbers than the script's"
    if is_noise:
        return "too noisy to tell whether it is faster: look again when the machine is quiet"
    if remedy.changes_results:
        return "it changes the training's results"
    return "same numbers" if agrees else ""
