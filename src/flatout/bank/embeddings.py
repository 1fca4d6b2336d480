"""precompute_embeddings: a frozen encoder's outputs become a field of the store."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatout.bank.encoder import Encoder, build_encoder
from flatout.errors import ConfigError, LoaderError, StoreLockedError
from flatout.loader import FastDataLoader, ReadRule
from flatout.store import Progress, StoreReader
from flatout.store.extend import add_field, extended_fields, refuse_unfinished
from flatout.store.files import temporary_beside
from flatout.store.limits import disk_errors
from flatout.store.lock import locked
from flatout.store.metadata import StoreMeta, is_store
from flatout.store.progress import Silent
from flatout.store.traces import Traces
from flatout.types import Array, FieldSpec


@dataclass(frozen=True)
class Embedded:
    """What was made."""

    store: Path
    meta: StoreMeta

    @property
    def field(self) -> FieldSpec:
        """The new field."""
        return self.meta.fields[-1]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "store": str(self.store),
            "samples": self.meta.num_samples,
            "field": {"name": self.field.name, "dtype": self.field.dtype, "shape": list(self.field.shape)},
            "fields": [spec.name for spec in self.meta.fields],
            "content_hash": self.meta.content_hash,
        }


def precompute_embeddings(
    store: str | Path,
    encoder: Any,
    *,
    checkpoint: str | Path | None = None,
    prefix: str | None = None,
    field: str | None = None,
    name: str = "embedding",
    output: str | Path | None = None,
    keep: Sequence[str] | None = None,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Embedded:
    """Every sample of a store through a frozen encoder; its outputs stand in the store as field `name` then.

    A store's files never change, so all of it is written anew, beside what is there, and swapped in last:
    until then, and after a crash, readers see the store as it was. `flatout prepare --compact` gives the space
    of the old files back. With `output` the store stays as it is and another one is made.

    Args:
        encoder: a torch module, its class, a function that makes one, or one that encodes: (B, ...) in,
            (B, ...) out. It is put into eval() and runs without gradients.
        checkpoint: its weights, `.safetensors` or as `torch.save` wrote them; read with `weights_only=True`.
        prefix: what their names begin with in the checkpoint, where it holds several sets.
        field: what goes in; absent: the only field that is more than a number.
        keep: fields that a new store has beside the new one; all by default.
        device: where the encoder runs; absent: CUDA if there is one.
        origin: what the store keeps on record about the encoder.

    Raises:
        ConfigError: encoder, checkpoint or fields do not fit.
        LoaderError: the outputs cannot be a field. StoreLockedError: a prepare is at work there.
        StoreError: one is unfinished there.
    """
    folder = Path(store)
    target = folder if output is None else Path(output)
    if output is None and keep is not None:
        raise ConfigError("keep leaves fields out: that needs another store (output)")
    frozen = build_encoder(encoder, None if checkpoint is None else Path(checkpoint), prefix)
    teller = progress or Silent()
    traces = Traces(target)
    try:
        with locked(target):
            reader = StoreReader(folder)
            _check_target(folder, target)
            source = input_field(reader, field, name)
            extended_fields(reader, FieldSpec(name, "array", "float32", ()), keep)  # before hours of work
            work = _Work(reader, source, name, frozen, _device(device), batch_size)
            with disk_errors(target), work.values(target, teller) as values:
                spec = FieldSpec(name, "array", values.dtype.name, values.shape[1:])
                return Embedded(target, add_field(reader, target, spec, values, keep, origin, teller))
    except StoreLockedError:
        raise  # what is there is another's
    except BaseException:
        traces.remove()
        raise


def input_field(store: StoreReader, name: str | None, made: str = "") -> str:
    """The field that goes into the encoder: the one named, or the only one that is more than a number.

    Args:
        made: the field that comes out, which may be there from an earlier time.

    Raises:
        ConfigError: there is no such field, none at all, or several.
    """
    if name is not None:
        if name not in store.fields:
            raise ConfigError(f"{store.folder} has no field '{name}'; it has: {', '.join(store.fields)}")
        return name
    specs = [spec for spec in store.fields.values() if spec.shape and spec.kind != "text"]
    found = [spec.name for spec in specs if spec.name != made]
    if len(found) != 1:
        problem = f"several: {', '.join(found)}" if found else "none"
        raise ConfigError(f"{store.folder}: what goes into the encoder? There are {problem}. Name it (--field)")
    return found[0]


def _check_target(folder: Path, target: Path) -> None:
    if target.resolve() != folder.resolve() and is_store(target):
        raise ConfigError(f"{target} is a store already; remove it, or choose another place (--output)")
    refuse_unfinished(target)


def _device(device: str | torch.device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class _Work:
    """One store through one encoder."""

    store: StoreReader
    source: str
    name: str
    encoder: Encoder
    device: torch.device
    batch_size: int

    @contextmanager
    def values(self, folder: Path, progress: Progress) -> Iterator[Array]:
        """(samples, *shape) outputs in index order, in a file of the folder that goes when they are used."""
        path = temporary_beside(folder / f"{self.name}.values")
        found: Array | None = None
        progress.begin("encode", len(self.store))
        start = 0
        try:
            for batch in self._loader(progress):
                outputs = self._encode(batch[self.source])
                if found is None:
                    found = _new_values(path, outputs.dtype, (len(self.store), *outputs.shape[1:]))
                self._check(outputs, found, start)
                found[start : start + len(outputs)] = outputs
                start += len(outputs)
                progress.advance(len(outputs))
            if found is None:
                raise LoaderError(f"{self.store.folder} has no samples to encode")
            yield found
        finally:
            del found
            path.unlink(missing_ok=True)

    def _loader(self, progress: Progress) -> FastDataLoader:
        """Every sample once, in index order, on this process alone."""
        batch_size = self.batch_size
        if self.store.fields[self.source].is_ragged:
            progress.say(f"samples of '{self.source}' differ in shape: encoded one by one, without padding")
            batch_size = 1
        rule = ReadRule(crc="always", fields=(self.source,))
        if isinstance(self.encoder, torch.nn.Module):
            self.encoder.to(self.device)
        return FastDataLoader(self.store, batch_size, read=rule, rank=0, world_size=1, device=self.device)

    def _encode(self, x: Tensor) -> Array:
        try:
            with torch.no_grad():
                outputs = self.encoder(x)
        except Exception as error:  # whatever a user's model does
            given = f"{tuple(x.shape)} {x.dtype} of field '{self.source}'"
            raise LoaderError(f"the encoder failed on {given}: {type(error).__name__}: {error}") from error
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1] or not outputs.numel():
            got = f"{tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise LoaderError(f"the encoder gave {got} for {len(x)} samples, wanted a tensor ({len(x)}, ...)")
        if outputs.dtype in (torch.float16, torch.bfloat16):
            outputs = outputs.float()
        return outputs.detach().cpu().numpy()

    def _check(self, outputs: Array, found: Array, start: int) -> None:
        if outputs.shape[1:] != found.shape[1:] or outputs.dtype != found.dtype:
            raise LoaderError(
                f"the encoder gave {outputs.shape[1:]} {outputs.dtype} after {found.shape[1:]} {found.dtype}: "
                "a field of embeddings has one shape. Pool over time or space inside the encoder"
            )
        good = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
        if not good.all():
            key = self.store.keys()[start + int(np.flatnonzero(~good)[0])]
            raise LoaderError(f"the encoder gave NaN or infinity for sample '{key}'")


def _new_values(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """A mapped file of this form. All of it is on the disk from now on: who writes to a mapped page that a full
    disk has no room for is killed, without a word."""
    num_bytes = math.prod(shape) * dtype.itemsize
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        else:
            file.truncate(num_bytes)
    return np.memmap(path, dtype, "r+", shape=shape)
