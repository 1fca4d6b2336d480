"""An encoder is found, filled from weights alone, and frozen; what does not fit is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.bank.encoders import Encoder, encode, make_encoder
from torch import nn

from flatout.bank.encoder import build_encoder, read_checkpoint
from flatout.errors import ConfigError


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return Encoder().state_dict()


@pytest.mark.parametrize("found", [Encoder, Encoder(), make_encoder])
def test_a_module_its_class_and_its_maker_are_frozen(found: Any) -> None:
    encoder = build_encoder(found)
    assert isinstance(encoder, Encoder)
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_a_function_that_encodes_is_taken_as_it_is() -> None:
    assert build_encoder(encode) is encode
    assert build_encoder(nn.Identity) is not nn.Identity


@pytest.mark.parametrize(
    ("prefix", "outer"),
    [("", None), ("", "state_dict"), ("model.encoder.", "state_dict"), ("_orig_mod.", "model"), ("net.", None)],
)
def test_weights_are_found_wherever_a_checkpoint_has_them(
    weights: dict[str, torch.Tensor], tmp_path: Path, prefix: str, outer: str | None
) -> None:
    named = {f"{prefix}{name}": value for name, value in weights.items()} | {"head.bias": torch.zeros(2)}
    torch.save({outer: named, "epoch": 3} if outer else named, tmp_path / "c.pt")
    encoder = build_encoder(Encoder, tmp_path / "c.pt")
    assert isinstance(encoder, Encoder)
    assert torch.equal(encoder.linear.weight, weights["linear.weight"])


def test_safetensors(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(dict(weights), tmp_path / "c.safetensors")
    encoder = build_encoder(Encoder, tmp_path / "c.safetensors")
    assert isinstance(encoder, Encoder)
    assert torch.equal(encoder.linear.bias, weights["linear.bias"])


def test_two_sets_of_weights_need_a_prefix(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    both = {f"student.{n}": v for n, v in weights.items()} | {f"teacher.{n}": v + 1 for n, v in weights.items()}
    torch.save(both, tmp_path / "c.pt")
    with pytest.raises(ConfigError, match=r"several times.*student\..*teacher\."):
        build_encoder(Encoder, tmp_path / "c.pt")
    encoder = build_encoder(Encoder, tmp_path / "c.pt", "teacher.")
    assert isinstance(encoder, Encoder)
    assert torch.equal(encoder.linear.bias, weights["linear.bias"] + 1)


class Evil:
    """Would run code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('it ran')",))


def test_code_in_a_checkpoint_never_runs(tmp_path: Path) -> None:
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ConfigError, match="weights alone"):
        read_checkpoint(tmp_path / "evil.pt")


def test_what_does_not_fit_is_told(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        build_encoder(Encoder, tmp_path / "none.pt")
    torch.save({"linear.weight": weights["linear.weight"]}, tmp_path / "part.pt")
    with pytest.raises(ConfigError, match=r"no weights 'linear.bias' \(1 of 2"):
        build_encoder(Encoder, tmp_path / "part.pt")
    torch.save(weights, tmp_path / "c.pt")
    with pytest.raises(ConfigError, match="does not fit"):
        build_encoder(make_encoder, tmp_path / "c.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="holds no weights"):
        build_encoder(Encoder, tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="is a function"):
        build_encoder(encode, tmp_path / "c.pt")
    with pytest.raises(ConfigError, match="without arguments"):
        build_encoder(nn.Linear)
    with pytest.raises(ConfigError, match="gave a int"):
        build_encoder(lambda: 3)
