"""CodeWalk: from the module of a transform to every file and installed distribution its result depends on.

Not seen: modules whose names are put together at run time, and data files that the code reads.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

from flatout.store.code.find import Module, ModuleFinder
from flatout.store.code.hash import hash_bytes, hash_tree, parse_source
from flatout.store.code.imports import Import, exported_names, imports_of

ABSENT = "absent"
"""Stands for the version of a library that the code asks for and that is not installed."""

_BUILD_TAG = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")
"""The device that torch was built for: the same samples stay valid on another machine."""


class CodeWalk:
    """Collects `files` (label -> hash) and `distributions` (name -> version) while modules are added."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.distributions: dict[str, str] = {}
        self._finder = ModuleFinder()
        self._trees: dict[str, ast.Module | None] = {}
        self._pending: deque[Import] = deque()
        self._is_fresh = False

    def add_import(self, name: str, may_be_attribute: bool = False) -> None:
        """Follows one import as if a visited module had it."""
        self._pending.append(Import(name, may_be_attribute))
        self._run()

    def add_module(self, name: str, is_root: bool = False) -> bool:
        """Follows a module by its code; an installed one by its version, and by its code if it is a root.

        Returns False where the module has no file, as in a notebook.
        """
        module = self._finder.find(name)
        if module is None or (module.origin is None and module.kind == "project"):
            return False
        if module.kind == "standard" or (module.kind == "installed" and self._record(name) and not is_root):
            return True
        self._visit(module)
        self._pending.extend([Import(module.parent)] if module.parent else [])
        self._run()
        return True

    def name_of(self, name: str) -> str:
        """A module's name in the fingerprint: a script has the name it would be imported by."""
        module = self._finder.find(name)
        return name if module is None else module.name

    def is_own(self, name: str) -> bool:
        """Whether a module is the user's: neither installed, nor Python's, nor flatout's."""
        module = self._finder.find(name)
        if module is None:
            return name in ("__main__", "__mp_main__")
        return module.kind == "project" and name.partition(".")[0] != "flatout"

    def tree_of(self, name: str) -> ast.Module | None:
        """The tree of a module already followed."""
        return self._trees.get(self.name_of(name))

    def _run(self) -> None:
        while self._pending:
            self._follow(self._pending.popleft())

    def _follow(self, wanted: Import) -> None:
        if wanted.name.endswith(".*"):
            self._follow_star(wanted.name[:-2])
            return
        chain = self._finder.chain(wanted.name)
        if not chain and not wanted.may_be_attribute:
            self._note_absent(wanted.name)
        for module in chain:
            if module.kind == "installed" and self._record(module.name):
                return
            if module.kind != "standard":
                self._visit(module)

    def _follow_star(self, package: str) -> None:
        tree = self._trees.get(package)
        if tree is not None:
            names = exported_names(tree)
            self._pending.extend(Import(f"{package}.{name}", may_be_attribute=True) for name in names)

    def _visit(self, module: Module) -> None:
        """Hashes a module once and queues what it imports."""
        if module.name in self._trees or module.origin is None:
            return
        self._trees[module.name] = None
        try:
            data = module.read()
        except OSError:
            return  # loaded earlier and deleted since: nothing left to compare
        tree = parse_source(data) if module.has_source else None
        self._trees[module.name] = tree
        self.files[module.label] = hash_bytes(data) if tree is None else hash_tree(tree)
        if tree is not None:
            self._pending.extend(imports_of(tree, module.package))

    def _note_absent(self, name: str) -> None:
        """Installing it later may change what the code does, as in `try: import isal`."""
        self.distributions.setdefault(name.partition(".")[0], ABSENT)

    def _record(self, module_name: str) -> bool:
        """Writes down the version of the distribution that installed a module; False: none did."""
        owners = self._owners(module_name.partition(".")[0])
        for owner in _narrow(sorted(set(owners)), module_name):
            if owner not in self.distributions:
                self.distributions[owner] = _BUILD_TAG.sub("", distribution(owner).version)
        return bool(owners)

    def _owners(self, name: str) -> list[str]:
        """Distributions that installed a top-level name; a notebook may have installed it a moment ago."""
        if name not in _installed_names() and not self._is_fresh:
            _installed_names.cache_clear()
            self._is_fresh = True
        return list(_installed_names().get(name, []))


@cache
def _installed_names() -> Mapping[str, list[str]]:
    """Top-level name -> distributions; reads the records of all of them: 80 ms for 100."""
    return packages_distributions()


def _narrow(owners: list[str], module_name: str) -> list[str]:
    """Of several distributions in one namespace (google.*), those that hold this module."""
    if len(owners) < 2:
        return owners
    path = module_name.replace(".", "/")
    return [owner for owner in owners if _holds(owner, path)] or owners


def _holds(owner: str, path: str) -> bool:
    try:
        files = distribution(owner).files or []
    except PackageNotFoundError:
        return False
    return any(str(file).startswith((f"{path}/", f"{path}.")) for file in files)
