"""Sequence VAE: on waves that it makes, and (slow) on real pen strokes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback
from tests.train.tiny import SaveEach

from flatout.cli.main import main
from flatout.config import Config, load_config
from flatout.config.train import AnnealingSection
from flatout.errors import ConfigError
from flatout.store import DataPreprocessor
from flatout.tasks import sequence_vae
from flatout.tasks.annealing import charged, kl_of_units, kl_weight
from flatout.tasks.channel_scale import ChannelScale
from flatout.tasks.sequence_vae import NO_LIMIT, SequenceVAE, SequenceVAEModule
from flatout.train import RunResult, TaskData, fit
from flatout.train.weights import read_weights
from flatout.types import FieldSpec

TINY = {"dim": 8, "num_layers": 1, "latent_dim": 4}


def write_waves(path: Path, num: int = 28, longest: int = 12) -> Path:
    """A Parquet of sines of random height, pitch and length in two list columns: three numbers tell each."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(num):
        height, pitch, length = random.uniform(20, 90), random.uniform(1, 3), int(random.integers(2, longest))
        turns = np.arange(length) / longest * pitch * 2 * np.pi
        x, y = height * np.sin(turns), 500 + height * np.cos(turns)
        split = ("train", "train", "val", "test")[number % 4]
        rows.append({"id": f"w{number}", "x": x.astype(np.int16), "y": y.astype(np.int16), "split": split})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def config_of(manifest: Path | str, output: Path, **settings: Any) -> dict[str, Any]:
    return {
        "task": "sequence_vae",
        "manifest": str(manifest),
        "preprocessed_data_dir": str(output / "store"),
        "output_dir": str(output / "runs"),
        "epochs": 1,
        "num_workers": 0,
        "learning_rate": 0.01,
        "precision": "32",
        "val_check_interval": 1.0,
        "limit_val_batches": 1.0,
        "logger": [],
        "model": TINY,
        **settings,
    }


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences whose store is made; do not change either."""
    folder = tmp_path_factory.mktemp("waves")
    manifest = write_waves(folder / "waves.parquet")
    DataPreprocessor(config_of(manifest, folder)).run()
    return manifest


def waves_config(waves: Path, tmp_path: Path, **settings: Any) -> dict[str, Any]:
    own = {"preprocessed_data_dir": str(waves.parent / "store")}
    return config_of(waves, tmp_path, **{**own, **settings})


def test_two_steps_from_the_store_and_from_raw_files(waves: Path, tmp_path: Path) -> None:
    config = waves_config(waves, tmp_path)
    options = {"limit_train_batches": 4}  # two batches a step
    fast = fit(config, trainer_options=options)
    assert fast.is_fast
    assert json.loads((fast.folder / "run.json").read_text())["global_step"] == 2
    wanted = {"loss", "kl", "error", "error_of_mean", "loss_of_mean"}
    assert {f"{split}_{name}" for split in ("val", "test") for name in wanted} <= set(fast.metrics)
    slow = fit({**config, "use_fast_loader": False}, trainer_options=options)
    assert not slow.is_fast
    assert slow.metrics == fast.metrics
    assert_equal_weights(slow, fast)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64"])
def test_in_other_precisions(waves: Path, tmp_path: Path, precision: str) -> None:
    result = fit(waves_config(waves, tmp_path, precision=precision))
    exact = fit(waves_config(waves, tmp_path))
    assert result.metrics["val_loss"] == pytest.approx(exact.metrics["val_loss"], rel=0.1)


def assert_equal_weights(one: RunResult, other: RunResult) -> None:
    assert one.weights is not None
    assert other.weights is not None
    torch.testing.assert_close(read_weights(one.weights), read_weights(other.weights), rtol=0, atol=0)


@pytest.mark.parametrize("is_fast", [True, False])
def test_resumed_after_any_batch(waves: Path, tmp_path: Path, is_fast: bool) -> None:
    """Weights, the channels' means and the annealing go on as without the break."""
    config = waves_config(
        waves, tmp_path, batch_size=5, use_fast_loader=is_fast, model={**TINY, "dropout": 0.1}
    )
    whole = fit(config, callbacks=[SaveEach(tmp_path)])
    for stop in (1, 2):
        assert_equal_weights(fit(config, resume=tmp_path / f"batch{stop}.ckpt"), whole)


@pytest.mark.parametrize("preset", ["recommended", "memory_limited", "debug", "low_memory_gpu"])
def test_presets_train_a_step(waves: Path, tmp_path: Path, preset: str) -> None:
    config = waves_config(waves, tmp_path, preset=preset)
    for key in ("num_workers", "precision"):
        config.pop(key)
    assert fit(config, trainer_options={"limit_train_batches": 2}).speed.num_steps == 2


def test_the_command_trains_and_watches_the_posterior(
    waves: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A weight of the divergence beyond reason makes the posterior collapse, and that is said."""
    sets = ["kl_annealing.weight=500", "kl_annealing.warmup=0", "monitor.update_frequency=1"]
    sets += ["monitor.window_size=5", "model.dim=8", "model.num_layers=1", "model.latent_dim=4", "logger=[]"]
    command = ["train", "--task", "sequence_vae", "--manifest", str(waves), "--output-dir", str(tmp_path / "r")]
    command += ["--preprocessed-data-dir", str(waves.parent / "store"), "--epochs", "50", "--batch-size", "7"]
    command += ["--learning-rate", "0.03", "--max-sequence-length", "8", "--save-top-k", "0", "--json"]
    assert main([*command, "--no-pin-memory", *(part for text in sets for part in ("--set", text))]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record["is_fast"]
    assert "the posterior has collapsed" in shown.err
    reports = json.loads((Path(record["folder"]) / "run.json").read_text())["reports"]
    look = reports["PosteriorMetricsMonitor"]
    assert look["num_units"] == len(look["kl_per_unit"]) == 4
    assert "collapsed" in look["verdict"]  # a unit may have come back since
    assert (Path(record["folder"]) / "posterior.svg").exists()


def test_annealing_is_a_straight_line_and_then_stays() -> None:
    section = AnnealingSection(weight=0.5, warmup=10)
    assert [kl_weight(section, step, 999) for step in (0, 1, 5, 10, 11)] == [0.0, 0.05, 0.25, 0.5, 0.5]
    share = AnnealingSection(warmup=0.25)
    assert [kl_weight(share, step, 40) for step in (0, 5, 10, 40)] == [0.0, 0.5, 1.0, 1.0]
    assert kl_weight(AnnealingSection(warmup=0, weight=2.0), 0, 40) == 2.0
    assert kl_weight(AnnealingSection(warmup=0.0), 0, 40) == 1.0
    assert kl_weight(AnnealingSection(warmup=1), 0, 40) == 0.0  # one step
    assert kl_weight(AnnealingSection(warmup=1.0), 20, 40) == 0.5  # all of them


class Weights(Callback):
    """Writes down what the divergence counts in each batch, and the learning rate."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.rates: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.seen.append(pl_module.kl_weight)
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def test_annealing_follows_the_steps_of_the_whole_run(waves: Path, tmp_path: Path) -> None:
    """14 train samples, 4 a batch, 2 batches a step: 2 steps an epoch, 4 in all."""
    weights = Weights()
    config = waves_config(waves, tmp_path, epochs=2, kl_annealing={"warmup": 0.5, "weight": 2.0})
    result = fit(config, callbacks=[weights])
    assert weights.seen == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert result.metrics["kl_weight"] == 2.0
    assert weights.rates == pytest.approx([1e-4, 1e-4, 2e-4, 2e-4, 3e-4, 3e-4, 4e-4, 4e-4])
    rest = Weights()
    fit({**config, "epochs": 1}, callbacks=[rest])
    assert rest.seen == [0.0, 0.0, 2.0, 2.0]


def test_the_rate_is_full_after_the_first_steps_and_is_left_alone_then(waves: Path, tmp_path: Path) -> None:
    """14 steps of one batch; the first steps are said to be 5."""
    weights = Weights()
    config = waves_config(waves, tmp_path, batch_size=1, gradient_accumulation_steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence_vae, "NUM_FIRST_STEPS", 5)
        fit(config, callbacks=[weights])
    assert weights.rates == pytest.approx([0.002, 0.004, 0.006, 0.008] + [0.01] * 10)


def test_gradients_are_cut() -> None:
    module = module_of()
    optimiser = torch.optim.SGD(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    module.on_before_optimizer_step(optimiser)
    norms = [p.grad.norm() for p in module.parameters() if p.grad is not None]
    assert float(torch.stack(norms).norm()) == pytest.approx(1.0, rel=1e-4)


def test_free_nats_cost_nothing() -> None:
    kl = torch.tensor([[0.1, 0.7], [0.0, 0.3]], requires_grad=True)
    torch.testing.assert_close(charged(kl, 0.0), torch.tensor([0.8, 0.3]))
    paid = charged(kl, 0.5)
    torch.testing.assert_close(paid, torch.tensor([1.2, 1.0]))
    paid.sum().backward()
    assert kl.grad is not None
    assert kl.grad.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_divergence_is_that_of_the_distributions() -> None:
    mean, log_variance = torch.randn(5, 3), torch.randn(5, 3)
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mean, (0.5 * log_variance).exp()), normal(0.0, 1.0))
    torch.testing.assert_close(kl_of_units(mean, log_variance), wanted)


SPEC = FieldSpec("stroke", "sequence", "int16", (None, 3))


def module_of(spec: FieldSpec = SPEC, **settings: Any) -> SequenceVAEModule:
    config: Config = load_config({"task": "sequence_vae", "model": TINY, **settings}, environ={})
    torch.manual_seed(0)
    module = SequenceVAEModule(config, TaskData({spec.name: spec}))
    with torch.no_grad():  # it starts by predicting the mean, which nothing could influence
        module.model.write.weight.normal_()
    return module


def batch_of(lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Strokes by sample: each follows from its place and the seed, padded with zeros to the longest."""
    steps = torch.zeros(len(lengths), max(lengths), 3, dtype=torch.int16)
    for at, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(100 * seed + at)
        steps[at, :length] = torch.randint(-90, 90, (length, 3), generator=generator).to(torch.int16)
    return {
        "stroke": steps,
        "stroke_length": torch.tensor(lengths),
        "key": torch.arange(len(lengths)) * 77 + seed,
    }


def measured(module: SequenceVAEModule, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What is measured, and the gradient of the loss where there is one."""
    module.zero_grad()
    found = dict(module.measure(dict(batch)))
    found["loss"].sum().backward()
    gradients = {f"grad {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    assert len(gradients) > 20
    return {name: value.detach() for name, value in found.items()} | gradients


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    extra=st.integers(1, 8),
    filler=st.sampled_from([0.0, 1e4, float("nan"), float("inf")]),
    is_training=st.booleans(),
    seed=st.integers(0, 5),
)
def test_padding_changes_nothing(
    lengths: list[int], extra: int, filler: float, is_training: bool, seed: int
) -> None:
    """Neither how much there is, nor what stands in it: not in a loss, not in a gradient, not in the scale."""
    module = module_of().train(is_training)
    batch = batch_of(lengths, seed)
    steps = torch.nn.functional.pad(batch["stroke"].float(), (0, 0, 0, extra))
    for row, length in zip(steps, lengths, strict=True):
        row[length:] = filler
    padded = {**batch, "stroke": steps}
    other = module_of().train(is_training)
    module.scale.update(batch["stroke"], module._mask(batch))
    other.scale.update(padded["stroke"], other._mask(padded))
    torch.testing.assert_close(measured(module, batch), measured(other, padded), rtol=2e-4, atol=2e-5)


def test_a_step_that_is_no_padding_changes_much() -> None:
    """The property above can fail: one more step that counts is noticed."""
    module, batch = module_of(), batch_of([4, 6])
    longer = {**batch, "stroke_length": torch.tensor([5, 6])}
    assert (measured(module, batch)["loss"] - measured(module, longer)["loss"]).abs()[0] > 1e-2


def test_numbers_are_by_sample() -> None:
    """A sample's numbers do not depend on the batch it is in, nor on a copy that only fills it up."""
    module, batch = module_of().eval(), batch_of([4, 9, 1, 6])
    whole = module.measure(batch)
    for name in ("loss", "kl", "error", "error_of_mean", "loss_of_mean"):
        assert whole[name].shape == (4,)
    alone = module.measure({name: value[2:3] for name, value in batch.items()})
    for name, value in alone.items():
        torch.testing.assert_close(value, whole[name][2:3], rtol=1e-4, atol=1e-5)


def test_noise_is_drawn_by_key_and_epoch() -> None:
    module, batch = module_of(), batch_of([6, 6])
    twice = {name: torch.cat([value, value]) for name, value in batch.items()}
    loss = module.measure(twice)["loss"]
    torch.testing.assert_close(loss[:2], loss[2:], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(loss, module.measure({**twice, "key": twice["key"] + 1})["loss"])


def test_validation_counts_the_divergence_in_full() -> None:
    """Else the first epochs, in which it is free, would seem the best."""
    module, batch = module_of(kl_annealing={"weight": 2.0, "free_nats": 9.0}), batch_of([3, 8])
    module.kl_weight = 0.0
    free, full = module.train().measure(batch)["loss"], module.eval().measure(batch)
    torch.testing.assert_close(
        full["loss"] - free, 2.0 * full["kl"] / torch.tensor([3, 8]), rtol=1e-3, atol=1e-3
    )
    module.kl_weight = 1.5
    paid = module.train().measure(batch)["loss"]
    torch.testing.assert_close(paid - free, 1.5 * torch.tensor([12.0, 4.5]), rtol=1e-3, atol=1e-3)


def test_the_mean_is_the_baseline() -> None:
    """Error and loss of the mean are those of a normal distribution fitted to the channels."""
    module, batch = module_of().eval(), batch_of([300])
    module.scale.update(batch["stroke"], module._mask(batch))
    found = module.measure(batch)
    assert float(found["error_of_mean"]) == pytest.approx(1.0, abs=1e-4)
    wanted = -torch.distributions.Normal(0.0, 1.0).log_prob(module.scale(batch["stroke"])[0]).sum(-1).mean()
    torch.testing.assert_close(found["loss_of_mean"][0], wanted)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=5),
    offset=st.sampled_from([0, 20_000]),
)
def test_channels_are_scaled_by_all_steps_seen(lengths: list[list[int]], offset: int) -> None:
    scale, seen = ChannelScale(3), []
    for seed, part in enumerate(lengths):
        batch = batch_of(part, seed)
        mask = torch.arange(batch["stroke"].shape[1]) < batch["stroke_length"][:, None]
        scale.update(batch["stroke"] + offset, mask)
        seen.append((batch["stroke"].double() + offset)[mask])
    steps = torch.cat(seen)
    torch.testing.assert_close(scale.mean.double(), steps.mean(0), rtol=1e-5, atol=1e-3)
    deviation = steps.std(0, correction=0)
    wanted = (steps - steps.mean(0)) / torch.where(deviation > 1e-6, deviation, 1.0)
    torch.testing.assert_close(scale(steps[None])[0].double(), wanted, rtol=1e-2, atol=1e-2)


def test_nothing_seen_changes_nothing() -> None:
    assert ChannelScale(2)(torch.tensor([[[3, -4]]])).tolist() == [[[3.0, -4.0]]]


def test_half_precision_is_close() -> None:
    module, batch = module_of().eval(), batch_of([4, 9, 7])
    module.scale.update(batch["stroke"], module._mask(batch))
    exact = module.measure(batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module.measure(batch)
    assert rough["loss"].dtype == rough["kl"].dtype == torch.float32
    torch.testing.assert_close(rough["loss"], exact["loss"], rtol=0.05, atol=0.05)


def test_every_attention_kernel_gives_the_same() -> None:
    batch = batch_of([4, 9, 7])
    found = [module_of(model={**TINY, "attention": name}).measure(batch)["loss"] for name in ("auto", "math")]
    found += [
        module_of(model={**TINY, "attention": name}).measure(batch)["loss"] for name in ("flash", "efficient")
    ]
    for loss in found[1:]:
        torch.testing.assert_close(loss, found[0], rtol=1e-4, atol=1e-5)


def test_sequences_of_one_length_need_no_lengths() -> None:
    fixed = module_of(FieldSpec("stroke", "sequence", "int16", (6, 3))).eval()
    batch = batch_of([6, 6])
    bare = {name: value for name, value in batch.items() if name != "stroke_length"}
    torch.testing.assert_close(fixed.measure(bare), fixed.measure(batch))


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match=r"model\.num_heads is 3; wanted a divisor of model\.dim, which is 8"):
        module_of(model={**TINY, "num_heads": 3})
    with pytest.raises(ConfigError, match="sequence_vae has no width"):
        module_of(model={**TINY, "params": {"width": 3}})
    with pytest.raises(ConfigError, match=r"fields\.stroke\.columns"):
        module_of(FieldSpec("stroke", "sequence", "int16", (None, None)))
    with pytest.raises(ConfigError, match="a field of kind 'sequence'"):
        module_of(FieldSpec("x", "array", "float32", (4,)))
    assert len(module_of(model={"dim": 6}).model.encoder) == 2  # heads by default divide any width


def test_before_and_after_are_the_guides() -> None:
    before = load_config({"task": "sequence_vae"}, overrides=SequenceVAE.before, environ={})
    assert (before.batch_size, before.num_workers, before.save_top_k) == (1, 2, 3)
    assert before.monitor.model_dump() == {
        "update_frequency": 20,
        "plot_frequency": 200,
        "window_size": 100,
        "verbose": True,
    }
    assert (before.val_check_interval, before.limit_val_batches) == (0.05, 0.2)
    assert (before.max_sequence_length, before.use_fast_loader) == (NO_LIMIT, False)
    after = load_config({"task": "sequence_vae"}, overrides=SequenceVAE.after, environ={})
    assert (after.batch_size, after.num_workers, after.gradient_accumulation_steps) == (4, 8, 2)
    assert after.monitor == load_config({}, environ={}).monitor
    assert (after.precision, after.max_sequence_length, after.save_top_k) == ("16-mixed", 1000, 2)
    assert (after.val_check_interval, after.limit_val_batches) == (0.1, 0.1)


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks" / "sequence_vae.md").read_text(encoding="utf-8")


def snippet(language: str, number: int) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number]


def test_the_data_that_the_page_makes_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = snippet("python", 0).replace("NUM, LONGEST = 2000, 1500", "NUM, LONGEST = 40, 30")
    exec(compile(made, "sequence_vae.md", "exec"), {})
    config = config_of("waves.parquet", tmp_path, max_sequence_length=20, length_buckets=True)
    result = fit(config, trainer_options={"limit_train_batches": 2})
    assert not result.is_fast
    assert result.metrics["val_loss_of_mean"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_learns_pen_strokes(data_dir: Path, tmp_path: Path) -> None:
    """The run of the page, as the page has it."""
    config = yaml.safe_load(snippet("yaml", 1)) | {
        "manifest": str(data_dir / "seq_strokes_omniglot"),
        "preprocessed_data_dir": str(tmp_path / "store"),
        "output_dir": str(tmp_path / "runs"),
        "learning_rate": 2e-3,  # plain YAML takes 2e-3 for a text
        "num_workers": 0,
        "logger": [],
    }
    DataPreprocessor(config).run()
    result = fit(config)
    metrics = result.metrics
    assert metrics["test_error"] < 0.6 * metrics["test_error_of_mean"]
    assert metrics["test_loss"] < metrics["test_loss_of_mean"] - 0.5
    reports = json.loads((result.folder / "run.json").read_text())["reports"]
    assert reports["PosteriorMetricsMonitor"]["active_units"] >= 16
