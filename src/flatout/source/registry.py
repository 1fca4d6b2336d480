"""Which function decodes which file: built-in decoders by (kind, suffix), others by entry point.

A decoder is `decode(file: SourceFile, limits: Limits) -> Decoded`. Another package adds one with

    [project.entry-points."flatout.decoders"]
    "volume.mha" = "their_package.mha:decode"

and a whole new kind of field (`kind: custom`) under the group `flatout.kinds`.
Nothing is imported before the first file that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from traceback import extract_tb
from typing import Any

from flatout.errors import ConfigError, MissingDependencyError, SampleError
from flatout.source.files import SourceFile
from flatout.source.uncached import keeping_no_bytecode
from flatout.types import Decoded, Limits

Decoder = Callable[[SourceFile, Limits], Decoded]
Added = Mapping[tuple[str, str], str]
"""(kind, suffix) -> target of decoders that installed packages add."""

FOLDER = "/"
"""In place of a suffix: the path is a folder."""

_NIFTI = "flatout.source.nifti:decode"
_PICTURE = "flatout.source.picture:decode"
_DICOM = "flatout.source.dicom:decode_slice"
_SOUND = "flatout.source.sound:decode"
_NPY = "flatout.source.numeric:decode_npy"
_NPZ = "flatout.source.numeric:decode_npz"
_CSV = "flatout.source.numeric:decode_csv"

BUILT_IN: dict[tuple[str, str], str] = {
    ("volume", ".nii"): _NIFTI,
    **{("volume", s): _NIFTI for s in (".nii.gz", ".hdr", ".img", ".hdr.gz", ".img.gz")},
    ("volume", FOLDER): "flatout.source.dicom:decode_series",
    ("volume", ".npy"): _NPY,
    **{("image", s): _PICTURE for s in (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")},
    ("image", ".dcm"): _DICOM,
    ("image", ".npy"): _NPY,
    **{("signal", s): _SOUND for s in (".wav", ".flac", ".ogg")},
    ("signal", ".npy"): _NPY,
    **{("signal", s): _CSV for s in (".csv", ".tsv", ".txt")},
    ("sequence", ".npy"): _NPY,
    **{("sequence", s): _CSV for s in (".csv", ".tsv", ".txt")},
    ("array", ".npy"): _NPY,
    ("array", ".npz"): _NPZ,
}

EXTRA_OF = {
    "pydicom": "medical",
    "pylibjpeg": "medical",
    "soundfile": "audio",
    "soxr": "audio",
}
"""The extra that installs an optional library."""


def suffixes_of(kind: str) -> set[str]:
    """Every suffix that has a decoder for this kind; a mask is read as a volume or an image."""
    kinds = ("volume", "image") if kind == "mask" else (kind,)
    return {s for k, s in [*BUILT_IN, *registered()] if k in kinds}


def find_decoder(kind: str, suffix: str, added: Added | None = None) -> Decoder:
    """The decoder of `suffix` for `kind`; another package's decoder wins over the built-in one.

    Args:
        added: decoders of installed packages, where somebody has looked for them already.

    Raises:
        SampleError: nothing decodes this suffix.
        MissingDependencyError: something would, but its library is not installed.
    """
    target = (registered() if added is None else added).get((kind, suffix)) or BUILT_IN.get((kind, suffix))
    if target is None:
        known = ", ".join(sorted(suffixes_of(kind)))
        if suffix == FOLDER:
            raise SampleError("find", f"the path is a folder; kind '{kind}' wants a file (known: {known})")
        raise SampleError("find", f"no decoder of '{suffix}' files for kind '{kind}' (known: {known})")
    return load_object(target)  # type: ignore[no-any-return]


@cache
def load_object(target: str) -> Any:
    """The object that "package.module:name" names.

    Raises:
        ConfigError: the form is wrong, the module fails while it is imported, or has no such name.
        MissingDependencyError: an optional library of ours is missing.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigError(f"'{target}' does not name an object; write it as 'package.module:name'")
    try:
        with keeping_no_bytecode():
            found: Any = require(module_name)
    except MissingDependencyError:
        raise
    except Exception as error:  # whatever a user's module does while it is imported
        from flatout.config.own_task import likely_module

        told = f"{_where(error)}{_told(error)}{likely_module(error)}"
        raise ConfigError(f"'{target}' cannot be imported: {told}") from error
    try:
        return attrgetter(name)(found)
    except AttributeError:
        # Only now: workers load their decoders here, and do without the config's types.
        from flatout.config.own_task import find_in

        return find_in(found, target)


def _where(error: Exception) -> str:
    """File and line of the user's code where an import failed; nothing if the module was not found."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    frames = [
        f for f in extract_tb(error.__traceback__) if f.filename != __file__ and "importlib" not in f.filename
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def _told(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {text}"


def require(module_name: str) -> Any:
    """The module of this name, for code that needs an optional library only for some files.

    Raises:
        MissingDependencyError: an optional library of ours is missing; names the extra that installs it.
        ImportError: anything else is missing.
    """
    try:
        return import_module(module_name)
    except (ImportError, OSError) as error:  # OSError: the package is there, its shared library is not
        missing = getattr(error, "name", None) or module_name
        extra = EXTRA_OF.get(missing.partition(".")[0])
        if extra is None:
            raise
        raise MissingDependencyError(
            f"{missing} is not installed; it comes with: pip install 'flatout[{extra}]'"
        ) from error


def entry_points(group: str) -> Iterable[Any]:
    """What installed packages register under `group`. To import the library takes 25 ms: only if need be."""
    from importlib import metadata

    return metadata.entry_points(group=group)


@cache
def registered() -> Added:
    """Every decoder that installed packages add."""
    found = {}
    for entry in entry_points(group="flatout.decoders"):
        kind, _, suffix = entry.name.partition(".")
        found[(kind, f".{suffix}")] = entry.value
    return found
