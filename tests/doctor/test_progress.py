"""How far an observation is: said when there is something new, and ever more rarely."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path

from flatout.doctor.progress import (
    FEW,
    FIRST_PAUSE_S,
    LOOK_S,
    MOST_PAUSE_S,
    Progress,
    Teller,
    write_progress,
)

SOME = Progress(20, 65, 10.0, 120.0, is_enough=False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_it_says() -> None:
    assert SOME.text() == "20 of 65 steps seen, 22.5 s left"
    assert replace(SOME, seconds=100.0).text() == "20 of 65 steps seen, 20.0 s left", "no longer than the limit"
    assert replace(SOME, num_wanted=None).text() == "20 steps seen"
    assert replace(SOME, is_enough=True).text().startswith("20 steps seen in 10.0 s; now")


def test_each_thing_is_said_once(tmp_path: Path) -> None:
    clock, said = Clock(), []
    teller = Teller(tmp_path, said.append, clock)
    teller.look()
    assert said == []
    write_progress(tmp_path, SOME)
    teller.look()
    assert said == [], "it is not time to look again"
    for _ in range(3):
        clock.now += LOOK_S
        teller.look()
    assert said == ["20 of 65 steps seen, 22.5 s left"]
    write_progress(tmp_path, replace(SOME, num_steps=30))
    clock.now += LOOK_S
    teller.look()
    assert len(said) == 1, "it is not time to say more"
    write_progress(tmp_path, replace(SOME, num_steps=65, is_enough=True))
    clock.now += LOOK_S
    teller.look()
    assert len(said) == 2, "but for this it is"


def test_a_long_training_is_not_buried_in_notes(tmp_path: Path) -> None:
    clock, said = Clock(), []
    teller = Teller(tmp_path, said.append, clock)
    for second in range(3600):
        clock.now += 1
        write_progress(tmp_path, replace(SOME, num_steps=second, num_wanted=None))
        teller.look()
    assert 3600 / MOST_PAUSE_S <= len(said) <= 3600 / MOST_PAUSE_S + 10
    assert FIRST_PAUSE_S < MOST_PAUSE_S


def test_the_first_steps_tell_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    write_progress(tmp_path, replace(SOME, num_steps=FEW - 1))
    Teller(tmp_path, said.append).look()
    assert said == []


def test_of_several_processes_the_newest_first_rank_counts(tmp_path: Path) -> None:
    def write(name: str, progress: Progress, age_s: float) -> None:
        path = tmp_path / f"progress-{name}.json"
        path.write_text(dumps(asdict(progress)))
        os.utime(path, (1e9 - age_s, 1e9 - age_s))

    write("999", replace(SOME, num_steps=65), 50.0)  # the fold before
    write("1000", replace(SOME, num_steps=10), 5.0)
    write("1001", replace(SOME, num_steps=11, rank=1), 1.0)
    said: list[str] = []
    Teller(tmp_path, said.append).look()
    assert said == [replace(SOME, num_steps=10).text()]


def test_what_is_just_being_written_is_read_the_next_time(tmp_path: Path) -> None:
    clock, said = Clock(), []
    teller = Teller(tmp_path, said.append, clock)
    (tmp_path / "progress-1.json").write_text('{"num_steps": 3')
    teller.look()
    assert said == []
    (tmp_path / "progress-1.json").write_text(dumps(asdict(SOME)))
    clock.now += LOOK_S
    teller.look()
    assert said == [SOME.text()]


def test_a_folder_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    write_progress(tmp_path / "gone", SOME)
    Teller(tmp_path / "gone", lambda text: None).look()
    assert not (tmp_path / "gone").exists()
