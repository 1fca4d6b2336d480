"""Speech: recordings of any length, spelled character by character; or told apart, where there is no text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from flatout.augment import draw_keys
from flatout.augment.draws import Draws
from flatout.config import Config, list_tasks
from flatout.errors import ConfigError, TrainError
from flatout.tasks.characters import find_characters, shortened
from flatout.tasks.ctc import BLANK, Alphabet, error_rate, least_frames, read_texts
from flatout.tasks.spectrum import HOP_S, LogMel, is_inside
from flatout.tasks.speech_augment import LENGTH, VaryBatch, VarySample
from flatout.tasks.speech_net import STRIDE, SpeechNet
from flatout.tasks.targets import count_classes
from flatout.train import Batch, Task, TaskData, TaskModule
from flatout.train.nonfinite import list_samples
from flatout.types import FieldSpec

NUM_BANDS, DIM, NUM_LAYERS, DROPOUT = 64, 128, 4, 0.2
"""The model's size where the config does not say."""
FREQUENCY_VIEW = 7
"""Sets what is drawn for the bands apart from what is drawn for the recordings."""


class Speech(Task):
    """JSON-lines manifest with `audio_filepath` and `text`, or a label instead; batches of similar length."""

    name = "speech"
    defaults: ClassVar[Mapping[str, Any]] = list_tasks()["speech"]
    before: ClassVar[Mapping[str, Any]] = {
        "batch_size": 2,
        "num_workers": 0,
        "persistent_workers": False,
        "prefetch_factor": 2,
        "pin_memory": True,
        "length_buckets": False,
        "use_fast_loader": False,
    }
    after: ClassVar[Mapping[str, Any]] = {
        "batch_size": 8,
        "num_workers": 8,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "pin_memory": True,
    }
    reads = (
        "model.dim",
        "model.num_layers",
        "model.dropout",
        "model.params",
        "augmentation.time_stretch",
        "augmentation.gaussian_noise",
        "augmentation.time_mask",
        "augmentation.frequency_mask",
    )

    def module(self, config: Config, data: TaskData) -> SpellingModule | TellingModule:
        """A network that spells where there are texts, and tells classes apart where there are only labels."""
        return TellingModule(config, data) if text_field(data) is None else SpellingModule(config, data)

    def augmentation(self, config: Config, data: TaskData) -> VaryBatch:
        """Slower or faster, with noise and gaps, as the config's `augmentation` says."""
        name, text = data.field_of("signal").name, text_field(data)
        return VaryBatch(name, config.augmentation, config.seed, text, _steps_a_byte(config, data))

    def sample_transform(self, config: Config, data: TaskData) -> VarySample:
        """The same, one recording at a time."""
        name, text = data.field_of("signal").name, text_field(data)
        return VarySample(name, config.augmentation, text, _steps_a_byte(config, data))


class SpeechModule(TaskModule):
    """Spectrum and network, which both kinds of training share."""

    def __init__(self, config: Config, data: TaskData, num_outputs: int) -> None:
        params = dict(config.model.params)
        num_bands = params.pop("num_bands", NUM_BANDS)
        if not isinstance(num_bands, int) or num_bands < 1:
            raise ConfigError(f"model.params.num_bands is {num_bands!r}; wanted a whole number above 0, as 64")
        params.pop("alphabet", None)
        if params:
            raise ConfigError(f"model.params: speech takes num_bands and alphabet; got {', '.join(params)}")
        dropout = DROPOUT if config.model.dropout is None else config.model.dropout
        dim, num_layers = config.model.dim or DIM, config.model.num_layers or NUM_LAYERS
        super().__init__(config, data, SpeechNet(num_bands, dim, num_layers, num_outputs, dropout))
        signal = data.field_of("signal")
        self.spectrum = LogMel(sample_rate(config, data, signal), num_bands)
        self._signal = signal.name

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, frames, outputs) in float32, and how many frames of each are its own."""
        signal = batch[self._signal].mean(1)
        full = torch.full(signal.shape[:1], signal.shape[1], device=signal.device)
        frames, num = self.spectrum(signal, batch.get(f"{self._signal}{LENGTH}", full))
        if self.training:
            frames = self._without_band(frames, batch["key"])
        found, num_left = self.model(frames.to(self.dtype), num)
        return found.float(), num_left

    def _without_band(self, frames: Tensor, key: Tensor) -> Tensor:
        """The spectrum without some neighbouring bands, as `augmentation.frequency_mask` says.

        Here and not in the augmentation: a band of the spectrum is cut out for nothing, one of a recording
        takes two Fourier transforms. Both paths have it.
        """
        section, num_bands = self.config.augmentation.frequency_mask, frames.shape[1]
        keys = draw_keys(key, seed=self.config.seed, epoch=self.current_epoch).view(FREQUENCY_VIEW)
        draws = Draws(keys, 3)
        width = draws.uniform(1, 0.0, section.max_fraction) * num_bands
        start = draws.uniform(2) * (num_bands - width)
        places = torch.arange(num_bands, device=frames.device)
        inside = (places >= start[:, None]) & (places < (start + width)[:, None])
        return torch.where((inside & draws.chance(0, section.p)[:, None])[:, :, None], 0.0, frames)


class SpellingModule(SpeechModule):
    """CTC over characters; `cer` and `wer`, the error rates of greedily read texts, as metrics."""

    def __init__(self, config: Config, data: TaskData) -> None:
        if any(config.loader_for(split).max_sequence_length is not None for split in data.num_samples):
            raise ConfigError(
                "max_sequence_length cuts recordings, which would no longer say all of their texts. Leave it "
                "out, and leave long recordings out of the manifest"
            )
        text = data.field_of("text")
        alphabet = Alphabet(find_characters(config, data, text.name))
        super().__init__(config, data, alphabet.num_outputs)
        self.alphabet = alphabet
        self._text, self._names = text.name, data.names

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss (a character) and error rates of each recording; one with an empty text has no rates."""
        text, num_bytes = batch[self._text], batch[f"{self._text}{LENGTH}"]
        targets, num_characters = self.alphabet.targets(text, num_bytes)
        outputs, num_frames = self.outputs(batch)
        self._check_room(num_frames, least_frames(targets, num_characters), batch)
        losses = functional.ctc_loss(
            outputs.log_softmax(2).transpose(0, 1), targets, num_frames, num_characters, BLANK, reduction="none"
        )
        found = {"loss": losses / num_characters.clamp_min(1)}
        return found if self.training else found | self._rates(outputs, num_frames, text, num_bytes)

    def _rates(self, outputs: Tensor, num_frames: Tensor, text: Tensor, num_bytes: Tensor) -> dict[str, Tensor]:
        said = self.alphabet.decode(outputs.argmax(2), num_frames)
        pairs = list(zip(said, read_texts(text, num_bytes), strict=True))
        rates = {
            "cer": [error_rate(one, wanted) for one, wanted in pairs],
            "wer": [error_rate(one.split(), wanted.split()) for one, wanted in pairs],
        }
        return {name: torch.tensor(values, device=outputs.device) for name, values in rates.items()}

    def _check_room(self, num_frames: Tensor, least: Tensor, batch: Batch) -> None:
        """CTC has no way to say a text in fewer frames than it has characters: the loss would be infinite.

        This waits for the device, but so does `ctc_loss`, which takes the lengths to the host.
        """
        is_short = num_frames < least
        if not bool(is_short.any()):
            return
        at = int(is_short.nonzero()[0])
        text = read_texts(batch[self._text][at : at + 1], batch[f"{self._text}{LENGTH}"][at : at + 1])[0]
        raise TrainError(
            f"the text {shortened(text)} needs {int(least[at])} frames of {STRIDE * HOP_S * 1000:g} ms, and "
            f"its recording has {int(num_frames[at])}. Samples of this batch that are too short: "
            f"{list_samples(self._names, batch['key'][is_short])}. Mend these rows of the manifest (text, "
            "offset, duration) or remove them, and prepare again"
        )


class TellingModule(SpeechModule):
    """Cross entropy over the classes of a label, of the mean over frames; `accuracy` as the metric."""

    def __init__(self, config: Config, data: TaskData) -> None:
        label = data.field_of("label")
        super().__init__(config, data, count_classes(data, label.name))
        self._label = label.name

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """Loss and accuracy of each recording."""
        outputs, num_frames = self.outputs(batch)
        mask = is_inside(num_frames, outputs.shape[1])[:, :, None]
        mean = torch.where(mask, outputs, 0.0).sum(1) / num_frames[:, None]
        target = batch[self._label].long()
        loss = functional.cross_entropy(mean, target, reduction="none")
        return {"loss": loss, "accuracy": (mean.argmax(1) == target).float()}


def text_field(data: TaskData) -> str | None:
    """The field of texts; None where there is none.

    Raises:
        ConfigError: there are several, none of them called text; or neither text nor label.
    """
    kinds = [spec.kind for spec in data.fields.values()]
    if "text" in kinds:
        return data.field_of("text").name
    if "label" not in kinds:
        there = ", ".join(f"{name} ({spec.kind})" for name, spec in data.fields.items())
        raise ConfigError(
            f"speech wants a text to spell, or a label to tell apart; the samples have: {there}. Name the "
            "column of the manifest under 'fields', as fields: {text: {kind: text, column: transcript}}"
        )
    return None


def sample_rate(config: Config, data: TaskData, signal: FieldSpec) -> int:
    """Samples a second of the recordings.

    Raises:
        ConfigError: nothing says it.
    """
    stored = {} if data.store is None else (data.store.meta.settings.get("fields") or {}).get(signal.name) or {}
    rate = getattr(config.fields.get(signal.name), "rate", None) or stored.get("rate")
    if rate is None:
        raise ConfigError(
            f"speech has to know the samples a second of '{signal.name}': give fields.{signal.name}.rate, as "
            "16000; recordings of other rates are resampled"
        )
    return int(rate)


def _steps_a_byte(config: Config, data: TaskData) -> int:
    """Steps of a recording that a character may need: its frame, and a blank's."""
    rate = sample_rate(config, data, data.field_of("signal"))
    return 2 * STRIDE * round(HOP_S * rate)
