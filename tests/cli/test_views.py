"""`precompute-views`, `precompute-embeddings` and `augment-preview`: options, documents, exit codes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flatout.cli import precompute_command
from flatout.cli.main import main
from flatout.store import DataPreprocessor, StoreReader, verify

CODE = """
import torch

from flatout.augment import GPUAmplitudeScale

chain = GPUAmplitudeScale(range=(2.0, 2.0), p=1.0)


def doubled(x):
    return 2 * x


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x.mean(-1) * self.weight


number = 3
"""


class Signals:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> dict[str, Any]:
        signal = np.random.default_rng(at).standard_normal((1, 32)).astype(np.float32)
        return {"signal": signal, "label": at % 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "store"
    fields = {"signal": {"kind": "signal"}, "label": {"kind": "label"}}
    DataPreprocessor.from_dataset(Signals(), folder, num_workers=0, fields=fields).run()
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own, and a module `own_code` in the current folder."""
    (tmp_path / "own_code.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    return Path(shutil.copytree(made, tmp_path / "store"))


def run(*arguments: Any) -> int:
    return main([str(argument) for argument in arguments])


def document_of(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_views_by_the_config(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("seed: 4\naugmentation: {gaussian_noise: {std: 0.5}}\n")
    out = tmp_path / "views"
    assert run("precompute-views", store, "-o", out, "-c", tmp_path / "c.yaml", "--num-workers", 0) == 0
    assert "view1, view2, subs1, subs2, label" in capsys.readouterr().out
    assert verify(out)
    again = [
        "precompute-views",
        store,
        "--output",
        out,
        "-c",
        tmp_path / "c.yaml",
        "--num-workers",
        0,
        "--json",
    ]
    assert run(*again) == 0
    assert document_of(capsys)["unchanged"] == 12
    assert run(*again, "--set", "seed=5") == 0
    assert document_of(capsys)["processed"] == 12


@pytest.mark.parametrize("option", ["--transform=own_code:doubled", "--chain=own_code:chain"])
def test_views_by_code_of_ones_own(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    out = tmp_path / "views.pt"
    shape = ["--num-views", 1, "--num-substructures", 0, "--num-workers", 0]
    assert run("precompute-views", store, "-o", out, option, *shape, "--json") == 0
    assert document_of(capsys)["fields"] == ["view1", "label"]
    found = torch.load(out, weights_only=True)
    for at, view in enumerate(found["view1"]):
        np.testing.assert_allclose(view.numpy(), 2 * StoreReader(store).read(at)["signal"])


@pytest.mark.parametrize("name", ["views", "views.pt"])
def test_stopped_it_says_what_is_kept(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = ["precompute-views", store, "-o", tmp_path / name, "--num-workers", 0]
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 2048)
    told = []
    for num_rows in (0, 9):
        left = [num_rows]

        def stopped(self: Any, rows: int, left: list[int] = left) -> None:
            left[0] -= rows
            if left[0] < 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(precompute_command.ProgressBar, "advance", stopped)
            assert run(*given) == 130
        told.append(capsys.readouterr().err)
    assert "no shard was finished yet; the same command starts again" in told[0]
    assert re.search(r"[1-9]\d* finished shards? (is|are) kept; the same command continues", told[1])
    assert run(*given) == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--transform", "own_code:nothing"], 2, "has no 'nothing'"),
        (["--transform", "own_code:number"], 2, "is a int"),
        (["--chain", "own_code:doubled"], 1, "without arguments"),
        (["--field", "sound"], 2, "no field 'sound'"),
        (["--split", "tset"], 2, "split 'tset'"),
        (["--encoding", "int3"], 2, "int3"),
        (["--keep", "view9"], 2, "no field 'view9'"),
        (["--set", "augmentation.time_shfit.p=1"], 2, "time_shfit"),
        (["--num-views", "0"], 2, "--num-views"),
        (["--epoch", "-1"], 2, "--epoch"),
    ],
)
def test_wrong_options_of_views(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    arguments = ["precompute-views", store, "-o", tmp_path / "views", "--num-workers", 0, *options]
    assert run(*arguments) == code
    assert message in capsys.readouterr().err


def test_embeddings_of_an_encoder(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {"net.weight": torch.tensor([1.0, 2.0, 3.0])}}, tmp_path / "c.ckpt")
    given = ["precompute-embeddings", store, "--encoder", "own_code:Encoder", "--device", "cpu"]
    assert run(*given, "--checkpoint", tmp_path / "c.ckpt") == 0
    assert "embedding: float32 (3,) for 12 samples" in capsys.readouterr().out
    sample = StoreReader(store).read(5)
    np.testing.assert_allclose(sample["embedding"], sample["signal"].mean() * np.array([1, 2, 3]), rtol=1e-5)
    assert run(*given, "--name", "plain", "--compact", "--field", "signal", "--json") == 0
    document = document_of(capsys)
    assert document["fields"] == ["signal", "label", "embedding", "plain"]
    assert document["bytes_freed"] > 0
    assert verify(store)
    assert run(*given, "--output", tmp_path / "small", "--keep", "label", "--field", "signal") == 0
    assert list(StoreReader(tmp_path / "small").fields) == ["label", "embedding"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--encoder", "own_code:None"], 2, "has no 'None'"),
        (["--encoder", "nowhere:Encoder"], 2, "nowhere"),
        (["--encoder", "own_code:Encoder", "--checkpoint", "none.pt"], 2, "no such file"),
        (["--encoder", "own_code:Encoder", "--field", "label"], 1, "the encoder failed on (12,)"),
    ],
)
def test_wrong_options_of_embeddings(
    store: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    root = (store / "data_metadata.json").read_bytes()
    assert run("precompute-embeddings", store, "--device", "cpu", *options) == code
    assert message in capsys.readouterr().err
    assert (store / "data_metadata.json").read_bytes() == root


def test_a_preview(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--num-samples", 1, "--num-views", 1, "--set", "augmentation.time_mask.p=1.0"]
    assert run("augment-preview", store, "--output", tmp_path / "p.html", *options) == 0
    assert "p.html" in capsys.readouterr().out
    assert "GPUTimeMask(p=1.0" in (tmp_path / "p.html").read_text()
    assert (
        run("augment-preview", store, "-o", tmp_path / "p.png", "--transform", "own_code:doubled", "--json")
        == 0
    )
    assert document_of(capsys)["output"] == str(tmp_path / "p.png")
    assert run("augment-preview", store, "-o", tmp_path / "p.bmp") == 2
    assert run("augment-preview", tmp_path / "nothing") == 1
