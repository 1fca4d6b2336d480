"""Where a module's code is, found by name as `import` would find it, without running anything."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePath
from typing import Any, Literal

Kind = Literal["standard", "installed", "project"]
"""Of no influence; counted by its version; counted by its source."""

_SITE_FOLDERS = {"site-packages", "dist-packages"}
_MAIN_NAMES = {"__main__", "__mp_main__"}
_OUR_TRANSFORMS = ("flatout.source", "flatout.tasks")
"""The parts of flatout that make samples. The rest is the tool that calls the transform: a script that
imports it to run prepare must not lose its samples with every new release."""


@dataclass(frozen=True, slots=True)
class Module:
    """Where a module's code is."""

    name: str
    """Dotted name; a script has the name it would be imported by."""
    origin: str | None
    """File (also inside a zip); None: a namespace package, or built into Python."""
    locations: tuple[str, ...] | None
    """Folders of its submodules; None: not a package."""
    loader: Any
    kind: Kind

    @property
    def parent(self) -> str:
        """The package that holds it; empty: none."""
        return self.name.rpartition(".")[0]

    @property
    def package(self) -> str:
        """What its relative imports start from."""
        return self.name if self.locations is not None else self.parent

    @property
    def label(self) -> str:
        """File name from the root of its package, the same wherever the project lies: pkg/sub/module.py."""
        file_name = PurePath(self.origin or "").name
        return "/".join([*self.package.split("."), file_name]) if self.package else file_name

    def read(self) -> bytes:
        """Source bytes, or the compiled file's; a .pyc without its header, which holds a time."""
        assert self.origin is not None
        read = getattr(self.loader, "get_data", None)
        data: bytes = read(self.origin) if read else Path(self.origin).read_bytes()
        return data[16:] if self.origin.endswith(".pyc") else data

    @property
    def has_source(self) -> bool:
        return self.origin is not None and self.origin.endswith((".py", ".pyw"))


class ModuleFinder:
    """Finds modules by name the way `import` would, with each answer kept."""

    def __init__(self) -> None:
        importlib.invalidate_caches()
        self._specs: dict[str, ModuleSpec | None] = {}
        paths = sysconfig.get_paths()
        self._site = tuple(Path(paths[key]) for key in ("purelib", "platlib"))
        self._standard = tuple(Path(paths[key]) for key in ("stdlib", "platstdlib"))

    def find(self, name: str) -> Module | None:
        """The module of this dotted name, or None if there is no such module."""
        if name in _MAIN_NAMES:
            return self._main()
        spec = self._spec(name)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        origin = spec.origin if spec.has_location else None
        if origin is None and locations is None and spec.origin not in ("built-in", "frozen"):
            return None
        found = None if locations is None else tuple(locations)
        return Module(name, origin, found, spec.loader, self._kind(name, spec))

    def chain(self, name: str) -> list[Module]:
        """`a.b.c` in, the modules a, a.b, a.b.c out, as far as they exist: an import runs them all."""
        parts = name.split(".")
        found: list[Module] = []
        for end in range(1, len(parts) + 1):
            module = self.find(".".join(parts[:end]))
            if module is None:
                break
            found.append(module)
        return found

    def _spec(self, name: str) -> ModuleSpec | None:
        if name not in self._specs:
            self._specs[name] = self._search(name)
        return self._specs[name]

    def _search(self, name: str) -> ModuleSpec | None:
        loaded = getattr(sys.modules.get(name), "__spec__", None)
        if isinstance(loaded, ModuleSpec):
            return loaded
        parent_name, _, last = name.rpartition(".")
        if not last.isidentifier():
            return None
        path: Sequence[str] | None = None
        if parent_name:
            parent = self._spec(parent_name)
            if parent is None or parent.submodule_search_locations is None:
                return None
            path = list(parent.submodule_search_locations)
        # importlib.util.find_spec would import the parent packages; setuptools' finder would import itself
        # when asked for a standard name.
        finders = [PathFinder] if name in sys.stdlib_module_names else sys.meta_path
        return next((s for finder in finders if (s := _ask(finder, name, path)) is not None), None)

    def _kind(self, name: str, spec: ModuleSpec) -> Kind:
        if name.startswith("flatout.") or name == "flatout":
            return "project" if name.startswith(_OUR_TRANSFORMS) else "standard"
        if spec.origin in ("built-in", "frozen"):
            return "standard"
        place = Path(spec.origin) if spec.has_location and spec.origin else None
        if place is None:
            return "project"  # a namespace package: its submodules decide
        if _SITE_FOLDERS & set(place.parts) or any(place.is_relative_to(s) for s in self._site):
            return "installed"
        if name.partition(".")[0] in sys.stdlib_module_names:
            # A project's own types.py is not the standard one.
            return "standard" if any(place.is_relative_to(s) for s in self._standard) else "project"
        return "project"

    def _main(self) -> Module | None:
        """The script that runs, under the name that an import would give it."""
        main = sys.modules.get("__main__")
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if path is None or not Path(path).is_file():
            return None
        name = spec.name if spec is not None else Path(path).stem.replace(".", "_")
        return Module(name, path, None, None, "project")


def _ask(finder: Any, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    try:
        found: ModuleSpec | None = finder.find_spec(name, path)
    except KeyError:
        return _namespace(name, path or ())
    except (ImportError, AttributeError, ValueError, OSError):
        return None  # another package's finder; the next one may know
    return found


def _namespace(name: str, path: Sequence[str]) -> ModuleSpec:
    """A namespace package in a package that is not loaded: Python's finder would want the parent loaded."""
    folders = [Path(folder, name.rpartition(".")[2]) for folder in path]
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
    return spec
