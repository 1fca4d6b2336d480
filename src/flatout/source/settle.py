"""The fields of a sample: those that the settings give, merged over those that the columns suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.config.complete import complete_field
from flatout.config.fields import AnyField, AutoField, MaskField, NoField
from flatout.config.source import SourceSettings
from flatout.errors import ConfigError
from flatout.source.digits import digit_notes
from flatout.source.groups import choose_group, group_columns, keep_files_together
from flatout.source.guess import Guess, guess_fields
from flatout.source.manifest import Manifest
from flatout.source.wanted import check_columns

VALUE_KINDS = ("label", "scalar", "text")
"""Kinds whose column holds the value itself."""

Fields = Mapping[str, AnyField]


def settle_fields(settings: SourceSettings, manifest: Manifest) -> tuple[Manifest, Guess]:
    """What a sample consists of, every field with its kind; and the manifest that fits it.

    A given field takes the place of the guess of its name and of those for its columns. Without a kind it has
    the guessed one; whatever it leaves at its default is as guessed.

    Raises:
        ConfigError: a field has no kind and none is guessed, settings that its kind does not take, or a column
            that is not there.
    """
    manifest, guess = _settled(settings, manifest)
    keep_files_together(guess, manifest, settings.splits)
    for name, note in digit_notes(guess.fields, manifest.table).items():
        guess.told["digits", name] = note
    return manifest, guess


def _settled(settings: SourceSettings, manifest: Manifest) -> tuple[Manifest, Guess]:
    if settings.transform is not None:
        return manifest, _grouped(stored_fields(settings.fields), settings, manifest)
    if not settings.guesses_fields:
        return manifest, _grouped(_as_given(settings.fields), settings, manifest)
    guess = guess_fields(manifest, settings.splits)
    if not settings.fields:
        return manifest, guess
    named = {name: s for name, s in settings.fields.items() if s.column or getattr(s, "columns", None)}
    check_columns(manifest.columns, named)
    merged = _Merge(guess, settings.fields)
    check_columns(manifest.columns, merged.fields)
    merged.tell()
    return _without_values(manifest, merged.fields), replace(guess, fields=merged.fields)


def _grouped(fields: dict[str, AnyField], settings: SourceSettings, manifest: Manifest) -> Guess:
    """These fields, none of them guessed. Patients stay together as without settings, unless they are a field:
    who is to tell speakers apart has each of them in every split."""
    guess = Guess(fields, manifest.split_column)
    used = {column for name, section in fields.items() for column in columns_of(name, section)}
    names = [name for name in group_columns(manifest) if name not in used or name == settings.splits.group]
    choose_group(guess, manifest, names, settings.splits)
    return guess


def stored_fields(given: Fields) -> dict[str, AnyField]:
    """How the fields that a transform or a dataset returns are stored; `kind: transform` where none is given.

    Raises:
        ConfigError: a field is to be left out, which only the transform can do.
    """
    for name, section in given.items():
        if isinstance(section, NoField):
            raise ConfigError(
                f"field '{name}' is null, which leaves out what is guessed; a transform or dataset leaves a "
                "field out by not returning it"
            )
    why = "as a transform or dataset returns it"
    return {
        name: complete_field(name, _said(section), "transform", why) if section.kind == "auto" else section
        for name, section in given.items()
    }


def _as_given(given: Fields) -> dict[str, AnyField]:
    """Only these, none of them guessed."""
    for name, section in given.items():
        if isinstance(section, AutoField):
            raise ConfigError(f"field '{name}' has no kind, and guess_fields is false; set fields.{name}.kind")
    fields: dict[str, AnyField] = {n: s for n, s in given.items() if not isinstance(s, NoField)}
    if not fields:
        raise ConfigError("guess_fields is false and fields gives none: a sample would be empty")
    return fields


class _Merge:
    """Given fields over guessed ones: `fields` in the guess's order, further ones behind."""

    def __init__(self, guess: Guess, given: Fields) -> None:
        self._guess, self._given = guess, given
        self._origins = {name: self._origin(name, section) for name, section in given.items()}
        self._replaced: dict[str, str] = {}
        for name, section in given.items():
            taken = {name, *self._sharing(name, section)} | {self._origins[name] or name}
            self._replaced |= {other: name for other in sorted(taken) if other in guess.fields}
        self.fields = self._merged()

    def _origin(self, name: str, section: AnyField) -> str | None:
        """The guess that a given field starts from: that of its column, else of its name."""
        if section.column is None and name in self._guess.fields:
            return name
        column = section.column or name
        return next((o for o, other in self._guess.fields.items() if column in columns_of(o, other)), None)

    def _sharing(self, name: str, section: AnyField) -> list[str]:
        """Guesses that read a column which the given field names itself."""
        said = {section.column, *(getattr(section, "columns", None) or ())} - {None}
        return [o for o, other in self._guess.fields.items() if said & set(columns_of(o, other))]

    def _merged(self) -> dict[str, AnyField]:
        order = dict.fromkeys(self._replaced.get(name, name) for name in self._guess.fields)
        found = {name: self._field(name) for name in (order | dict.fromkeys(self._given))}
        fields = {name: section for name, section in found.items() if not isinstance(section, NoField)}
        return {name: self._owned(section, fields) for name, section in fields.items()}

    def _field(self, name: str) -> AnyField:
        section = self._given.get(name)
        if section is None:
            return self._guess.fields[name]
        origin = self._origins[name]
        if isinstance(section, NoField) or origin is None:
            return self._alone(name, section)
        base = self._guess.fields[origin]
        columns = columns_of(origin, base)
        kind = base.kind if isinstance(section, AutoField) else section.kind
        settings = _said(base) if kind == base.kind else {}
        if "columns" not in settings and len(columns) == 1:
            settings["column"] = None if columns[0] == name else columns[0]
        why = "guessed" if isinstance(section, AutoField) else "as set"
        return complete_field(name, settings | _said(section), kind, f"{why}, from {_listed(columns)}")

    def _alone(self, name: str, section: AnyField) -> AnyField:
        """A given field that no guess stands behind."""
        if not isinstance(section, AutoField):
            return section
        told = self._guess.told.get(("column", section.column or name))
        raise ConfigError(
            f"field '{name}' has no kind, and none is guessed for it{f' ({told})' if told else ''}; set "
            f"fields.{name}.kind, or name one of the guessed fields: {', '.join(self._guess.fields) or 'none'}"
        )

    def _owned(self, section: AnyField, fields: Fields) -> AnyField:
        """A mask whose guessed image has another name now, or none."""
        if not isinstance(section, MaskField) or section.of in fields or section.of not in self._replaced:
            return section
        owner = self._replaced[section.of]
        return section.model_copy(update={"of": owner if owner in fields else None})

    def tell(self) -> None:
        """Correct what the guess says: of fields that are as set, of columns that are used or no longer."""
        guess = self._guess
        for name in self._replaced:
            guess.told.pop(("field", name), None)
        used = {column for name, section in self.fields.items() for column in columns_of(name, section)}
        for column in used:
            guess.told.pop(("column", column), None)
        for name, section in self._given.items():
            guess.told["field", name] = f"field '{name}': {self._told(name, section)}"
        for other, name in self._replaced.items():
            if name in self.fields:
                for column in columns_of(other, guess.fields[other]):
                    if column not in used:
                        guess.pass_over(column, f"'{name}' is another field", f"fields.NAME.column: {column}")

    def _told(self, name: str, section: AnyField) -> str:
        if name in self.fields:
            kind = self.fields[name].kind
            return f"{kind} from {_listed(columns_of(name, self.fields[name]))}, as set"
        left_out = [other for other, owner in self._replaced.items() if owner == name]
        return "left out, as set" if left_out else "null, but nothing of that name is guessed"


def columns_of(name: str, section: AnyField) -> list[str]:
    """The manifest columns that hold a field's values or files."""
    columns = getattr(section, "columns", None)
    return list(columns) if columns and section.column is None else [section.column or name]


def _said(section: AnyField) -> dict[str, Any]:
    """A field's settings, other than its kind, that are not the defaults."""
    return section.model_dump(exclude_defaults=True, exclude={"kind"})


def _without_values(manifest: Manifest, fields: Fields) -> Manifest:
    """The manifest without the path columns that are read as text or classes: no files stand behind these."""
    columns = [(c, section.kind) for name, section in fields.items() for c in columns_of(name, section)]
    files = {column for column, kind in columns if kind not in VALUE_KINDS}
    values = {column for column, kind in columns if kind in VALUE_KINDS} - files
    kept = tuple(column for column in manifest.path_columns if column not in values)
    return replace(manifest, path_columns=kept)


def _listed(columns: Sequence[str]) -> str:
    return f"column{'s' if len(columns) > 1 else ''} {', '.join(repr(column) for column in columns)}"
