"""What kind of file system a folder lies on: whether it is this machine's own."""

from __future__ import annotations

import sys
from pathlib import Path

REMOTE = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs"),
    *("9p", "virtiofs"),
}


def is_remote(file_system: str) -> bool:
    """Network file systems, and FUSE, behind which anything may be."""
    return file_system in REMOTE or file_system.startswith("fuse")


def file_system_of(folder: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `folder`; empty where the system does not say."""
    if mounts is None:
        if sys.platform != "linux":
            return ""
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return ""
    wanted, best, found = folder.resolve(), -1, ""
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ", 3)
        place = Path(point.encode().decode("unicode_escape"))
        if (wanted == place or place in wanted.parents) and len(place.parts) >= best:
            best, found = len(place.parts), kind
    return found
