"""Settings against settings: a guide's start and what each row changes take turns, each in its own process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Literal

from flatout.bench.guides_rows import Measure
from flatout.bench.train_cases import cut_epoch
from flatout.bench.train_contestant import Entry
from flatout.bench.train_process import Contestant
from flatout.bench.train_rounds import Asked, Figures
from flatout.errors import FlatoutError

Settings = dict[str, Any]
Mode = Literal["rounds", "epochs", "monitor", "run"]
"""How a row is run: rounds of steps; epochs of a few steps; many steps; a stretch with validation."""

EPOCH_STEPS = 4
NUM_EPOCHS = 3
MONITOR_STEPS = 200
"""Steps that see every look and plot of the settings a guide began with."""
RUN_STEPS = 60
NUM_WARM = 2
"""Steps before the rounds: a compiled model is compiled anew when the second length comes."""
ONLY_IN_RUNS = ("val_check_interval", "limit_val_batches", "check_val_every_n_epoch", "save_top_k")
"""What has no part in a step; a round that a validation falls into would measure that."""


@dataclass(frozen=True)
class GroupSetting:
    """How long to measure."""

    seconds: float
    rounds: int
    say: Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """What a measure is of."""

    unit: str
    of: Callable[[Figures], float]
    is_better_high: bool


def mode_of(measure: Measure) -> Mode:
    """How rows of a measure are run."""
    modes: dict[str, Mode] = {"epoch_switch": "epochs", "monitor": "monitor", "run": "run"}
    return modes.get(measure, "rounds")


def measure_group(
    config: Mapping[str, Any],
    base: Settings,
    rows: Sequence[tuple[Settings, Measure]],
    mode: Mode,
    setting: GroupSetting,
) -> list[dict[str, Any]]:
    """Figures of each row: what is switched, and what is measured of it, in.

    Rows that switch the same are measured once.

    Raises:
        FlatoutError: the settings on the other side do not train. A row's own say so in its figures.
    """
    before = Contestant("before", _entry(config, base, mode).to_json())
    different = {_name(switch): switch for switch, _ in rows}
    switched = {
        name: Contestant(name, _entry(config, {**base, **switch}, mode).to_json())
        for name, switch in different.items()
    }
    failed = run_rounds(before, switched, mode, setting)
    return [
        {"failed": failed[_name(switch)]}
        if _name(switch) in failed
        else compare(before, switched[_name(switch)], switch, measure)
        for switch, measure in rows
    ]


def run_rounds(
    before: Contestant, switched: Mapping[str, Contestant], mode: Mode, setting: GroupSetting
) -> dict[str, str]:
    """Take turns; what failed, by name, out."""
    asked, failed = _asked(mode, setting.seconds), {}
    with ExitStack() as stack:
        stack.enter_context(before.running())
        before.run(Asked(steps=NUM_WARM))
        there = [before]
        for name, contestant in switched.items():
            try:
                stack.enter_context(contestant.running())
                contestant.run(Asked(steps=NUM_WARM))
                there.append(contestant)
            except FlatoutError as error:
                failed[name] = str(error).strip().splitlines()[-1]
        for number in range(1 if mode == "monitor" else setting.rounds):
            first = number % len(there)
            for contestant in (*there[first:], *there[:first]):
                contestant.rounds.append(contestant.run(asked))
    names = ", ".join(contestant.name for contestant in there[1:])
    setting.say(f"  {mode}: {names}{' failed: ' + ', '.join(failed) if failed else ''}")
    return failed


def compare(before: Contestant, after: Contestant, switch: Settings, measure: Measure) -> dict[str, Any]:
    """What the switch comes to: `gain` is how much better, as a share; less than 0 is a loss."""
    kind = KINDS[measure]
    pairs = [(kind.of(a), kind.of(b)) for a, b in zip(before.rounds, after.rounds, strict=True)]
    ratio = median(b / a if a else 1.0 for a, b in pairs)
    roots = {name.partition(".")[0] for name in switch}
    return {
        "from": median(a for a, _ in pairs),
        "to": median(b for _, b in pairs),
        "unit": kind.unit,
        "ratio": ratio,
        "gain": ratio - 1.0 if kind.is_better_high else 1.0 - ratio,
        "notes": [note for note in after.facts["notes"] if note.partition(":")[0].partition(".")[0] in roots],
    }


def _entry(config: Mapping[str, Any], settings: Settings, mode: Mode) -> Entry:
    if mode == "run":
        return Entry(config, settings, options={"limit_train_batches": RUN_STEPS})
    steps_only = {name: value for name, value in settings.items() if name not in ONLY_IN_RUNS}
    if mode == "epochs":  # not cut off by the Trainer: workers would be left with batches of the old epoch
        config = cut_epoch(config, EPOCH_STEPS * settings["batch_size"])
    return Entry(config, steps_only)


def _asked(mode: Mode, seconds: float) -> Asked:
    whole = {
        "run": Asked(steps=RUN_STEPS, is_whole=True),
        "epochs": Asked(steps=EPOCH_STEPS * NUM_EPOCHS, is_whole=True),
        "monitor": Asked(steps=MONITOR_STEPS),
    }
    return whole.get(mode, Asked(seconds=seconds))


def _name(switch: Settings) -> str:
    return json.dumps(switch, sort_keys=True)


def _rate(figures: Figures) -> float:
    return float(figures["samples"] / figures["wall_s"])


def _epoch_switch_ms(figures: Figures) -> float:
    """What the first step of an epoch takes longer than others."""
    starts = set(figures["epoch_starts"])
    first = [step for at, step in enumerate(figures["step_s"]) if at in starts]
    others = [step for at, step in enumerate(figures["step_s"]) if at not in starts]
    return 1e3 * max(0.0, mean(first) - median(others)) if first and others else 0.0


KINDS: dict[Measure, Kind] = {
    "speed": Kind("samples/s", _rate, True),
    "run": Kind("samples/s", _rate, True),
    "epoch_time": Kind("s", lambda each: each["num_samples"] / _rate(each), False),
    "data_time": Kind("ms a batch", lambda each: 1e3 * each["data_s"] / each["steps"], False),
    "utilisation": Kind("of the time", lambda each: 1.0 - each["data_s"] / each["wall_s"], True),
    "cpu": Kind("busy cores", lambda each: each["cpu_s"] / each["wall_s"], False),
    "memory": Kind("bytes", lambda each: each["peak_rss_bytes"], False),
    "device_memory": Kind("bytes", lambda each: each["device_bytes"], False),
    "epoch_switch": Kind("ms", _epoch_switch_ms, False),
    "monitor": Kind(
        "of a step", lambda each: each["monitor"]["mean_s"] * each["steps"] / each["wall_s"], False
    ),
}
