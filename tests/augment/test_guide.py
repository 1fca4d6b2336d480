"""The heart sound guide's nineteen tests by name and meaning, and its snippet with only the import changed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.augment import (
    GPUAmplitudeScale,
    GPUAugmentationWrapper,
    GPUCompose,
    GPUFrequencyMask,
    GPUGaussianNoise,
    GPUTimeMask,
    GPUTimeShift,
    GPUTimeStretch,
    get_gpu_downstream_transforms,
    get_gpu_pretrain_transforms,
    split_substructures_batch,
)

GUIDES = Path(__file__).resolve().parents[3] / "shared" / "guides"
THEIR_MODULE = "src.data.gpu_transforms"


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 1, 4000, generator=torch.Generator().manual_seed(0))


class TestGPUTimeShift:
    def test_shape_preserved(self, x: torch.Tensor) -> None:
        assert GPUTimeShift()(x).shape == x.shape

    def test_no_shift_when_eval(self, x: torch.Tensor) -> None:
        assert GPUTimeShift(p=1.0).eval()(x).equal(x)

    def test_shift_applied_when_train(self, x: torch.Tensor) -> None:
        torch.manual_seed(0)
        y = GPUTimeShift(p=1.0).train()(x)
        assert not y.equal(x)
        assert y.sort(-1).values.equal(x.sort(-1).values)


class TestGPUAmplitudeScale:
    def test_shape_preserved(self, x: torch.Tensor) -> None:
        assert GPUAmplitudeScale()(x).shape == x.shape

    def test_scale_range(self, x: torch.Tensor) -> None:
        factors = GPUAmplitudeScale((0.5, 2.0), p=1.0)(torch.ones(500, 1, 10))[:, 0, 0]
        assert 0.5 <= factors.min() < 0.6
        assert 1.9 < factors.max() <= 2.0


class TestGPUGaussianNoise:
    def test_shape_preserved(self, x: torch.Tensor) -> None:
        assert GPUGaussianNoise()(x).shape == x.shape

    def test_noise_added(self, x: torch.Tensor) -> None:
        noise = GPUGaussianNoise(std=0.01, p=1.0)(x) - x
        assert noise.std().item() == pytest.approx(0.01, rel=0.05)


class TestGPUTimeMask:
    def test_shape_preserved(self, x: torch.Tensor) -> None:
        assert GPUTimeMask()(x).shape == x.shape

    def test_mask_applied(self, x: torch.Tensor) -> None:
        is_masked = GPUTimeMask(max_fraction=0.2, p=1.0)(x) == 0
        lengths = is_masked.sum(-1)
        assert (lengths >= 1).all()
        assert (lengths <= 800).all()
        assert (is_masked.int().diff(dim=-1).abs().sum(-1) <= 2).all()  # one stretch


class TestGPUFrequencyMask:
    def test_shape_preserved(self, x: torch.Tensor) -> None:
        assert GPUFrequencyMask()(x).shape == x.shape


class TestGPUTimeStretch:
    def test_shape_preserved(self, x: torch.Tensor) -> None:
        assert GPUTimeStretch()(x).shape == x.shape


class TestGPUCompose:
    def test_compose_multiple(self, x: torch.Tensor) -> None:
        y = GPUCompose([GPUTimeShift(p=1.0), GPUAmplitudeScale(p=1.0), GPUGaussianNoise(p=1.0)])(x)
        assert y.shape == x.shape
        assert not y.equal(x)

    def test_empty_compose(self, x: torch.Tensor) -> None:
        assert GPUCompose([])(x).equal(x)


class TestFactoryFunctions:
    def test_get_gpu_pretrain_transforms(self, x: torch.Tensor) -> None:
        transforms = get_gpu_pretrain_transforms(None, 5000)
        assert isinstance(transforms, GPUCompose)
        assert transforms(x).shape == x.shape

    def test_get_gpu_downstream_transforms_training(self, x: torch.Tensor) -> None:
        transforms = get_gpu_downstream_transforms(None, 5000, training=True)
        assert len(transforms) > 0
        assert not transforms(x).equal(x)

    def test_get_gpu_downstream_transforms_eval(self, x: torch.Tensor) -> None:
        assert get_gpu_downstream_transforms(None, 5000, training=False)(x).equal(x)


class TestGPUAugmentationWrapper:
    def test_dual_view_augmentation(self, x: torch.Tensor) -> None:
        view1, view2 = GPUAugmentationWrapper(get_gpu_pretrain_transforms())(x)
        assert view1.shape == view2.shape == x.shape
        assert not view1.equal(view2)

    def test_train_eval_modes(self, x: torch.Tensor) -> None:
        wrapper = GPUAugmentationWrapper(get_gpu_pretrain_transforms())
        assert all(view.equal(x) for view in wrapper.eval()(x))
        assert not any(view.equal(x) for view in wrapper.train()(x))


class TestPerformance:
    def test_batch_throughput(self) -> None:
        """A batch in one go against its samples one by one: faster on any machine."""
        x = torch.randn(64, 1, 400, generator=torch.Generator().manual_seed(0))
        transforms = get_gpu_pretrain_transforms()
        together = fastest(lambda: transforms(x))
        alone = fastest(lambda: [transforms(sample) for sample in x.split(1)])
        assert together < alone / 2


def fastest(work: Callable[[], Any], num_runs: int = 5) -> float:
    """Seconds of the best of several runs."""
    seconds = []
    for _ in range(num_runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def test_the_trainer_of_the_guide_has_what_it_calls(x: torch.Tensor) -> None:
    augment = get_gpu_pretrain_transforms(None, 5000).to(torch.device("cpu"))
    view1, view2 = augment(x), augment(x)
    subs1, subs2 = split_substructures_batch(view1), split_substructures_batch(view2)
    assert subs1.shape == subs2.shape == (8, 4, 1, 1000)
    assert not subs1.equal(subs2)


def test_the_snippet_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = sorted(GUIDES.glob("001*.md"))
    if not found:
        pytest.skip("the guides are not on this machine")
    text = found[0].read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (snippet,) = [block for block in blocks if f"from {THEIR_MODULE} import" in block and "time.time" in block]
    names: dict[str, Any] = {}
    exec(compile(snippet.replace(THEIR_MODULE, "flatout.augment"), found[0].name, "exec"), names)
    assert names["y"].shape == names["x"].shape == (64, 1, 4000)
    assert not names["y"].equal(names["x"])
    assert "samples/sec" in capsys.readouterr().out
