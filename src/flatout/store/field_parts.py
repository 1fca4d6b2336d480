"""What samples that decoders make depend on beside their files: parameters, and the versions of all code."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flatout.config.fields import AnyField, ImageField, MaskField, VolumeField
from flatout.errors import FlatoutError
from flatout.source import LIBRARIES, VERSIONS, added_code, load_object
from flatout.store.fingerprint import fingerprint_callable

STORED = "stored fields"
"""Parameter of the settings of a transform's fields: no keyword argument can be called so."""


def field_parts(fields: Mapping[str, AnyField]) -> dict[str, Any]:
    """Parameters of each field, our own version of each kind, their libraries, and code of other packages."""
    kinds = sorted({section.kind for section in fields.values()})
    libraries = sorted({library for kind in kinds for library in LIBRARIES.get(kind, ())})
    parts: dict[str, Any] = {
        "fields": {name: _parameters(section, fields) for name, section in fields.items()},
        "kinds": {kind: VERSIONS.get(kind, 1) for kind in kinds},
        "libraries": {library: _version(library) for library in libraries},
    }
    if added := added_code(fields):  # only then: stores that use none keep the fingerprint they have
        parts["added"] = {name: _code_parts(target) for name, target in added.items()}
    return parts


def code_params(params: Mapping[str, Any], fields: Mapping[str, AnyField]) -> dict[str, Any]:
    """Parameters of a transform or a dataset, with how its fields are stored where that is said."""
    said = {name: _settings(section) for name, section in fields.items()}
    stored = {name: settings for name, settings in said.items() if settings}
    return {**params, STORED: stored} if stored else dict(params)


def _settings(section: AnyField) -> dict[str, Any]:
    """A field's settings where they differ from the defaults; its kind, unless that is as it is returned."""
    kind = {} if section.kind in ("auto", "transform") else {"kind": section.kind}
    return {**kind, **section.model_dump(mode="json", exclude_defaults=True)}


def _parameters(section: AnyField, fields: Mapping[str, AnyField]) -> dict[str, Any]:
    """A field's kind, and what differs from the defaults: a new setting makes no store out of date."""
    parameters = {"kind": section.kind, **section.model_dump(mode="json", exclude_defaults=True)}
    num_owners = sum(isinstance(other, VolumeField | ImageField) for other in fields.values())
    if isinstance(section, MaskField) and section.of is None and num_owners > 1:
        from flatout.source.mask import owner_name

        parameters["of"] = owner_name(section, fields)  # the first of several: their order counts
    return parameters


def _code_parts(target: str) -> dict[str, Any]:
    """What tells one release of another package's code from the next."""
    try:
        found = fingerprint_callable(load_object(target), {})
    except FlatoutError:  # whoever needs it will be told why it cannot be loaded
        return {"target": target}
    return {"target": target, "code": found.digest[:16], "libraries": found.distributions}


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
