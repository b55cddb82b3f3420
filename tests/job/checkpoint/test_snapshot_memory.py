"""Snapshots outlive the rank that made them, are whole or absent, and nothing of them is left behind."""

import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import Bug, NotFound, SetupError, UserError
from phalanx.job.checkpoint.keeper import link, segments
from phalanx.job.checkpoint.keeper.link import _connected
from phalanx.job.checkpoint.keeper.messages import Persist, Written
from phalanx.job.checkpoint.keeper.only import is_the_only_one
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.segment import NOTE_BYTES_MAX, Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import Part, SaveKey
from tests.job.checkpoint.gang_launch import ROOT
from tests.job.checkpoint.keeper_places import end_keepers, ends, eventually, place_at, snapshot
from tests.job.checkpoint.snapshot_parts import PARTS, filled


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Whatever a test leaves running there ends with it."""
    place = place_at(tmp_path / ("deep" * 30) / "keepers")  # longer than a socket's address
    yield place
    end_keepers(place.folder)


def test_a_snapshot_outlives_the_SIGKILL_of_its_rank(place: Place) -> None:
    keeper = _killed_rank(place, "sealed")
    after = Memory.attach(place)
    assert after.keeper_pid == keeper
    assert after.sealed() == (2, 1)
    assert (after.seal_of(2).generation, after.seal_of(2).note) == (2, "of step 2")
    _check(after, 2)
    _check(after, 1)
    after.close()
    ends(keeper)


def test_memory_that_is_taken_slowly_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers of a node take it one after the other, tens of gigabytes each: longer than one may be silent else."""
    first = Memory.attach(place, PARTS[:1])
    monkeypatch.setattr(link, "PATIENCE_S", 3.0)
    turn = os.open(place.folder, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    threading.Timer(5.0, os.close, (turn,)).start()
    began_s = time.monotonic()
    then = Memory.attach(place, PARTS)
    assert time.monotonic() - began_s > 3.0 and then.layout.parts == tuple(PARTS)
    first.leave()
    then.close()


def test_a_rank_killed_in_the_middle_of_a_copy_leaves_the_older_one_whole(place: Place) -> None:
    keeper = _killed_rank(place, "copying")
    after = Memory.attach(place, PARTS, buffers=2)
    assert after.sealed() == (2,)  # step 1 was being overwritten
    _check(after, 2)
    with pytest.raises(NotFound, match="there are \\[2\\]"):
        after.read(3)
    draft = after.begin(4)
    assert draft is not None  # the half one is free again
    after.close()
    ends(keeper)


def test_a_keeper_that_nobody_speaks_to_ends_and_leaves_nothing(place: Place) -> None:
    memory = Memory.attach(place, PARTS, idle_s=2.0)  # long enough to be greeted on a busy machine
    memory.leave()
    ends(memory.keeper_pid)
    assert not place.folder.exists()
    with pytest.raises(NotFound, match="keeper has none"):
        Memory.attach(place, idle_s=0.1)


def test_a_keeper_whose_folder_went_with_the_one_before_is_not_the_one(place: Place) -> None:
    """And is no error: whoever wants one starts it again."""
    assert not is_the_only_one(str(place.folder), 0)
    assert not place.folder.exists()


def test_a_folder_that_the_keeper_before_took_along_is_made_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and the start of the next keeper, or of that one's log."""
    made = Path.mkdir
    taken: list[Path] = []

    def mkdir(folder: Path, *args: Any, **more: Any) -> None:
        made(folder, *args, **more)
        if folder == place.folder and not taken:
            taken.append(folder)
            folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    memory = Memory.attach(place, PARTS, buffers=2)
    assert taken == [place.folder] and memory.sealed() == ()
    memory.close()
    assert not is_the_only_one(str(place.folder / "gone"), 0)


def test_close_ends_the_keeper_and_leaves_nothing(place: Place) -> None:
    memory = Memory.attach(place, PARTS)
    memory.close()
    ends(memory.keeper_pid)
    assert not place.folder.exists()


def test_who_goes_gives_the_memory_back(place: Place) -> None:
    before = _mapped_segments()
    memory = Memory.attach(place, PARTS, buffers=2)
    assert _mapped_segments() == before + 2
    memory.close()
    assert _mapped_segments() == before


def test_the_last_whole_one_is_never_broken_and_the_oldest_goes_first(place: Place) -> None:
    memory = Memory.attach(place, PARTS, buffers=2)
    assert memory.sealed() == ()
    for step in (5, 6):
        snapshot(memory, step)
    draft = memory.begin(7)
    assert draft is not None and memory.sealed() == (6,)
    again = memory.begin(8)
    assert again is not None and memory.sealed() == (6,)  # the draft before it was given up
    again.seal()
    assert memory.sealed() == (8, 6)
    memory.close()


def test_after_a_rollback_later_steps_are_gone_and_the_younger_generation_counts(place: Place) -> None:
    memory = Memory.attach(place, PARTS, buffers=3)
    for step in (1, 2, 3):
        snapshot(memory, step)
    memory.forget_after(2)
    assert memory.sealed() == (2, 1)
    snapshot(memory, 2, generation=1)
    assert memory.seal_of(2).generation == 1 and memory.sealed() == (2, 1)
    memory.close()


def test_a_killed_keeper_is_replaced_and_the_memory_stays(place: Place) -> None:
    memory = Memory.attach(place, PARTS)
    snapshot(memory, 1)
    assert memory.repair() is False
    killed = memory.keeper_pid
    os.kill(killed, signal.SIGKILL)
    ends(killed)
    assert memory.repair() is True and memory.keeper_pid != killed
    other = Memory.attach(place)  # what the new keeper holds is the same memory
    _check(other, 1)
    snapshot(memory, 2)
    assert other.sealed() == (2, 1)
    memory.close()
    other.close()
    ends(memory.keeper_pid)


def test_a_keeper_that_cannot_be_started_again_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory.attach(place, PARTS)
    snapshot(memory, 1)
    os.kill(memory.keeper_pid, signal.SIGKILL)
    eventually(memory._link.has_ended)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        for _ in range(2):
            with pytest.raises(SetupError, match="cannot be started"):
                memory.repair()
            assert memory.news() == []
    assert memory.repair() is True
    other = Memory.attach(place)
    _check(other, 1)
    other.leave()
    memory.close()
    assert memory.repair() is False and memory.news() == []


def test_a_keeper_that_cannot_listen_any_more_does_the_saves_that_were_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory.attach(place, PARTS)
    memory.listen("127.0.0.1", "secret")
    memory._listening = ("192.0.2.1", "secret", 1)  # the address is this node's no more
    snapshot(memory, 1)
    root = str(place.folder.parent / "checkpoints")
    memory._saves["s"] = Persist(
        root=root, key=SaveKey(step=1, save="s"), rank=1, segment=0, content=None, keep=Keep(), patience_s=9
    )  # fmt: skip
    os.kill(memory.keeper_pid, signal.SIGKILL)
    eventually(memory._link.has_ended)
    with pytest.raises(SetupError, match="address of this node"):
        memory.repair()
    eventually(lambda: any(isinstance(one, Written) for one in memory.news(0.1)))
    memory.close()


def test_a_gang_that_changes_its_size_again_and_again_takes_no_more_memory(place: Place) -> None:
    counts = []
    for step, parts in enumerate((PARTS, PARTS[:2], PARTS[:1], PARTS), start=1):
        memory = Memory.attach(place, parts)
        snapshot(memory, step)  # one of three
        memory.drop_former()
        other = Sealed.at(place)
        assert other.steps() == (step,)
        other.close()
        held = [str(one.readlink()) for one in Path(f"/proc/{memory.keeper_pid}/fd").iterdir()]
        counts.append(len([one for one in held if "phalanx-snapshot" in one]))
        memory.leave()
    Memory.attach(place).close()
    assert len(set(counts)) == 1, counts


def test_who_only_reads_a_place_starts_and_changes_nothing_and_takes_no_news(place: Place) -> None:
    with pytest.raises(NotFound, match="none in slot 0"):
        Sealed.at(place)
    assert not place.folder.exists()
    memory = Memory.attach(place, PARTS, buffers=2)
    snapshot(memory, 1)
    snapshot(memory, 2, generation=3)
    other = Sealed.at(place)
    assert other.steps() == (2, 1) and other.seal_of(2).generation == 3
    for part, data in other.parts(2):
        assert bytes(data) == bytes(filled(part, 2))
        with pytest.raises(TypeError):
            data[0] = 0
    seal = other.seal_of(1)
    assert other.is_whole(seal)
    snapshot(memory, 3)  # takes the segment of the oldest
    assert not other.is_whole(seal) and other.steps() == (3, 2)
    with pytest.raises(NotFound, match="there are \\[3, 2\\]"):
        other.parts(1)
    memory.close()
    ends(memory.keeper_pid)  # whoever reads keeps no keeper
    assert other.steps() == (3, 2)  # and no keeper's end takes from them what they have
    other.close()


def test_other_parts_are_other_memory_and_the_same_parts_the_same(place: Place) -> None:
    memory = Memory.attach(place, PARTS)
    snapshot(memory, 1)
    for parts, steps in ((PARTS, (1,)), (PARTS[:2], ()), (PARTS, ())):
        other = Memory.attach(place, parts)
        assert other.sealed() == steps
        other.leave()
    memory.close()


def test_what_is_sealed_of_other_parts_is_shown_to_readers_until_it_is_dropped(place: Place) -> None:
    """A gang of another size: a second fault before it has sealed anything must find what the first one left."""
    memory = Memory.attach(place, PARTS)
    snapshot(memory, 1)
    snapshot(memory, 2)
    memory.leave()
    memory = Memory.attach(place, PARTS[:2])
    assert memory.sealed() == ()
    other = Sealed.at(place)
    assert other.steps() == (2, 1)
    assert [(part, bytes(data)) for part, data in other.parts(2)] == [(part, bytes(filled(part, 2))) for part in PARTS]
    other.close()
    snapshot(memory, 3, generation=2)
    other = Sealed.at(place)
    assert other.steps() == (3, 2, 1) and [part for part, _ in other.parts(3)] == list(PARTS[:2])
    other.close()
    memory.leave()
    memory = Memory.attach(place, PARTS[:1])  # yet another size: the newest that is sealed is put by
    assert Sealed.at(place).steps() == (3,)
    memory.leave()
    memory = Memory.attach(place, PARTS)  # nothing was sealed of those: what is put by stays
    assert Sealed.at(place).steps() == (3,)
    memory.drop_former()
    assert memory.sealed() == () and Sealed.at(place).steps() == ()
    memory.close()


def test_a_keeper_of_another_attempt_is_refused_by_name(place: Place) -> None:
    memory = Memory.attach(place, PARTS)
    with pytest.raises(UserError, match=r"'lm-1.2'.*is of attempt 'lm-1.1'"):
        Memory.attach(Place(folder=place.folder, slot=0, attempt="lm-1.2"), PARTS)
    memory.close()


def test_two_ranks_of_a_node_have_a_keeper_each(place: Place) -> None:
    one, two = (Memory.attach(place_at(place.folder, slot), PARTS) for slot in (0, 1))
    assert one.keeper_pid != two.keeper_pid
    snapshot(one, 1)
    assert (one.sealed(), two.sealed()) == ((1,), ())
    one.close()
    two.close()
    ends(one.keeper_pid)
    ends(two.keeper_pid)


def test_two_processes_that_start_a_keeper_at_once_get_the_same(place: Place) -> None:
    ranks = [_start_rank(place, "sealed") for _ in range(2)]
    keepers = {_keeper_of(rank) for rank in ranks}
    for rank in ranks:
        _kill(rank)
    assert len(keepers) == 1


def test_more_state_than_memory_is_one_error_with_both_numbers(place: Place) -> None:
    huge = Part(name="huge", dtype="U8", shape=(1 << 45,), start=(0,), size=(1 << 45,))
    with pytest.raises(SetupError) as refused:
        Memory.attach(place, [huge], buffers=2)
    assert refused.value.field == "checkpoint memory"
    assert str(2 * layout_of([huge]).size_bytes) in refused.value.fix and "are free" in refused.value.fix
    memory = Memory.attach(place, PARTS)  # the keeper is as good as before
    assert memory.sealed() == ()
    memory.close()


def test_memory_is_taken_at_once_and_given_back_when_not_all_of_it_is_there(tmp_path: Path) -> None:
    layout = layout_of(PARTS)
    before = _open_files()
    made = segments.make_segments(tmp_path, layout, 2)
    assert all(os.fstat(one).st_blocks * 512 >= layout.size_bytes for one in made)
    for one in made:
        with pytest.raises(OSError):
            os.ftruncate(one, 0)  # a rank cannot pull it from under the keeper
        os.close(one)
    with pytest.raises(SetupError, match=f"{2 * layout.size_bytes} bytes of host memory, and 7 are free"):
        segments.make_segments(tmp_path, layout, 2, free=lambda: 7)
    assert _open_files() == before


def test_snapshots_may_lie_on_a_disk_and_take_no_memory(place: Place, tmp_path: Path) -> None:
    """In files without a name that also a keeper after this one holds; the host's memory is not asked."""
    (scratch := tmp_path / "scratch").mkdir()
    on_disk = replace(place, scratch=str(scratch))
    memory = Memory.attach(on_disk, PARTS, buffers=2)
    snapshot(memory, 1)
    assert sum(one.startswith(str(scratch)) for one in _open_in(memory.keeper_pid)) == 2
    assert list(scratch.iterdir()) == []
    memory.leave()
    after = Memory.attach(on_disk)
    assert after.sealed() == (1,)
    _check(after, 1)
    after.close()
    layout = layout_of(PARTS)
    for one in segments.make_segments(tmp_path, layout, 2, free=lambda: 0, scratch=str(scratch)):
        assert os.fstat(one).st_dev == scratch.stat().st_dev and os.fstat(one).st_blocks * 512 >= layout.size_bytes
        os.close(one)
    huge = Part(name="huge", dtype="U8", shape=(1 << 45,), start=(0,), size=(1 << 45,))
    with pytest.raises(SetupError, match=rf"need \d+ bytes in {scratch}, and \d+ are free; make room there"):
        segments.make_segments(tmp_path, layout_of([huge]), 2, scratch=str(scratch))


def test_every_tear_of_a_seal_is_no_seal(tmp_path: Path) -> None:
    layout = layout_of(PARTS)
    descriptor = segments.make_segments(tmp_path, layout, 1)[0]
    segment = Segment(descriptor, layout)
    empty = segment.memory[:160].tobytes()
    segment.write_seal(Seal(7, 2, "note"))
    whole = segment.memory[:160].tobytes()
    assert segment.seal() == Seal(7, 2, "note")
    length = len(whole.rstrip(b"\0"))
    for torn in range(length):
        segment.memory[:160] = whole[:torn] + empty[torn:]
        assert segment.seal() is None, torn
    segment.memory[:160] = whole
    assert segment.seal() is not None
    segment.break_seal()
    assert segment.seal() is None
    with pytest.raises(Bug, match="note"):
        segment.write_seal(Seal(7, 2, "x" * (NOTE_BYTES_MAX + 1)))
    os.close(descriptor)


def test_garbage_on_the_socket_ends_that_connection_only(place: Place) -> None:
    memory = Memory.attach(place, PARTS)
    for garbage in (b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\x0e" + b'{"kind":"bye"}'):
        channel = _connected(place)
        assert channel is not None
        channel.sendall(garbage)
        channel.settimeout(60)
        assert channel.recv(1) == b""  # hung up
        channel.close()
    snapshot(memory, 1)
    other = Memory.attach(place)
    assert other.sealed() == (1,)
    other.leave()
    memory.close()


def _mapped_segments() -> int:
    """Of this process, those that other tests have not let go of among them."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:phalanx-snapshot")


def _open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def _check(memory: Memory, step: int) -> None:
    read = memory.read(step)
    assert {part.key: bytes(read[part.key]) for part in PARTS} == {part.key: bytes(filled(part, step)) for part in PARTS}


def _start_rank(place: Place, act: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-m", "tests.job.checkpoint.snapshot_rank", str(place.folder), act]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0)


def _keeper_of(rank: "subprocess.Popen[str]") -> int:
    assert rank.stdout is not None
    said = rank.stdout.readline().split()
    assert said[0] == "ready"
    return int(said[1])


def _kill(rank: "subprocess.Popen[str]") -> None:
    os.killpg(rank.pid, signal.SIGKILL)  # as the shim does
    rank.communicate()


def _killed_rank(place: Place, act: str) -> int:
    rank = _start_rank(place, act)
    keeper = _keeper_of(rank)
    _kill(rank)
    return keeper


def _open_in(pid: int) -> set[str]:
    """What a process has open, but for what it closes meanwhile."""
    found = set()
    for opened in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(opened.readlink()))
    return found
