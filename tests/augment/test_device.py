"""Nothing is fetched from the device, nothing made beside it: proved with fake tensors and whole graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scipy.stats
import torch
from tests.augment.cases import CASES, LENGTH, batch_keys, signals, tensors
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from flatout.augment import (
    GPUAmplitudeScale,
    GPUAugmentationWrapper,
    GPUCompose,
    OneOf,
    SampleKeys,
    draw_keys,
    get_gpu_pretrain_transforms,
    split_substructures_batch,
)
from flatout.augment.keys import FIRST_DRAW, FIRST_NOISE, sequence


def some_chain() -> GPUCompose:
    return GPUCompose([CASES["time_shift"](0.5), OneOf([CASES["low_pass"](1.0), CASES["gaussian_noise"](0.5)])])


MAKERS: dict[str, Callable[[], Any]] = {name: lambda make=make: make(0.5) for name, make in CASES.items()} | {
    "chain": some_chain,
    "pretrain": get_gpu_pretrain_transforms,
    "views": lambda: GPUAugmentationWrapper(some_chain(), num_views=3),
}
everything = pytest.mark.parametrize("name", MAKERS)


def inductor(test: Any) -> Any:
    """A slow test of generated code; torch's own modules warn of each other, and of the FFT left as it is."""
    quiet = pytest.mark.filterwarnings(
        "ignore:Torchinductor does not support code generation for complex",
        "ignore:.*torch.jit:DeprecationWarning",
    )
    return pytest.mark.slow(quiet(test))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@everything
def test_runs_on_fake_tensors(name: str) -> None:
    """A fake tensor has no values: `.item()`, `if tensor:` or a boolean index would raise."""
    with FakeTensorMode() as mode:
        x, hashes = mode.from_tensor(signals(4)), mode.from_tensor(torch.arange(4))
        found = MAKERS[name]()(x, draw_keys(hashes, seed=1, epoch=2))
    assert [view.shape for view in tensors(found)] == [(4, 2, LENGTH)] * len(tensors(found))


@everything
def test_makes_every_tensor_where_the_batch_is(name: str) -> None:
    """On the meta device, which stands for all but the CPU: a tensor of the host beside it would raise."""
    x, hashes = signals(4).to("meta"), torch.arange(4).to("meta")
    transform = MAKERS[name]().to("meta")
    for found in (transform(x, draw_keys(hashes, seed=1, epoch=2)), transform(x)):
        assert {view.device.type for view in tensors(found)} == {"meta"}


def test_values_fetched_from_the_device_would_be_noticed() -> None:
    class Fetching(GPUAmplitudeScale):
        def alter(self, x: torch.Tensor, params: Any) -> torch.Tensor:
            return x * params.factor[0].item()

    class Branching(GPUAmplitudeScale):
        def alter(self, x: torch.Tensor, params: Any) -> torch.Tensor:
            return x * 2.0 if params.factor[0] > 1.0 else x

    class FromTheHost(GPUAmplitudeScale):
        def alter(self, x: torch.Tensor, params: Any) -> torch.Tensor:
            return x * torch.ones(LENGTH)

    with FakeTensorMode() as mode, pytest.raises(DataDependentOutputException):
        Fetching(p=1.0)(mode.from_tensor(signals(4)))
    with pytest.raises(RuntimeError, match="meta"):
        FromTheHost(p=1.0)(signals(4).to("meta"))
    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)):
        torch.compile(Branching(p=1.0), fullgraph=True, backend="eager")(signals(4))


@everything
def test_is_captured_as_one_graph(name: str) -> None:
    """The eager backend runs the captured graph as it is; fullgraph raises where Python would have to look."""
    x, keys, transform = signals(4), batch_keys(4), MAKERS[name]()
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    for found, wanted in zip(tensors(compiled(x, keys)), tensors(transform(x, keys)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_drawing_without_keys_is_captured_too() -> None:
    x, transform = signals(4), CASES["amplitude_scale"](0.5)
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    found = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(found, transform(x))


def test_a_new_epoch_compiles_nothing() -> None:
    x, transform = signals(4), some_chain()
    compiled = torch.compile(transform, fullgraph=True, backend="eager")
    compiled(x, batch_keys(4))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for epoch in range(1, 4):
            keys = batch_keys(4, epoch=epoch)
            torch.testing.assert_close(compiled(x, keys), transform(x, keys))


@pytest.mark.slow
def test_graphs_for_any_size_and_length_agree() -> None:
    transform = some_chain()
    compiled = torch.compile(transform, fullgraph=True, backend="eager", dynamic=True)
    for num_samples, length in ((4, 100), (5, 120), (7, 333)):
        x, keys = signals(num_samples, 2, length), batch_keys(num_samples)
        torch.testing.assert_close(compiled(x, keys), transform(x, keys))


def test_substructures_are_captured() -> None:
    x = signals(3)
    boundaries = torch.tensor([[0, 50, 100, 200, 400]] * 3)
    compiled = torch.compile(split_substructures_batch, fullgraph=True, backend="eager")
    assert compiled(x).equal(split_substructures_batch(x))
    torch.testing.assert_close(compiled(x, 4, boundaries), split_substructures_batch(x, 4, boundaries))


@inductor
@pytest.mark.parametrize("name", ["all", "gaussian_noise", "views"])
def test_compiled_code_draws_the_same(name: str) -> None:
    """Whatever the compiler fuses, whole numbers are equal and floating point agrees to rounding."""
    whole = GPUCompose([make(0.5) for make in CASES.values()])
    x, keys, transform = signals(8), batch_keys(8), whole if name == "all" else MAKERS[name]()
    compiled = torch.compile(transform, fullgraph=True)
    for found, wanted in zip(tensors(compiled(x, keys)), tensors(transform(x, keys)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@inductor
def test_compiled_keys_are_bit_equal() -> None:
    """Signed overflow is undefined in C++; what the compiler makes of it here must still wrap."""

    def states(keys: SampleKeys) -> torch.Tensor:
        inner = keys.view(1).position(3).position(0)
        return torch.cat([sequence(inner.states, first, 9) for first in (FIRST_DRAW, FIRST_NOISE)], 1)

    keys = batch_keys(1000)
    assert torch.compile(states, fullgraph=True)(keys).equal(states(keys))


@inductor
def test_compiled_code_draws_well_without_keys() -> None:
    """There the keys come from a generator within the same code, where a compiler knows more about them."""
    torch.manual_seed(0)
    scale = torch.compile(CASES["amplitude_scale"](0.5), fullgraph=True)
    factors = scale(torch.ones(20_000, 1, 2))[:, 0, 0]
    changed = factors[factors != 1.0]
    assert 0.48 < len(changed) / len(factors) < 0.52
    assert scipy.stats.kstest(changed.numpy(), "uniform", args=(0.8, 0.4)).pvalue > 0.0001
    assert len(changed.unique()) > 0.99 * len(changed)
