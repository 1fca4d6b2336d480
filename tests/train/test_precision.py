"""Precision: what each device is given for each wish, and what is said."""

from __future__ import annotations

import pytest
import torch

from flatout.train.precision import Abilities, choose_precision, describe_device

NEW_GPU = Abilities("cuda", has_bf16=True, has_fp16=True)
OLD_GPU = Abilities("cuda", has_bf16=False, has_fp16=True)
PLAIN_CPU = Abilities("cpu", has_bf16=False, has_fp16=False)
BROKEN_CPU = Abilities("cpu", has_bf16=False, has_fp16=False, trouble="its tiles do not work")
AMX_CPU = Abilities("cpu", has_bf16=True, has_fp16=False)
MPS = Abilities("mps", has_bf16=False, has_fp16=True)


@pytest.mark.parametrize(
    ("wanted", "device", "given"),
    [
        ("auto", NEW_GPU, "bf16-mixed"),
        ("auto", OLD_GPU, "16-mixed"),
        ("auto", PLAIN_CPU, "32-true"),
        ("auto", AMX_CPU, "bf16-mixed"),
        ("auto", MPS, "32-true"),
        ("32", PLAIN_CPU, "32-true"),
        ("64", PLAIN_CPU, "64-true"),
        ("16-mixed", NEW_GPU, "16-mixed"),
        ("16-mixed", MPS, "16-mixed"),
        ("bf16-mixed", NEW_GPU, "bf16-mixed"),
        ("bf16-mixed", AMX_CPU, "bf16-mixed"),
    ],
)
def test_what_is_legal_is_done_in_silence(wanted: str, device: Abilities, given: str) -> None:
    assert choose_precision(wanted, device) == (given, None)


@pytest.mark.parametrize(
    ("wanted", "device", "given", "told"),
    [
        ("16-mixed", PLAIN_CPU, "32-true", "16-mixed becomes 32: float16 is not native on this cpu"),
        ("16-mixed", AMX_CPU, "bf16-mixed", "16-mixed becomes bf16-mixed"),
        ("bf16-mixed", OLD_GPU, "16-mixed", "bf16-mixed becomes 16-mixed"),
        ("bf16-mixed", PLAIN_CPU, "32-true", "bf16-mixed becomes 32: bfloat16 is only emulated"),
        ("auto", BROKEN_CPU, "32-true", "auto is 32: its tiles do not work"),
        ("bf16-mixed", BROKEN_CPU, "32-true", "bf16-mixed becomes 32: its tiles do not work"),
        ("64", MPS, "32-true", "64 becomes 32: mps has no float64"),
    ],
)
def test_what_is_not_falls_back_and_is_said(wanted: str, device: Abilities, given: str, told: str) -> None:
    precision, note = choose_precision(wanted, device)
    assert precision == given
    assert note is not None
    assert told in note


def test_this_machine_is_described() -> None:
    found = describe_device(torch.device("cpu"))
    assert found.kind == "cpu"
    assert not found.has_fp16
