"""How far an observation is: said once for each thing that is new."""

from __future__ import annotations

from pathlib import Path

from flatout.doctor.progress import LOOK_S, Progress, Teller, write_progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_it_says() -> None:
    assert Progress(20, 65, 10.0, is_enough=False).text() == "20 of 65 steps seen, 22.5 s left"
    assert Progress(1, None, 10.0, is_enough=False).text() == "1 step seen"
    assert Progress(65, 65, 12.3, is_enough=True).text().startswith("65 steps seen in 12.3 s; now")


def test_each_thing_is_said_once(tmp_path: Path) -> None:
    clock, said = Clock(), []
    teller = Teller(tmp_path, said.append, clock)
    teller.look()
    assert said == []
    write_progress(tmp_path, Progress(10, 65, 1.0, is_enough=False))
    teller.look()
    assert said == [], "it is not time to look again"
    for _ in range(3):
        clock.now += LOOK_S
        teller.look()
    assert said == ["10 of 65 steps seen, 5.5 s left"]
    write_progress(tmp_path, Progress(65, 65, 6.0, is_enough=True))
    clock.now += LOOK_S
    teller.look()
    assert len(said) == 2


def test_what_is_just_being_written_is_read_the_next_time(tmp_path: Path) -> None:
    clock, said = Clock(), []
    teller = Teller(tmp_path, said.append, clock)
    (tmp_path / "progress-1.json").write_text('{"num_steps": 3')
    teller.look()
    assert said == []
    (tmp_path / "progress-1.json").write_text('{"num_steps": 3, "of": 6, "seconds": 2.0, "is_enough": false}')
    clock.now += LOOK_S
    teller.look()
    assert said == ["3 of 6 steps seen, 2.0 s left"]


def test_a_folder_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    write_progress(tmp_path / "gone", Progress(1, 2, 3.0, is_enough=False))
    Teller(tmp_path / "gone", lambda text: None).look()
    assert not (tmp_path / "gone").exists()
