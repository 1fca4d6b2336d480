"""Transfer: a batch from host memory to the device, ahead of its use, on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Batch = dict[str, torch.Tensor]
Arrive = Callable[[], Batch]
"""Called by the consumer: makes its stream wait for the copy and gives the batch."""


class Transfer:
    """Copies batches to one device. On the CPU there is nothing to do."""

    def __init__(self, device: str | torch.device | None) -> None:
        self.device = torch.device("cpu") if device is None else torch.device(device)
        self._stream: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"device": self.device, "_stream": None}  # a stream belongs to its process

    @property
    def is_pinned(self) -> bool:
        """Whether batches should be made in page-locked memory: only CUDA copies from it meanwhile."""
        return self.device.type == "cuda"

    def send(self, batch: Mapping[str, torch.Tensor]) -> Arrive:
        """Start the copy (in a producer); what it returns finishes it (in the consumer)."""
        if self.device.type == "cpu":
            return lambda: dict(batch)
        if self.device.type != "cuda":
            moved = {name: value.to(self.device) for name, value in batch.items()}
            return lambda: moved
        return self._send_to_cuda(batch)

    def _send_to_cuda(self, batch: Mapping[str, torch.Tensor]) -> Arrive:
        stream = self._stream  # ours from here on: another producer may just be setting it
        if stream is None:
            stream = self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            moved = {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)

        def arrive() -> Batch:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            for value in moved.values():  # else it is given away while the consumer's stream reads it
                value.record_stream(current)
            return moved

        return arrive
