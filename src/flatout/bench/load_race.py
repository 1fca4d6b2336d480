"""The race: limit, flatout and peers take turns, each in a process of its own; equal arrays or no result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from flatout.bench.load_cases import LoadCase
from flatout.bench.load_data import store_of
from flatout.bench.load_peers import PEERS
from flatout.errors import FlatoutError, MissingDependencyError

LIMIT = "limit"
OURS = "flatout"
EXTRA = {"crc_always": "load_ours:flatout_crc_always"}
"""Figures of ours that are printed beside."""
BARE = "hand_over"
"""A bare hand-over, beside which the loader is to be seen."""
RATES = ("samples_per_s", "gb_per_s")
TURN_S = 0.5
"""Contestants take turns of this length, and rounds do, too: turn 0 is of round 0, turn 1 of round 1, and so on
again. What a shared machine's memory gives may change by half, and stay so for a minute: rounds that followed
each other met the one or the other, and the best of five the better. So each round has its part of both."""


@dataclass(frozen=True)
class RaceSetting:
    """Where and how long to measure."""

    scratch: Path
    seconds: float
    rounds: int
    share: float
    say: Callable[[str], None]


@dataclass
class Runner:
    """The parent's side of one contestant."""

    name: str
    request: dict[str, Any]
    rounds: list[dict[str, float]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[Runner]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flatout.bench.load_runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.ask("set up", **self.request)
            yield self
        finally:
            self._process.kill()
            self._process.communicate()

    def ask(self, what: str, **details: Any) -> Any:
        """Send a request and wait for the answer.

        Raises:
            FlatoutError: the process died; with the end of what it said.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **details}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            said = self._process.communicate()[1].strip()
            raise FlatoutError(f"{self.name} failed at '{what}' of '{self.request['case']}': {said[-1500:]}")
        return json.loads(answer)


def check_load_peers() -> None:
    """Refuse to start without a peer: the best one missing would make every ratio look better.

    Raises:
        MissingDependencyError: naming what is not installed.
    """
    names = {name.partition("_")[0] for name in PEERS} - {"ram", "npy"}
    if missing := sorted(name for name in names if find_spec(name) is None):
        raise MissingDependencyError(f"not installed: {', '.join(missing)}; 'make bench' installs the peers")


def race(case: LoadCase, setting: RaceSetting, has_peers: bool) -> dict[str, dict[str, Any]]:
    """Every figure of one data set, for each way that its store is cut into shards."""
    stores = {name: store_of(setting.scratch / name, case, rows) for name, rows in case.shards.items()}
    runners: list[Runner] = []
    for name, store in stores.items():
        runners += [_runner(f"{who}@{name}", how, case, store, setting) for who, how in _own(case).items()]
    if case.name == "volume":
        runners += _encoded(case, setting)
    if has_peers:
        runners += [
            _runner(name, f"load_peers:{function}", case, Path(), setting)
            for name, (function, takes_ragged) in PEERS.items()
            if takes_ragged or not case.is_ragged
        ]
    run_in_turns(runners, setting)
    rates = {runner.name: _median(runner.rounds) for runner in runners}
    rounds = {runner.name: runner.rounds for runner in runners}
    best = {runner.name: _best(runner.rounds) for runner in runners if runner.name.startswith(LIMIT)}
    peers = {name: rates[name] for name in PEERS if name in rates}
    found = {name: _result(name, rates, best, peers, rounds) for name in stores}
    if case.name == "volume":
        found["volume_uint8"] = _encoded_result(rates)
    return found


def run_in_turns(runners: Sequence[Runner], setting: RaceSetting) -> None:
    """Compare what each delivers, then turn after turn, each beginning with another contestant."""
    with ExitStack() as stack:
        for runner in runners:
            stack.enter_context(runner.running())
            if not runner.name.startswith(BARE):  # which has no order
                runner.ask("check")
        num_turns = max(1, round(setting.seconds / TURN_S)) * setting.rounds
        counted: dict[str, list[Any]] = {runner.name: [] for runner in runners}
        for turn in range(num_turns):
            for runner in _order(runners, turn):
                seconds = setting.seconds * setting.rounds / num_turns
                counted[runner.name].append(runner.ask("run", seconds=seconds)["tries"])
            rates = ", ".join(
                f"{name} {_best_way(tries[-1:])['samples_per_s']:,.0f}" for name, tries in counted.items()
            )
            setting.say(f"{runners[0].request['case']}, turn {turn + 1} of {num_turns}: {rates}")
    for runner in runners:
        turns = counted[runner.name]
        runner.rounds += [_best_way(turns[number :: setting.rounds]) for number in range(setting.rounds)]


def _order(runners: Sequence[Runner], turn: int) -> list[Runner]:
    """Another one first in each turn, every second time the other way round: who was at work before, and may
    still fill its queues, is not always the same."""
    ordered, first = runners[:: -1 if turn % 2 else 1], turn // 2 % len(runners)
    return [*ordered[first:], *ordered[:first]]


def _own(case: LoadCase) -> dict[str, str]:
    bare = {} if case.is_ragged else {BARE: "load_bare:hand_over"}
    return {LIMIT: "load_ours:limit", OURS: "load_ours:flatout", **EXTRA, **bare}


def _encoded(case: LoadCase, setting: RaceSetting) -> list[Runner]:
    store = store_of(setting.scratch / "volume_uint8", case, case.shards["volume"], "uint8")
    return [
        _runner("as_stored", "load_ours:flatout_as_stored", case, store, setting, "uint8"),
        _runner("as_stored_restored", "load_ours:flatout", case, store, setting, "uint8"),
    ]


def _runner(
    name: str, who: str, case: LoadCase, store: Path, setting: RaceSetting, encoding: str = "none"
) -> Runner:
    scratch = setting.scratch / f"{case.name}-{name}"
    scratch.mkdir(exist_ok=True)
    request = {"who": who, "case": case.name, "share": setting.share, "store": str(store), "encoding": encoding}
    return Runner(name, {**request, "scratch": str(scratch)})


def _median(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {rate: median(each[rate] for each in rounds) for rate in RATES}


def _best(rounds: Iterable[dict[str, float]]) -> dict[str, float]:
    return max(rounds, key=lambda each: each[RATES[0]])


def _best_way(turns: Sequence[Sequence[Any]]) -> dict[str, float]:
    """The rates of a round. Each turn has what every way to run has counted; the best way counts."""
    return _best(map(_rates, zip(*turns, strict=True)))


def _rates(turns: Iterable[tuple[int, int, float]]) -> dict[str, float]:
    """Of one way to run."""
    count, num_bytes, seconds = (sum(each) for each in zip(*turns, strict=True))
    return {"samples_per_s": count / seconds, "gb_per_s": num_bytes / seconds / 1e9}


def _result(
    name: str, rates: Any, best: Any, peers: dict[str, dict[str, float]], rounds: Any
) -> dict[str, Any]:
    ours, limit = rates[f"{OURS}@{name}"], best[f"{LIMIT}@{name}"]
    found = {
        "limit": limit,
        "flatout": ours,
        **{extra: rates[f"{extra}@{name}"] for extra in EXTRA},
        "ratio_to_limit": ours["samples_per_s"] / limit["samples_per_s"],
        # What the limit itself reaches where its median is held against its best round: the machine's noise.
        "limit_to_itself": rates[f"{LIMIT}@{name}"]["samples_per_s"] / limit["samples_per_s"],
        # Of the same round: within a minute, neighbours change what the memory gives by half.
        "ratio_by_round": [
            own["samples_per_s"] / bare["samples_per_s"]
            for own, bare in zip(rounds[f"{OURS}@{name}"], rounds[f"{LIMIT}@{name}"], strict=True)
        ],
    }
    if (bare := rates.get(f"{BARE}@{name}")) is not None:
        found |= {BARE: bare, "hand_over_to_limit": bare["samples_per_s"] / limit["samples_per_s"]}
    if peers:
        fastest = max(peers, key=lambda peer: peers[peer]["samples_per_s"])
        found |= {"peers": peers, "best_peer": fastest}
        found["ratio_to_best_peer"] = ours["samples_per_s"] / peers[fastest]["samples_per_s"]
    return found


def _encoded_result(rates: Any) -> dict[str, Any]:
    """Volumes stored as uint8: counted when handed over, before restoring, and after."""
    plain, stored = rates[f"{OURS}@volume"], rates["as_stored"]
    return {
        "flatout": stored,
        "restored": rates["as_stored_restored"],
        "ratio_to_float16": stored["samples_per_s"] / plain["samples_per_s"],
    }
