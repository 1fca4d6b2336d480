"""What goes wrong around an observed script: its errors stay its own, and nothing of it is left running."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path

import psutil
import pytest
from tests.doctor import scripts
from tests.doctor.running import run

from flatout.doctor.child import watch as watching
from flatout.doctor.child.exit import OWN_FOLDER, hide_own_frames, own_rank
from flatout.doctor.child.log import RowLog, read_rows
from flatout.doctor.child.watch import Watch
from flatout.doctor.launch import run as launching
from flatout.doctor.launch.run import end_all
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.patches.frames import is_users
from flatout.doctor.workers.calls import count_calls

CAUSED = (
    scripts.HEAD
    + """
class Caused(Slow):
    def __getitem__(self, index):
        if index == 100:
            raise KeyError("inner reason")
        return decode(index), index % 10


try:
    for epoch in range(100):
        for batch in DataLoader(Caused(), batch_size=8, num_workers=int(sys.argv[1])):
            train_step(batch)
except KeyError as error:
    raise RuntimeError("outer reason") from error
"""
)


def test_errors_that_led_to_an_error_have_none_of_our_frames() -> None:
    def fail() -> None:
        raise KeyError("inner")

    def lead() -> None:
        try:
            count_calls(fail)
        except KeyError as error:
            raise ExceptionGroup("outer", [ValueError("one"), error]) from error

    with pytest.raises(ExceptionGroup) as caught:
        count_calls(lead)
    assert OWN_FOLDER in "".join(traceback.format_exception(caught.value))
    hide_own_frames(caught.value)
    told = "".join(traceback.format_exception(caught.value))
    assert OWN_FOLDER not in told
    assert all(word in told for word in ("in fail", "in lead", "KeyError: 'inner'"))


def test_a_chain_of_errors_that_ends_in_itself_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    hide_own_frames(one)
    assert (one.__context__, other.__context__) == (other, one)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", ["0", "2"])
def test_a_crash_with_a_cause_is_the_scripts_own(tmp_path: Path, num_workers: str) -> None:
    record = run(tmp_path, CAUSED, num_workers)
    assert record.exit.code == 1
    assert record.exit.error is not None
    assert "outer reason" in record.exit.error
    assert "inner reason" in record.exit.error
    assert "flatout" not in record.exit.error


def test_our_own_files_are_nobodys_code() -> None:
    assert not is_users(launching.__file__)
    assert not is_users(str(Path(OWN_FOLDER).parent / "loader" / "loader.py"))


@pytest.mark.parametrize(("given", "rank"), [("3", 3), ("", 0), ("first", 0), ("-1", 0)])
def test_a_rank_that_is_no_number(given: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", given)
    assert own_rank() == rank


def test_rows_that_cannot_be_written_are_not_the_scripts_fault(tmp_path: Path) -> None:
    log = RowLog(tmp_path / "gone", "events")
    log.add(("next", 1.0))
    log.flush()
    assert log.is_lost
    assert log.rows == []
    watch = Watch()
    watch.begin(tmp_path)
    watch.add(("next", 1.0))
    watch.flush()
    assert watch.is_on
    assert list(read_rows(tmp_path, "events").values()) == [[["next", 1.0]]]
    watch.begin(tmp_path / "gone")
    watch.add(("next", 2.0))
    watch.flush()
    assert watch.is_on  # steps are still counted
    watch.add(("next", 3.0))
    assert watch.log.rows == []


LOST = (
    scripts.HEAD
    + """
import shutil
from flatout.doctor.child import watch

watch.FLUSH_S = 0.0
shutil.rmtree(os.environ["FLATOUT_DOCTOR"])
num_steps = 0
try:
    for epoch in range(2):
        for batch in DataLoader(Slow(800, 0.0), batch_size=8):
            train_step(batch)
            num_steps += 1
finally:
    open("steps", "w").write(f"{num_steps} {len(watch.WATCH.log.rows)}")
open("done", "w").close()
"""
)


def test_a_script_whose_observation_is_lost_is_stopped_all_the_same(tmp_path: Path) -> None:
    """Its folder vanishes while it trains, as a full or an unmounted disk would."""
    record = run(tmp_path, LOST)
    assert (record.exit.code, record.exit.error) == (0, None)
    num_steps, num_rows = map(int, (tmp_path / "steps").read_text().split())
    assert 25 <= num_steps <= 30
    assert num_rows < 5
    assert not (tmp_path / "done").exists()


def test_rows_are_bounded_whatever_the_script_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MANY_ROWS", 10)
    watch = Watch()
    watch.begin(tmp_path)
    for number in range(95):
        watch.add(("sync", number))
        assert len(watch.log.rows) < 10
    watch.flush()
    (rows,) = read_rows(tmp_path, "events").values()
    assert [row[1] for row in rows if row[0] == "sync"] == list(range(95))
    assert {row[0] for row in rows} == {"sync", "own"}  # what writing took is not the script's


def test_beyond_the_most_rows_only_what_is_rare_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_ROWS", 3)
    watch = Watch()
    watch.begin(tmp_path)
    for kind in ("next", "sync", "forward", "log"):
        watch.add((kind, 1.0))
    watch.flush()
    watch.add(("next", 2.0))
    watch.add(("stopped", 2.0))
    assert watch.log.rows == [("stopped", 2.0)]
    watch.collect()  # another loader is trained on from here
    watch.add(("next", 3.0))
    assert watch.log.rows[-1] == ("next", 3.0)


EARLY = (
    scripts.HEAD
    + """
from flatout.doctor.child.watch import WATCH

for _ in range(100):
    torch.ones(1).item()
    print("loading")
open("rows", "w").write(str(len(WATCH.log.rows)))


def num_rows(_):
    torch.ones(1).item()
    return len(WATCH.log.rows)


if __name__ == "__main__":
    loader = DataLoader([1], collate_fn=num_rows, num_workers=1, multiprocessing_context="spawn")
    open("worker", "w").write(str(list(loader)))
"""
)


def test_nothing_is_kept_where_nobody_trains(tmp_path: Path) -> None:
    """Neither before the first batch nor in a worker, which is not forked here."""
    record = run(tmp_path, EARLY)
    assert (record.exit.code, record.exit.error) == (0, None)
    assert (tmp_path / "rows").read_text() == "0"
    assert (tmp_path / "worker").read_text() == "[0]"


def test_whoever_ends_a_script_ends_what_it_started() -> None:
    inner = "import sys; print('up', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    (child,) = psutil.Process(process.pid).children()
    end_all(process)
    assert process.wait(30) != 0
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    end_all(process)  # twice does no harm
    process.communicate()


def test_the_exit_of_a_process_without_a_folder_is_no_error(tmp_path: Path) -> None:
    code = (
        "import shutil, sys; from pathlib import Path; from flatout.doctor.child.exit import watch_exit\n"
        "folder = Path(sys.argv[1]); watch_exit(folder); shutil.rmtree(folder)\n"
    )
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_survive_the_way_to_the_script(tmp_path: Path) -> None:
    settings = ObserveSettings(num_steps=7, tries=True)
    settings.write(tmp_path)
    assert json.loads((tmp_path / "settings.json").read_text())["num_steps"] == 7


ANEW = (
    scripts.HEAD
    + """
def read(loader, learns):
    for batch in loader:
        if learns:
            train_step(batch)
        else:
            with torch.no_grad():
                model(batch[0])


kept = DataLoader(Slow(32, 0.0), batch_size=8)
for epoch in range(1000):
    read(DataLoader(Slow(64, 0.0), batch_size=8), True)
    read(kept, False)
open("done", "w").close()
"""
)


def test_a_loader_and_a_dataset_that_are_made_anew_in_each_epoch(tmp_path: Path) -> None:
    """They are one loader; another of the same kind, read from by the same line and still held, is not."""
    record = run(tmp_path, ANEW)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert len(record.steps) > 8  # of more than one epoch
    assert [loader.name for loader in record.loaders] == ["train", "evaluate"]
    assert not (tmp_path / "done").exists()


READ_BEFORE = (
    scripts.HEAD
    + """
for batch in list(DataLoader(Slow(), batch_size=8)):
    train_step(batch)
"""
)


def test_batches_that_are_all_read_before_training(tmp_path: Path) -> None:
    record = run(tmp_path, READ_BEFORE)
    (told,) = record.warnings
    assert "had read before" in told
    assert "(32 in" in told
    assert not record.steps


def test_batches_that_nobody_trains_on(tmp_path: Path) -> None:
    record = run(tmp_path, scripts.HEAD + "for batch in DataLoader(Slow(), batch_size=8):\n    pass\n")
    (told,) = record.warnings
    assert told.startswith("32 batches came and no backward followed")


def test_several_batches_for_each_backward_are_not_called_read_before(tmp_path: Path) -> None:
    several = """
losses = []
for number, (x, y) in enumerate(DataLoader(Slow(), batch_size=8)):
    losses.append(loss_of(model(x), y))
    if number % 4 == 3:
        sum(losses).backward()
        losses = []
"""
    record = run(tmp_path, scripts.HEAD + several)
    (told,) = record.warnings
    assert told.startswith("it cannot be told what the script trains on: of 32 batches")
