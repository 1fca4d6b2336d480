"""Transfer: a batch from host memory to the device, ahead of its use, on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

Batch = dict[str, torch.Tensor]
Augment = Callable[[Batch, int], Batch]
"""A batch on its device and the epoch it belongs to in, the augmented batch out; the first is not changed."""


class Copying(NamedTuple):
    """A batch under way to a CUDA device."""

    batch: Batch
    copied: Any
    """The event that follows its copies."""


Sent = Batch | Copying
"""What producers hand over."""


class Transfer:
    """Copies batches to one device: `send` where they are made, `receive` where they are used."""

    def __init__(self, device: str | torch.device | None) -> None:
        self.device = torch.device("cpu") if device is None else torch.device(device)
        self._stream: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"device": self.device, "_stream": None}  # a stream belongs to its process

    @property
    def is_pinned(self) -> bool:
        """Whether batches should be made in page-locked memory: only CUDA copies from it meanwhile."""
        return self.device.type == "cuda"

    def own_stream(self) -> AbstractContextManager[Any]:
        """What is given to the device in it runs on the stream that `send` uses, one after the other."""
        return torch.cuda.stream(self._side()) if self.device.type == "cuda" else nullcontext()

    def open(self) -> None:
        """To be called once by the thread that will receive, before anything is sent.

        `cuda` without a number is the device that is current in a thread: there the one that the training has
        chosen, in a producer always the first.
        """
        if self.device.type == "cuda":
            self._side()

    def send(self, batch: Batch, finish: Callable[[Batch], Batch] = lambda batch: batch) -> Sent:
        """Start the copy and then, on the same stream, `finish`, what is to be done to it on the device."""
        if self.device.type == "cpu":
            return finish(batch)
        if self.device.type != "cuda":
            return finish({name: value.to(self.device) for name, value in batch.items()})
        return self._send_to_cuda(batch, finish)

    def receive(self, sent: Sent) -> Batch:
        """The batch on the device; the stream that is current waits for its copy, the host does not."""
        if isinstance(sent, dict):
            return sent
        current = torch.cuda.current_stream(self.device)
        current.wait_event(sent.copied)
        for value in sent.batch.values():  # else it is given away while this stream reads it
            value.record_stream(current)
        return sent.batch

    def _send_to_cuda(self, batch: Mapping[str, torch.Tensor], finish: Callable[[Batch], Batch]) -> Copying:
        stream = self._side()  # ours from here on: another producer may just be setting it
        with torch.cuda.stream(stream):
            moved = finish({name: value.to(self.device, non_blocking=True) for name, value in batch.items()})
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        return Copying(moved, copied)

    def _side(self) -> Any:
        stream = self._stream
        if stream is None:
            stream = self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return stream
