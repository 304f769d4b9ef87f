"""Databases on network file systems are refused by the mount table alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from state import NetworkFileSystem, open_store
from state.filesystem import Mount, mount_of, read_mounts, refuse_network

TABLE = """\
/dev/vda / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
filer:/home /home nfs4 rw 0 0
/dev/vdb /home/me/fast\\040disk xfs rw 0 0
//nas/x /mnt/nas cifs rw 0 0
s3 /mnt/s3 fuse.rclone rw 0 0
overlay /mnt/box fuse.fuse-overlayfs rw 0 0
C: /mnt/c 9p rw 0 0
half a line
"""


@pytest.fixture
def mounts(tmp_path: Path) -> tuple[Mount, ...]:
    table = tmp_path / "mounts"
    table.write_text(TABLE)
    return read_mounts(table)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/x/state.db", None),
        ("/home/me/state.db", "nfs4"),
        ("/home/me/fast disk/state.db", None),
        ("/homework/state.db", None),
        ("/mnt/nas/state.db", "cifs"),
        ("/mnt/s3/a/b/state.db", "fuse.rclone"),
        ("/mnt/box/state.db", None),
        ("/mnt/c/state.db", "9p"),
        ("/dev/shm/state.db", None),
    ],
)
def test_the_longest_mount_decides(mounts: tuple[Mount, ...], path: str, kind: str | None) -> None:
    if kind is None:
        refuse_network(Path(path), mounts)
    else:
        with pytest.raises(NetworkFileSystem) as caught:
            refuse_network(Path(path), mounts)
        assert caught.value.kind == kind
        assert "local disk" in caught.value.hint


def test_of_mounts_on_one_point_the_last_is_seen() -> None:
    both = (Mount(point="/a", kind="ext4"), Mount(point="/a", kind="nfs"))
    found = mount_of(Path("/a/b"), both)
    assert found is not None
    assert found.kind == "nfs"


def test_no_mount_table_refuses_nothing(tmp_path: Path) -> None:
    assert read_mounts(tmp_path / "none") == ()
    refuse_network(tmp_path, ())


def test_a_refused_store_leaves_no_trace(tmp_path: Path) -> None:
    mounts = [Mount(point=str(tmp_path), kind="nfs")]
    with pytest.raises(NetworkFileSystem):
        open_store(tmp_path / "deep" / "state.db", actor="x", mounts=mounts)
    assert list(tmp_path.iterdir()) == []
