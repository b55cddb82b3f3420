"""Keepers of a node take memory one after the other; what they hold already counts meanwhile, and where there is room also then."""

import contextlib
import fcntl
import functools
import json
import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.job.checkpoint import fitting
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.checkpoint.fitting import Fitting
from phalanx.job.checkpoint.keeper import process, segments
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import RANK, WORLD_SIZE, of_place
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.train.snapshots import Snapshots
from tests.job.checkpoint.keeper_places import end_keepers, eventually, place_at

MB = 2**20
ROOM = 300 * MB
"""Beside the former state: with what keepers leave to others for two snapshots of 20 MB, and not for three."""
CPU = torch.device("cpu")


def parts(size: int) -> list[Part]:
    return [Part(name="weight", dtype="U8", shape=(size,), start=(0,), size=(size,))]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = place_at(tmp_path / "keepers")
    yield place
    end_keepers(place.folder)


@contextmanager
def turn_of_another(place: Place) -> Iterator[None]:
    """Another keeper of the node takes its memory."""
    turn = os.open(place.folder, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(turn)


def seal(copier: Copier, step: int, size: int = 64) -> None:
    copier.begin_fit(parts(size), 2)
    draft = copier.end_fit().begin(step, 1)
    assert draft is not None
    draft.seal(json.dumps({RANK: 0, WORLD_SIZE: 1}))


def steps(place: Place) -> list[int]:
    return [one.step for one in of_place(place)]


def grow(place: Place) -> None:
    """A process that asks for memory of other parts."""
    Memory.attach(place, parts(128), 2)


def test_whoever_dies_while_memory_is_taken_leaves_its_state_and_a_place_for_a_successor(place: Place) -> None:
    copier = Copier(place, CPU, 60.0)
    seal(copier, 7)
    copier.leave()
    with turn_of_another(place):
        rank = multiprocessing.get_context("spawn").Process(target=grow, args=(place,))
        rank.start()
        eventually(lambda: _is_asking(place), 60)
        assert steps(place) == [7], "while it takes it"
        rank.kill()
        rank.join()
        rank.close()
        assert steps(place) == [7]
    after = Memory.attach(place, parts(128), 2)
    assert after.buffers == 2
    assert steps(place) == [7], "until there is a newer one"
    after.close()


def _is_asking(place: Place) -> bool:
    """The keeper has put by what was sealed: the memory that a rank of this place has is yet to come."""
    try:
        Memory.attach(place).leave()
    except NotFound:
        return True
    return False


@pytest.fixture
def small_machine(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The keeper in a thread of this process, of a machine with so many bytes."""
    total = [10**12]

    def free() -> int:
        return total[0] - taken()

    monkeypatch.setattr(process, "make_segments", functools.partial(segments.make_segments, free=free))
    monkeypatch.setattr(fitting, "free_bytes", free)
    monkeypatch.setattr(fitting, "told_by_all", lambda mine: [mine])
    place.folder.mkdir(mode=0o700, parents=True)
    keeper = process.Keeper(place, 60.0)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    eventually((place.folder / place.socket_name).exists)
    yield total
    keeper.dismiss()
    thread.join(60)
    assert not thread.is_alive()
    for key in list(keeper._selector.get_map().values()):  # a process of its own closes nothing
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
    keeper._selector.close()
    keeper._ring.close()


def taken() -> int:
    """Bytes of all snapshots' memory here, each counted once."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "phalanx-snapshot" in str(path.readlink()):
                seen = path.stat()
                found[seen.st_ino] = seen.st_size
    return sum(found.values())


def test_where_there_is_room_for_the_former_state_and_fewer_snapshots_it_is_kept(place: Place, small_machine: list[int]) -> None:
    copier = Copier(place, CPU, 60.0)
    seal(copier, 7)
    small_machine[0] = taken() + ROOM
    assert Fitting(copier, parts(20 * MB), 3).finish()[1] == 2
    assert steps(place) == [7]
    copier.leave()


def test_a_refusal_that_nobody_could_foresee_keeps_it_too(
    place: Place, small_machine: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = Copier(place, CPU, 60.0)
    seal(copier, 7)
    small_machine[0] = taken() + ROOM
    monkeypatch.setattr(fitting, "free_bytes", lambda: 10**12)  # somebody took it since
    fitted = Fitting(copier, parts(20 * MB), 3)
    assert fitted._buffers == 3
    assert fitted.finish()[1] == 2
    assert steps(place) == [7]
    copier.leave()


def test_without_room_for_both_the_former_one_makes_way(place: Place, small_machine: list[int]) -> None:
    copier = Copier(place, CPU, 60.0)
    seal(copier, 7, 40 * MB)
    small_machine[0] = taken() + ROOM - 60 * MB
    assert Fitting(copier, parts(20 * MB), 3).finish()[1] == 2
    assert steps(place) == []
    copier.leave()


@pytest.mark.parametrize(("after_fault", "error"), [(False, SetupError), (True, StoreUnavailable)])
def test_too_little_memory_is_the_users_before_a_first_step_and_not_after_a_fault(
    place: Place, small_machine: list[int], monkeypatch: pytest.MonkeyPatch, after_fault: bool, error: type[Exception]
) -> None:
    """Whatever it goes on from: with all its ranks the job had room."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    small_machine[0] = taken() + 10 * MB
    snapshots = Snapshots(place, 60.0)
    snapshots._is_after_fault = after_fault
    with pytest.raises(error, match="need"):
        snapshots.fit(parts(20 * MB))
    small_machine[0] = 10**12
    snapshots.new_model()
    monkeypatch.setattr(snapshots._exchange, "meet", lambda copier, after: None)
    snapshots.fit(parts(20 * MB))
    assert snapshots.copier.memory is not None, "the next generation can"
    snapshots.copier.leave()
