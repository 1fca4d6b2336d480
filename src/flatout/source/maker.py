"""SampleMaker: a manifest row in, its sample (or samples) as named arrays out. Planned once, run per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flatout.errors import ConfigError, SampleError
from flatout.lazy import cached_property
from flatout.source.field_values import plain_field
from flatout.source.files import SourceFile
from flatout.source.kinds import custom_steps, plan_steps
from flatout.source.paths import find_path
from flatout.source.registry import Added, find_decoder, registered
from flatout.types import Array, Context, Decoded, Limits, Outputs, Pieces, Row

if TYPE_CHECKING:
    from flatout.config.fields import AnyField

Sample = Mapping[str, Array]
Samples = Sample | Sequence[Sample]
"""One sample a row, or a list of them where a row is split into pieces."""


class SampleMaker(Protocol):
    """What a worker needs to turn rows into samples; travels to it by pickle."""

    def make(self, row: Row) -> Samples:
        """The row's samples. Raises SampleError if the row is bad."""

    def path_of(self, row: Row) -> str:
        """The row's file, for messages."""


@dataclass
class FieldsMaker:
    """Decodes the files a row names, by the config's `fields`."""

    fields: Mapping[str, AnyField]
    base_path: str
    allow_outside: bool = False
    limits: Limits = field(default_factory=Limits)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to a worker: plain values, nothing planned."""
        state = {name: value for name, value in self.__dict__.items() if name != "_plans"}
        fields = {name: plain_field(section) for name, section in self.fields.items()}
        return {**state, "fields": fields, "_added": self._added}

    def make(self, row: Row) -> Samples:
        context = Context(row=row, resolve=partial(self._resolve, row), limits=self.limits)
        outputs: dict[str, Array | Pieces] = {}
        for plan in self._plans:
            outputs.update(plan(row, context))
        return in_pieces(outputs)

    def path_of(self, row: Row) -> str:
        for name, section in self.fields.items():
            value = row.values.get(section.column or name)
            if section.kind not in ("label", "scalar", "text") and isinstance(value, str | SourceFile):
                return value if isinstance(value, str) else f"{value.path}:{value.name}"
        return row.key

    @cached_property
    def _added(self) -> Added:
        """Looked for once, by the parent: a worker gets them with the maker."""
        return registered()

    @cached_property
    def _plans(self) -> list[Callable[[Row, Context], Outputs]]:
        """One call a field; masks last, as they must match an image decoded before."""
        ordered = sorted(self.fields.items(), key=lambda item: item[1].kind == "mask")
        return [self._plan(name, field) for name, field in ordered]

    def _plan(self, name: str, field: AnyField) -> Callable[[Row, Context], Outputs]:
        column = field.column or name
        if field.kind == "label" or field.kind == "scalar" or field.kind == "text":
            from flatout.source.value import make_value

            convert = make_value(name, field)
            return lambda row, context: {name: convert(row.values.get(column))}
        steps = custom_steps(name, field) if field.kind == "custom" else None
        steps = steps or plan_steps(name, field, self.fields)
        decode = self._decode_lists if _reads_lists(field) else self._decode_file
        kind = _decoded_as(field, self.fields)

        def run(row: Row, context: Context) -> Outputs:
            return steps(decode(row, column, kind, field), context)

        return run

    def _decode_file(self, row: Row, column: str, kind: str, field: AnyField) -> Decoded:
        value = row.values.get(column)
        if value is not None and not isinstance(value, str | SourceFile):
            return self._decode_lists(row, column, kind, field)
        if isinstance(value, SourceFile):
            file, state = value, value.stat()
            if row.found is not None:
                row.found.note(file, str(file.place), state)
        else:
            file = self._resolve(row, value, column)
        decoded = find_decoder(kind, file.suffix, self._added)(file, self.limits)
        if file.is_unchanged and row.found is not None:
            row.found.confirm(value)
        return decoded

    def _decode_lists(self, row: Row, column: str, kind: str, field: AnyField) -> Decoded:
        from flatout.source.lists import ListCell, read_cells

        columns = getattr(field, "columns", None) or [column]
        cells = {name: row.values.get(name) for name in columns}
        found = {name: cell for name, cell in cells.items() if isinstance(cell, ListCell)}
        if not found and isinstance(row.values.get(column), str | SourceFile):
            return self._decode_file(row, column, kind, field)
        for name, cell in cells.items():
            if name not in found:
                raise SampleError("find", f"no path and no list in column '{name}': {cell!r}")
        decoded = read_cells(found)
        if decoded.array.nbytes > self.limits.max_sample_bytes:
            raise SampleError(
                "decode",
                f"the lists have {decoded.array.nbytes:,} bytes; max_sample_bytes is "
                f"{self.limits.max_sample_bytes:,}",
            )
        return decoded

    def _resolve(self, row: Row, value: Any, column: str = "") -> SourceFile:
        if value is None or value == "":
            raise SampleError("find", f"the row has no path in column '{column}'")
        path, state = find_path(str(value), self.base_path, self.allow_outside)
        if row.found is not None:
            row.found.note(value, path, state)
        return SourceFile.found(path, state)


def _reads_lists(field: AnyField) -> bool:
    return field.kind == "sequence" and field.columns is not None


def _decoded_as(field: AnyField, fields: Mapping[str, AnyField]) -> str:
    """The kind whose decoders read this field's files."""
    if field.kind == "mask":
        from flatout.source.mask import decode_kind

        return decode_kind(field, fields)
    return field.name if field.kind == "custom" else field.kind


@dataclass
class TransformMaker:
    """Calls the user's own function: row dict -> dict of arrays, or a list of such dicts."""

    target: Callable[..., Any] | str
    params: Mapping[str, Any]
    base_path: str
    path_columns: Sequence[str] = ()
    allow_outside: bool = False

    def make(self, row: Row) -> Samples:
        values = {"key": row.key, **row.values}
        for column in self.path_columns:
            if isinstance(values.get(column), str):
                values[column] = find_path(values[column], self.base_path, self.allow_outside)[0]
        return as_samples(self._function(values, **self.params))

    def path_of(self, row: Row) -> str:
        paths = [row.values.get(column) for column in self.path_columns]
        return next((str(path) for path in paths if path), row.key)

    @cached_property
    def _function(self) -> Callable[..., Any]:
        if callable(self.target):
            return self.target
        from flatout.source.registry import load_object

        function = load_object(self.target)
        if not callable(function):
            raise ConfigError(f"transform '{self.target}' is a {type(function).__name__}, not a function")
        return function  # type: ignore[no-any-return]


@dataclass
class DatasetMaker:
    """Reads a map-style dataset: `row.values["index"]` -> `dataset[index]`."""

    dataset: Any

    def make(self, row: Row) -> Samples:
        return as_samples(self.dataset[int(row.values["index"])])

    def path_of(self, row: Row) -> str:
        return f"{type(self.dataset).__name__}[{row.values['index']}]"


def in_pieces(outputs: Mapping[str, Array | Pieces]) -> Samples:
    """Repeat whole fields beside the pieces of split ones; all split fields must agree in number."""
    counts = {name: len(value.arrays) for name, value in outputs.items() if isinstance(value, Pieces)}
    if not counts:
        return {name: value for name, value in outputs.items() if not isinstance(value, Pieces)}
    if len(set(counts.values())) > 1:
        raise SampleError("transform", f"fields were split into different numbers of pieces: {counts}")
    return [
        {name: value.arrays[at] if isinstance(value, Pieces) else value for name, value in outputs.items()}
        for at in range(next(iter(counts.values())))
    ]


def as_samples(result: Any) -> Samples:
    """What a transform or dataset returned, as named arrays.

    A dict keeps its names; a pair becomes `input` and `target`; a longer tuple `field0`, `field1`, ...; a
    single array `input`. A list of dicts is several samples.
    """
    from flatout.source.convert import to_array

    if isinstance(result, list) and result and all(isinstance(item, Mapping) for item in result):
        return [_named(item, to_array) for item in result]
    if isinstance(result, Mapping):
        return _named(result, to_array)
    if isinstance(result, tuple | list):
        names: Iterable[str] = (
            ("input", "target") if len(result) == 2 else map("field{}".format, range(len(result)))
        )
        return _named(dict(zip(names, result, strict=True)), to_array)
    return _named({"input": result}, to_array)


def _named(item: Mapping[Any, Any], to_array: Callable[[str, Any], Array]) -> Sample:
    if not item:
        raise SampleError("transform", "it returned no fields")
    return {str(name): to_array(str(name), value) for name, value in item.items()}
