"""Companion files: view, quarantine and stats have fixed names, so they are replaced around the root's swap.

A run that is cut off in between, or stops because too many rows failed, leaves some of them newer than the
root. `pending.json` says beforehand which contents are meant to be there: verify accepts these, too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from flatout.source import hash_file
from flatout.store.files import write_durable, write_durable_text
from flatout.store.metadata import is_store

PENDING = "pending.json"


def replace_companion(folder: Path, name: str, content: bytes) -> None:
    """Swap one companion file; when there is a root already, say so first."""
    if is_store(folder):
        _announce(folder, name, blake3(content).hexdigest())
    write_durable(folder / name, [content])


def pending_hashes(folder: Path) -> dict[str, list[str]]:
    """Companion -> hashes that it may have instead of the one in the root."""
    with suppress(OSError, ValueError, AttributeError):
        found = json.loads((folder / PENDING).read_text())
        return {str(name): [str(digest) for digest in digests] for name, digests in found.items()}
    return {}


def has_pending(folder: Path) -> bool:
    """Whether companions may be newer than the root."""
    return (folder / PENDING).exists()


def settle(folder: Path) -> None:
    """The root names the companions as they are now."""
    (folder / PENDING).unlink(missing_ok=True)


def _announce(folder: Path, name: str, digest: str) -> None:
    pending = pending_hashes(folder)
    # What an earlier run announced still counts if it is what stands there: this swap may be cut off, too.
    current = hash_file(folder / name) if (folder / name).exists() else ""
    pending[name] = [known for known in pending.get(name, []) if known == current] + [digest]
    write_durable_text(folder / PENDING, json.dumps(pending) + "\n")
