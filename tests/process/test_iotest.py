"""The I/O test tells a safe directory from an unsafe one, doubts syncs that are too fast, and leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

from xaqueue.cli.exit_codes import ExitCode
from xaqueue.cli.main import app
from xaqueue.core.storage.hardening import Hardening
from xaqueue.core.storage.owner_file import FileLock
from xaqueue.errors import InvalidArgument
from xaqueue.tools import iotest, peer, verdict
from xaqueue.tools.environment import Device, DeviceKind, Environment, device_of
from xaqueue.tools.peer import Peer
from xaqueue.tools.verdict import Facts, Level, Timing, doubt, judge

PLACE = Environment("/d", "/", "ext4", "/dev/sda", True, 2, "3.11", "6.1")
ORDER, LASTING, LOCKING, OWNERSHIP = (
    "write order",
    "synchronous write persistence",
    "distributed file locking",
    "unique write ownership",
)
FLASH = Device("sda", DeviceKind.FLASH, volatile_cache=True)


def timing(p50_us: float) -> Timing:
    return Timing(1e6 / p50_us, p50_us, p50_us, p50_us, p50_us, p50_us)


def facts(**changes: Any) -> Facts:
    """Of a sound directory, but for the changes."""
    timings = {name: timing(200.0) for name in iotest.PROBES}
    return replace(Facts(PLACE, FLASH, 10**10, 10**6, timings=timings), **changes)


def findings(found: Facts, level: Level) -> dict[str, str]:
    return {finding.about: finding.text for finding in judge(found).findings if finding.level is level}


# The judgement


def test_a_sound_directory_is_safe_and_gets_the_journal() -> None:
    judged = judge(facts())
    assert judged.safe
    assert {finding.level for finding in judged.findings} == {Level.OK}
    assert judged.flags == "JOURNAL"
    assert "2,500" in judged.why
    assert "1,667" in judged.why


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"locks": "another process was told 'acquired'"}, [LOCKING]),
        ({"replaces_atomically": False}, ["rename"]),
        ({"failures": {verdict.SYNC_DIRECTORY: "[Errno 22] Invalid argument"}}, [ORDER, LASTING]),
    ],
)
def test_what_makes_a_directory_unsafe(changes: dict[str, Any], about: list[str]) -> None:
    judged = judge(facts(**changes))
    assert not judged.safe
    assert list(findings(facts(**changes), Level.UNSAFE)) == about
    assert judged.flags == ""
    assert "use another" in judged.why


def test_memory_is_said_to_be_no_storage() -> None:
    place = replace(PLACE, file_system="tmpfs", journal=None)
    found = facts(environment=place, device=Device("tmpfs", DeviceKind.MEMORY))
    assert judge(found).safe
    assert judge(found).flags == "NONE"
    assert "no storage" in findings(found, Level.WARNING)[LASTING]


def test_ext4_without_a_journal_is_warned_of() -> None:
    warnings = findings(facts(environment=replace(PLACE, journal=False)), Level.WARNING)
    assert "NO JOURNAL" in warnings["file system"]
    assert "rename" in warnings["crash"]


def test_a_network_file_system_is_warned_of() -> None:
    found = facts(environment=replace(PLACE, file_system="nfs4", journal=None))
    assert "between machines nobody has tried it" in findings(found, Level.WARNING)[LOCKING]


@pytest.mark.parametrize(("changes", "said"), [({"free_bytes": 10**8}, "100 MB"), ({"free_inodes": 99}, "99 inodes")])
def test_little_room_is_warned_of(changes: dict[str, Any], said: str) -> None:
    assert said in findings(facts(**changes), Level.WARNING)["room"]


def test_a_file_system_that_makes_inodes_as_needed_has_enough() -> None:
    assert "inodes" not in findings(facts(free_inodes=None), Level.OK)["room"]


@pytest.mark.parametrize(
    ("per_s", "device", "doubted"),
    [
        (5_000, FLASH, ""),
        (25_000, FLASH, "protection against power loss"),
        (25_000, Device("nvme0n1", DeviceKind.FLASH, volatile_cache=False), ""),
        (25_000, Device("nvme0n1", DeviceKind.FLASH), "libeatmydata"),
        (25_000, Device("vda", DeviceKind.VIRTUAL, volatile_cache=True), "virtual machine"),
        (8_000, Device("vda", DeviceKind.VIRTUAL, volatile_cache=True), ""),
        (120, Device("sda", DeviceKind.ROTATING, volatile_cache=True), ""),
        (5_000, Device("sda", DeviceKind.ROTATING, volatile_cache=True), "rotates"),
        (5_000, Device("sda", DeviceKind.ROTATING, volatile_cache=False), "rotates"),
        (8_000, Device("nfs", DeviceKind.UNKNOWN), ""),
    ],
)
def test_syncs_faster_than_such_a_device_can_are_doubted(per_s: float, device: Device, doubted: str) -> None:
    said = doubt(per_s, device)
    assert doubted in said
    assert bool(said) == bool(doubted)
    timings = {**facts().timings, verdict.OVERWRITE: timing(1e6 / per_s)}
    found = facts(device=device, timings=timings)
    assert judge(found).safe
    assert (LASTING in findings(found, Level.WARNING)) == bool(doubted)


def test_a_virtual_device_is_said_to_be_one() -> None:
    assert "loop0 is virtual" in findings(facts(device=Device("loop0", DeviceKind.VIRTUAL, True)), Level.OK)[LASTING]


def test_files_are_recommended_where_overwrites_are_slow() -> None:
    slow = facts(timings={**facts().timings, verdict.OVERWRITE: timing(2000.0)})
    assert judge(slow).flags == "FDATASYNC;DSYNC"
    assert "250 with JOURNAL" in judge(slow).why


def test_what_was_not_measured_is_not_made_up() -> None:
    nothing = facts(timings={})
    assert judge(nothing).flags == "JOURNAL"
    assert findings(nothing, Level.NOTE) == dict.fromkeys([LASTING], "syncs were not measured") | {ORDER: ANY}


def test_every_recommendation_is_a_level_of_the_engine() -> None:
    for flags in (verdict.JOURNAL, verdict.FILES, "NONE"):
        assert str(Hardening.parse(flags)) == flags


# The device


def device_in(root: Path, name: str, rotational: str = "0", cache: str = "write back", partition: str = "") -> Device:
    block = root / "sys/devices" / name
    (block / "queue").mkdir(parents=True)
    (block / "queue/rotational").write_text(rotational + "\n")
    (block / "queue/write_cache").write_text(cache + "\n")
    where = block / partition if partition else block
    where.mkdir(exist_ok=True)
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/8:1").symlink_to(where)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/x rw\n")
    return device_of(PLACE, root)


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("sda", {"rotational": "1"}, Device("sda", DeviceKind.ROTATING, True)),
        ("sda", {"partition": "sda1"}, Device("sda", DeviceKind.FLASH, True)),
        ("nvme0n1", {"cache": "write through"}, Device("nvme0n1", DeviceKind.FLASH, False)),
        ("vda", {"rotational": "1"}, Device("vda", DeviceKind.VIRTUAL, True)),
        ("dm-0", {"cache": ""}, Device("dm-0", DeviceKind.VIRTUAL, None)),
        ("zram0", {}, Device("zram0", DeviceKind.MEMORY)),
    ],
)
def test_what_a_device_says_of_itself(tmp_path: Path, name: str, words: dict[str, str], expected: Device) -> None:
    assert device_in(tmp_path, name, **words) == expected


def test_a_file_system_without_a_device_of_its_number_is_found_by_the_name_of_its_source(tmp_path: Path) -> None:
    """As btrfs has it."""
    device_in(tmp_path, "sda")
    (tmp_path / "proc/self/mountinfo").write_text("22 1 0:33 / / rw - btrfs /dev/sda rw\n")
    (tmp_path / "sys/class/block").mkdir(parents=True)
    (tmp_path / "sys/class/block/sda").symlink_to(tmp_path / "sys/devices/sda")
    assert device_of(PLACE, tmp_path).kind is DeviceKind.FLASH


def test_a_device_that_nobody_knows_is_unknown(tmp_path: Path) -> None:
    device_in(tmp_path, "sda")
    (tmp_path / "proc/self/mountinfo").write_text("22 1 0:33 / / rw - nfs4 host:/export rw\n")
    assert device_of(replace(PLACE, device="host:/export"), tmp_path) == Device("export", DeviceKind.UNKNOWN)


def test_memory_has_no_device(tmp_path: Path) -> None:
    assert device_of(replace(PLACE, file_system="tmpfs"), tmp_path).kind is DeviceKind.MEMORY


# The measurement


def test_a_real_directory_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    said: list[str] = []
    found, judged = iotest.run(tmp_path, 0.02, said.append)
    assert list(found.timings) == list(iotest.PROBES)
    assert said == [f"measuring {name}" for name in found.timings]
    for taken in found.timings.values():
        assert taken.per_s > 0
        assert 0 <= taken.p50_us <= taken.p90_us <= taken.p99_us <= taken.p999_us <= taken.max_us
    assert found.free_bytes > 0
    assert found.locks == ""
    assert found.replaces_atomically
    assert judged.safe
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(iotest.as_dict(found, judged)))["recommended"] == judged.flags


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_an_interrupted_test_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        iotest.run(tmp_path, 0.01)
    assert list(tmp_path.iterdir()) == []


def failing(number: int) -> Callable[[int], None]:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_sync_that_fails_makes_the_directory_unsafe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    found, judged = iotest.run(tmp_path, 0.01)
    assert set(found.failures) == {verdict.APPEND, verdict.OVERWRITE}
    assert not judged.safe
    assert verdict.SYNC_ALL in found.timings


def test_a_full_disk_is_no_judgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        iotest.run(tmp_path, 0.01)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no directory"):
        iotest.run(tmp_path / "missing", 0.01)


def test_a_lock_that_does_not_exclude_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert iotest.lock_trouble(tmp_path / "lock") == ""
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    assert "told 'acquired' while the lock was held" in iotest.lock_trouble(tmp_path / "lock")


def test_a_file_system_without_locks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert "advisory locks" in iotest.lock_trouble(tmp_path / "lock")


def test_a_lock_that_outlives_its_holder_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileLock, "release", lambda self: None)
    assert "after it" in iotest.lock_trouble(tmp_path / "lock")


def test_a_replacement_that_takes_the_old_file_away_first_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def in_two_steps(source: Path, target: Path) -> None:
        target.unlink()
        time.sleep(0.02)
        rename(source, target)

    assert iotest.replaces_atomically(tmp_path, 0.05)
    monkeypatch.setattr(os, "rename", in_two_steps)
    assert not iotest.replaces_atomically(tmp_path, 0.1)


# The verb


def test_the_verb_tells_people(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["iotest", str(tmp_path), "--seconds", "0.01"])
    assert result.exit_code == ExitCode.OK, result.output
    for word in (*iotest.PROBES, "p99.9 us", "recommended: --sync", LOCKING, "room"):
        assert word in result.stdout
    assert "measuring" in result.stderr


def test_the_verb_tells_programs(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["iotest", str(tmp_path), "--seconds", "0.01", "--json"])
    assert result.exit_code == ExitCode.OK, result.output
    told = json.loads(result.stdout)
    assert told["safe"] is True
    assert told["environment"]["directory"] == str(tmp_path)
    assert result.stderr == ""


def test_the_verb_fails_where_the_directory_is_unsafe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(locks="nobody is kept out")
    monkeypatch.setattr(iotest, "run", lambda *_, **_peer: (found, judge(found)))
    result = CliRunner().invoke(app, ["iotest", str(tmp_path)])
    assert result.exit_code == ExitCode.NOTHING
    assert f"UNSAFE  {LOCKING}" in result.stdout
    assert "use another" in result.stdout


def test_a_verb_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from xaqueue.cli.main import main; main()", "iotest", str(tmp_path)]
    with subprocess.Popen([*command, "--seconds", "60"], stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == f"measuring {verdict.APPEND}\n"
        assert list(tmp_path.iterdir()) != []
        child.terminate()
    assert child.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


# Two machines


def both(directory: Path, **changes: Any) -> tuple[Peer, Peer]:
    """A trial by two threads, which is all the same to the files."""
    with ThreadPoolExecutor(2) as threads:
        first, second = (threads.submit(peer.meet, directory, wait_s=10.0, **changes) for _ in range(2))
        return first.result(20), second.result(20)


def test_two_that_share_a_directory_agree_that_it_keeps_them_apart(tmp_path: Path) -> None:
    results = both(tmp_path)
    assert results == (Peer(socket.gethostname(), is_other_machine=False),) * 2
    assert list(tmp_path.iterdir()) == []


def test_locks_that_exclude_nobody_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileLock, "acquire", lambda _: True)
    for result in both(tmp_path):
        assert "at once" in result.locks
        assert not result.contents


def test_locks_that_are_never_released_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileLock, "acquire", lambda _: False)
    assert ["after its owner had released it" in result.locks for result in both(tmp_path)] == [True, True]


def test_a_stale_copy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a machine whose cache nobody tells."""
    read = Path.read_bytes
    stale: dict[Path, bytes] = {}
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: stale.setdefault(path, read(path)) if path.name == "content" else read(path)
    )
    assert ["stale copy" in result.contents for result in both(tmp_path)] == [True, True]


class Told(peer._Half):
    """A half to whom everything is said at once, and who says nothing."""

    def __init__(self, place: Path, heard: dict[str, Any]) -> None:
        super().__init__(place, "first", "second", 0.0)
        self.heard = heard

    def say(self, word: str, **facts: Any) -> None: ...

    def hear(self, word: str) -> dict[str, Any]:
        return self.heard


@pytest.mark.parametrize(("names", "is_good"), [(["after"], True), (["before", "after"], False), ([], False)])
def test_a_rename_that_is_seen_in_two_steps_is_found(tmp_path: Path, names: list[str], is_good: bool) -> None:
    assert (peer._names(Told(tmp_path, {"names": names})) == "") is is_good


def test_a_lock_file_that_was_replaced_unseen_is_found(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    try:
        assert "did not see" in peer._fence(Told(tmp_path, {"inode": lock.stat().st_ino + 1}), lock)
    finally:
        lock.release()


def test_nobody_who_comes_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="start the same command on both at once"):
        peer.meet(tmp_path, wait_s=0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_third_is_refused(tmp_path: Path) -> None:
    (tmp_path / peer.PLACE / "second").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match=f"remove {tmp_path / peer.PLACE}"):
        peer.meet(tmp_path)


# The four criteria

NFS = replace(PLACE, file_system="nfs4")


def criteria(**changes: Any) -> dict[str, Level]:
    return {criterion.about: criterion.level for criterion in judge(facts(**changes)).findings[:4]}


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, "ok ok ok ok"),
        ({"failures": {verdict.SYNC_ALL: "[Errno 5]"}}, "unsafe unsafe ok ok"),
        ({"locks": "nobody is kept out"}, "ok ok unsafe ok"),
        ({"environment": NFS}, "ok ok warning warning"),
        ({"environment": NFS, "peer": Peer("b", is_other_machine=True)}, "ok ok ok ok"),
        ({"environment": NFS, "peer": Peer("b", is_other_machine=False)}, "ok ok warning warning"),
        ({"environment": NFS, "peer": Peer("b", is_other_machine=True, locks="x")}, "ok ok unsafe ok"),
        ({"environment": NFS, "peer": Peer("b", is_other_machine=True, fence="x")}, "ok ok ok unsafe"),
        ({"environment": NFS, "peer": Peer("b", is_other_machine=True, contents="x")}, "unsafe ok ok ok"),
        ({"environment": NFS, "peer": Peer("b", is_other_machine=True, names="x")}, "unsafe ok ok ok"),
    ],
)
def test_each_criterion_has_its_verdict(changes: dict[str, Any], levels: str) -> None:
    assert criteria(**changes) == dict(
        zip((ORDER, LASTING, LOCKING, OWNERSHIP), map(Level, levels.split()), strict=True)
    )
    assert judge(facts(**changes)).safe is ("unsafe" not in levels)


def test_the_verb_tries_a_directory_with_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from xaqueue.cli.main import main; main()", "iotest", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--peer", "--seconds", "0.01"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stderr is not None
        assert "waiting for" in first.stderr.readline()
        second = CliRunner().invoke(app, ["iotest", str(tmp_path), "--peer", "--seconds", "0.01", "--json"])
        said, _ = first.communicate(timeout=60)
    assert (first.returncode, second.exit_code) == (ExitCode.OK, ExitCode.OK)
    assert "which is THIS machine, was refused until the release" in said
    assert json.loads(second.stdout)["peer"]["is_other_machine"] is False
