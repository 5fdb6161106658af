"""An owner is taken over while it takes a snapshot, and continued in the middle of its last rename."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from support.bare_space import bare_space
from xaqueue.core.storage.directory_fs import DirectoryFileSystem
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.owner_file import OwnerFile
from xaqueue.errors import OperationalError
from xaqueue.features.pair.pair import Pair
from xaqueue.features.snapshots import store, take
from xaqueue.features.snapshots.manifest import SNAPSHOTS


def test_what_a_former_owner_was_making_gets_no_number(tmp_path: Path) -> None:
    """And what the next one makes meanwhile has a name of its own."""
    with bare_space(tmp_path / "space", "JOURNAL") as bare:
        bare.put("orders", b"whole")
        lock = mock.create_autospec(OwnerFile, instance=True)
        lock.lost.return_value = ""
        real, next_epoch = bare.space.fs.rename, bare.space.epoch + 1

        def rename(source: str, target: str) -> None:
            if target == f"{SNAPSHOTS}/1":
                assert source == f"{SNAPSHOTS}/.1.{bare.space.epoch}"
                Pair(bare.root, lock, Hardening.parse("JOURNAL"), beats=True).port(DirectoryFileSystem(bare.root))
                (bare.root / f"{SNAPSHOTS}/.1.{next_epoch}").mkdir()
            real(source, target)

        with (
            mock.patch.object(bare.space.fs, "rename", rename),
            mock.patch.object(store, "remove_tree"),  # of which nothing gets through: it is the owner no more
            pytest.raises(OperationalError, match="no snapshot"),
        ):
            take.take(bare.space)
        assert store.statuses(bare.space.fs) == []
        assert (bare.root / f"{SNAPSHOTS}/.1.{next_epoch}").is_dir()
        assert take.take(bare.space).number == 1
        assert sorted(path.name for path in (bare.root / SNAPSHOTS).iterdir() if path.name.startswith(".")) == []
