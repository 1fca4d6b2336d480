"""Weights: out as safetensors, in from wherever they fit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tiny import Tiny
from torch import nn

from flatout.errors import TrainError
from flatout.train import fit
from flatout.train.weights import load_weights, read_weights, save_weights


def model(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, width))


def test_there_and_back(tmp_path: Path) -> None:
    one, other = model(), model()
    save_weights(one.state_dict(), tmp_path / "w.safetensors")
    assert load_weights(other, tmp_path / "w.safetensors") == []
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_tensors_that_share_memory_and_strides(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    save_weights({"a": base, "b": base, "c": base.t()}, tmp_path / "w.safetensors")
    found = read_weights(tmp_path / "w.safetensors")
    assert torch.equal(found["b"], base)
    assert torch.equal(found["c"], base.t())


@pytest.mark.parametrize(
    "wraps", [lambda weights: weights, lambda weights: {"state_dict": weights, "epoch": 3}]
)
def test_checkpoints_of_torch_and_lightning(tmp_path: Path, wraps: Callable[[Any], Any]) -> None:
    torch.save(wraps(model().state_dict()), tmp_path / "w.pt")
    assert set(read_weights(tmp_path / "w.pt")) == set(model().state_dict())


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    save_weights(model(7).state_dict(), tmp_path / "w.safetensors")
    wide = model(4)
    (note,) = load_weights(wide, tmp_path / "w.safetensors")
    assert note == "pretrained: 2 of 4 weights are loaded; new from the start: 1.weight, 1.bias"
    assert torch.equal(wide.state_dict()["0.weight"], read_weights(tmp_path / "w.safetensors")["0.weight"])


def test_nothing_fits(tmp_path: Path) -> None:
    save_weights({"other": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(TrainError, match=r"none of its 1 weights fits the model's 4"):
        load_weights(model(), tmp_path / "w.safetensors")


@pytest.mark.parametrize("name", ["w.safetensors", "w.ckpt"])
def test_no_weights_at_all(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrainError, match="there are no weights at"):
        read_weights(tmp_path / name)
    (tmp_path / name).write_text("404: not found")
    with pytest.raises(TrainError, match="cannot be loaded"):
        read_weights(tmp_path / name)


class Harm:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_what_it_holds_is_named_and_nobody_advised_to_run_it(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "more": Harm()}, tmp_path / "w.ckpt")
    with pytest.raises(TrainError) as raised:
        read_weights(tmp_path / "w.ckpt")
    assert f"w.ckpt cannot be loaded: it holds {os.system.__module__}.system. Only tensors" in str(raised.value)
    assert "weights_only" not in str(raised.value)


def test_plain_values_that_are_no_weights(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(TrainError, match="holds no weights"):
        read_weights(tmp_path / "w.pt")


def test_a_run_starts_from_pretrained_weights(make_config: Callable[..., dict[str, Any]]) -> None:
    first = fit(make_config(epochs=1))
    frozen = make_config(epochs=1, pretrained=str(first.weights), learning_rate=1e-30)
    fit(frozen)
    assert first.weights is not None
    for name, value in read_weights(first.weights).items():
        torch.testing.assert_close(Tiny.made.state_dict()[name], value)


def test_a_run_folder_stands_for_its_best_weights(tmp_path: Path) -> None:
    final, best = model().state_dict(), model().state_dict()
    with pytest.raises(
        TrainError, match=r"without best\.safetensors, weights\.safetensors or checkpoints/last"
    ):
        read_weights(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    newest = model().state_dict()
    torch.save({"state_dict": newest}, tmp_path / "checkpoints" / "last.ckpt")  # killed before its end
    assert torch.equal(read_weights(tmp_path)["0.weight"], newest["0.weight"])
    save_weights(final, tmp_path / "weights.safetensors")
    assert torch.equal(read_weights(tmp_path)["0.weight"], final["0.weight"])
    save_weights(best, tmp_path / "best.safetensors")
    assert torch.equal(read_weights(tmp_path)["0.weight"], best["0.weight"])


@pytest.mark.parametrize("name", ["w.ckpt", "w.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_file_that_is_cut_off_says_so(tmp_path: Path, name: str, share: float) -> None:
    path, other = tmp_path / name, tmp_path / f"other{Path(name).suffix}"
    write: Any = torch.save if name == "w.ckpt" else save_weights
    write(model().state_dict(), path)
    other.write_bytes(path.read_bytes())
    num = int(share * path.stat().st_size)
    path.write_bytes(path.read_bytes()[:num])
    told = rf"{name} is cut off or damaged: it ends after {num:,} bytes\. Copy it anew, .* \({other.name}\)$"
    with pytest.raises(TrainError, match=told):
        read_weights(path)


def test_a_run_whose_last_checkpoint_is_cut_off_names_the_file(
    make_config: Callable[..., dict[str, Any]],
) -> None:
    first = fit(make_config(epochs=1, save_top_k=1))
    assert first.last_checkpoint is not None
    assert first.best_checkpoint is not None
    first.last_checkpoint.write_bytes(first.last_checkpoint.read_bytes()[:1000])
    with pytest.raises(TrainError) as raised:
        fit(make_config(epochs=2), resume=first.folder)
    assert str(raised.value) == (
        f"{first.last_checkpoint} is cut off or damaged: it ends after 1,000 bytes. Copy it anew, or take "
        f"another beside it ({first.best_checkpoint.name})"
    )
    fit(make_config(epochs=2), resume=first.best_checkpoint)
