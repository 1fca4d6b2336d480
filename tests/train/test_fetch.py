"""What is on the web: fetched anew each time, whole or not at all, and never executed."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.test_trouble import harmful_checkpoint
from tests.train.tiny import SaveEach, Tiny

from flatout.errors import TrainError
from flatout.train import fit
from flatout.train.fetch import local_file
from flatout.train.weights import read_weights, save_weights

Make = Callable[..., dict[str, Any]]


def test_weights_of_either_kind(served: str, tmp_path: Path) -> None:
    wanted = {"a": torch.arange(3.0)}
    torch.save(wanted, tmp_path / "good.pt")
    save_weights(wanted, tmp_path / "good weights.safetensors")
    assert torch.equal(read_weights(f"{served}/good.pt")["a"], wanted["a"])
    assert torch.equal(read_weights(f"{served}/good%20weights.safetensors?token=3")["a"], wanted["a"])


def test_files_of_one_name_are_not_taken_for_each_other(served: str, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        torch.save({"a": torch.tensor(number)}, tmp_path / str(number) / "last.ckpt")
        assert int(read_weights(f"{served}/{number}/last.ckpt")["a"]) == number
    torch.save({"a": torch.tensor(7)}, tmp_path / "0" / "last.ckpt")
    assert int(read_weights(f"{served}/0/last.ckpt")["a"]) == 7


def test_nothing_is_executed(served: str, tmp_path: Path, make_config: Make) -> None:
    _, trace = harmful_checkpoint(tmp_path)
    with pytest.raises(TrainError, match="is refused"):
        read_weights(f"{served}/harmful.ckpt")
    with pytest.raises(TrainError, match=rf"{served}/harmful\.ckpt cannot be loaded.*is refused"):
        fit(make_config(), resume=f"{served}/harmful.ckpt")
    with pytest.raises(TrainError, match="is refused"):
        fit(make_config(pretrained=f"{served}/harmful.ckpt"))
    assert not trace.exists()


def test_a_run_is_resumed(served: str, tmp_path: Path, make_config: Make) -> None:
    whole = fit(make_config(), callbacks=[SaveEach(tmp_path)])
    seen = Tiny.made.seen
    rest = fit(make_config(), resume=f"{served}/batch3.ckpt")
    assert Tiny.made.seen == seen[3:]
    assert rest.metrics == whole.metrics
    assert f'"resumed_from": "{served}/batch3.ckpt"' in (rest.folder / "run.json").read_text()
    save_weights({"a": torch.zeros(1)}, tmp_path / "w.safetensors")
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(TrainError, match=rf"{served}/w\.pt is no checkpoint of a run"):
        fit(make_config(), resume=f"{served}/w.pt")


def test_nothing_is_left(
    served: str, tmp_path: Path, make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    fit(make_config(), callbacks=[SaveEach(tmp_path)])
    fit(make_config(), resume=f"{served}/batch3.ckpt")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.fixture
def broken() -> Iterator[str]:
    """A server that promises ten bytes, and hangs up after four."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfour")

    thread = threading.Thread(target=answer)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/w.pt"
    thread.join()
    listener.close()


def test_half_a_file_is_none(broken: str) -> None:
    with pytest.raises(TrainError, match="broke off after 4 of 10 bytes"), local_file(broken):
        pass


def test_what_is_not_there(served: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"absent\.pt cannot be fetched: HTTP Error 404"):
        read_weights(f"{served}/absent.pt")
    with pytest.raises(TrainError, match="cannot be fetched"):
        read_weights("http://127.0.0.1:1/w.pt")
    with local_file(tmp_path / "w.pt") as path:  # a path is left to whoever reads it
        assert path == tmp_path / "w.pt"
