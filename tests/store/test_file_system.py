"""Which folders lie on this machine's own disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.store.file_system import file_system_of, is_remote

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
server:/share /data nfs4 rw 0 0
/dev/vdb /data/local xfs rw 0 0
bucket /my\\040bucket fuse.s3fs rw 0 0
host /shared virtiofs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "is_far"),
    [
        ("/home", "ext4", False),
        ("/data", "nfs4", True),
        ("/data/sets/one", "nfs4", True),
        ("/database", "ext4", False),
        ("/data/local/store", "xfs", False),
        ("/my bucket/store", "fuse.s3fs", True),
        ("/shared/store", "virtiofs", True),
    ],
)
def test_the_innermost_mount_counts(folder: str, kind: str, is_far: bool) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind
    assert is_remote(kind) == is_far


def test_a_system_that_does_not_say() -> None:
    assert file_system_of(Path("/home"), "") == ""
    assert not is_remote("")
