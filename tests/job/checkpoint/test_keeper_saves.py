"""Keepers write what their ranks sealed: whole or not at all, again while the place refuses, whoever is killed."""

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core import wire
from phalanx.core.chaos import FOLDER
from phalanx.core.errors import StoreUnavailable
from phalanx.core.records import CheckpointCommitted
from phalanx.job.checkpoint import manifest, shard_file, whole
from phalanx.job.checkpoint.commit import Content
from phalanx.job.checkpoint.fence import Holder, hold
from phalanx.job.checkpoint.keeper.messages import Committed, GivenUp, News, Persist, Troubled, Written
from phalanx.job.checkpoint.keeper.saves import Saves, _refuse_if_asked
from phalanx.job.checkpoint.manifest import Origin, folder_name
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.shard_file import Part, SaveKey, ShardIndex
from phalanx.job.checkpoint.whole import TensorSpec
from phalanx.job.sdk.chaos import ENDS
from tests.job.checkpoint.keeper_places import ATTEMPT, end_keepers, ends, eventually, place_at, snapshot
from tests.job.checkpoint.snapshot_parts import filled

ROWS = 64 * 1024
"""Of each rank's part of the one tensor: 256 KiB."""


def _parts(rank: int) -> list[Part]:
    return [Part(name="w", dtype="F32", shape=(2 * ROWS,), start=(rank * ROWS,), size=(ROWS,))]


class Gang:
    """Two ranks' memories, and their saves below `root`."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.root = root
        self.memories = [Memory.attach(place_at(folder, rank), _parts(rank), buffers=2) for rank in (0, 1)]
        self.news: list[News] = []

    def snapshot(self, step: int, generation: int = 0) -> None:
        for memory in self.memories:
            snapshot(memory, step, generation)

    def persist(self, step: int, ranks: tuple[int, ...] = (0, 1), **changed: object) -> SaveKey:
        key = SaveKey(step=step, save=f"s{step}", attempt=ATTEMPT)
        origin = Origin(config="c", data="d", world_size=2, layout={"dp": 2})
        content = Content(origin=origin, dtype="fp32", extra={}, tensors={"w": TensorSpec(dtype="F32", shape=(2 * ROWS,))})
        for rank in ranks:
            asked = Persist(
                root=str(self.root), key=key, rank=rank, segment=None, content=None if rank else content, keep=Keep(last=2),
                patience_s=20,
            )  # fmt: skip
            self.memories[rank].persist(step, replace(asked, **changed))  # type: ignore[arg-type]  # fields of Persist
        return key

    def until(self, wanted: type[News], rank: int = 0) -> News:
        for _ in range(2000):
            self.news += self.memories[rank].news(0.01)
            for one in self.news:
                if isinstance(one, wanted):
                    self.news.remove(one)
                    return one
        raise AssertionError(f"no {wanted.__name__}: {self.news}")

    def committed(self) -> list[int]:
        return [step for step, _ in manifest.committed(self.root)]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    gang = Gang(tmp_path / "keepers", tmp_path / "checkpoints")
    yield gang
    for memory in gang.memories:
        with contextlib.suppress(ProcessLookupError):
            _limit(memory.keeper_pid, resource.RLIM_INFINITY)
        memory.leave()
    end_keepers(gang.folder)


def test_what_was_sealed_is_committed_and_reads_back(gang: Gang) -> None:
    gang.snapshot(4)
    gang.persist(4)
    told = gang.until(Committed)
    assert isinstance(told, Committed) and told.saved.step == 4
    checkpoint = whole.verify(Path(told.saved.path))
    assert checkpoint.digest == told.saved.digest
    shard = (gang.root / folder_name(4) / checkpoint.shards[1].file).read_bytes()
    entry = checkpoint.shards[1].parts[0]
    assert shard[entry.offset : entry.offset + entry.length] == bytes(filled(_parts(1)[0], 4))
    assert isinstance(gang.until(Written, rank=1), Written)
    assert [memory.saving for memory in gang.memories] == [(), ()]


def test_what_is_committed_when_no_rank_is_left_is_in_the_record_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "rank-0.records"
    records.write_bytes(b'{"half a line of the dead rank')
    monkeypatch.setenv("PHALANX_RECORDS", str(records))
    gang = Gang(tmp_path / "keepers", tmp_path / "checkpoints")
    gang.snapshot(1)
    gang.persist(1, ranks=(0,))
    gang.until(Written)
    gang.memories[0].leave()
    gang.persist(1, ranks=(1,))
    eventually(lambda: records.read_bytes().endswith(b"}\n"))
    record = wire.loads(CheckpointCommitted, records.read_bytes().splitlines()[-1])
    assert (record.step, record.path) == (1, str(gang.root / folder_name(1))) and gang.committed() == [1]
    gang.memories[1].leave()
    end_keepers(gang.folder)


def test_a_fault_that_was_asked_for_goes_by_the_place_in_the_whole_gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    later_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 600_000
    (tmp_path / "met-1-1").write_text(json.dumps({"fault": "drop-store", ENDS: later_ms}))
    asked = Persist(
        root="", key=SaveKey(step=1, save="s1"), rank=1, segment=None, content=None, keep=Keep(), patience_s=0, slot=3
    )  # fmt: skip
    _refuse_if_asked(asked)
    for met in (replace(asked, rank=0, slot=1), replace(asked, slot=None)):
        with pytest.raises(StoreUnavailable):
            _refuse_if_asked(met)


def test_a_rank_killed_after_it_asked_does_not_take_its_save_along(gang: Gang) -> None:
    gang.snapshot(1)
    gang.persist(1, ranks=(0,))
    gang.memories[0].leave()  # rank 0 is gone; rank 1 was later
    gang.persist(1, ranks=(1,))
    gang.until(Written, rank=1)
    after = Memory.attach(place_at(gang.folder, 0))
    for _ in range(500):
        gang.news += after.news(0.02)
        if any(isinstance(one, Committed) for one in gang.news):
            break
    assert gang.committed() == [1]
    assert any(isinstance(one, Committed) for one in gang.news)  # whoever comes after the rank hears of it
    assert after.saving == ()
    after.leave()


def test_a_full_disk_is_told_once_and_tried_again_and_older_ones_stay(gang: Gang) -> None:
    gang.snapshot(1)
    gang.persist(1)
    gang.until(Committed)
    before = sorted((path.name, path.read_bytes()) for path in (gang.root / folder_name(1)).iterdir())
    _limit(gang.memories[1].keeper_pid, 4096)
    gang.snapshot(2)
    gang.persist(2)
    told = gang.until(Troubled, rank=1)
    assert isinstance(told, Troubled) and "File too large" in told.reason and "\n" not in told.reason
    assert gang.committed() == [1]
    assert sorted((path.name, path.read_bytes()) for path in (gang.root / folder_name(1)).iterdir()) == before
    assert gang.memories[1].begin(3) is not None  # training's next snapshot has room beside the one that waits
    _limit(gang.memories[1].keeper_pid, resource.RLIM_INFINITY)
    gang.until(Committed)
    assert gang.committed() == [2, 1]
    assert not any(isinstance(one, Troubled) for one in gang.news)


def test_a_store_that_is_away_is_waited_for_and_given_up_in_the_end(gang: Gang) -> None:
    gang.root.parent.joinpath("store").touch()  # a file where the folder shall be
    gang.root = gang.root.parent / "store" / "checkpoints"
    gang.snapshot(1)
    gang.persist(1)
    gang.until(Troubled)
    gang.root.parent.unlink()  # it is back
    gang.until(Committed)
    gang.root.parent.rename(gang.root.parent.with_name("moved"))
    gang.root.parent.touch()
    gang.snapshot(2)
    gang.persist(2, patience_s=0.0)
    told = gang.until(GivenUp)
    assert isinstance(told, GivenUp) and "folder" in told.reason and not told.fenced
    gang.until(GivenUp, rank=1)
    assert [memory.begin(3) is not None for memory in gang.memories] == [True, True]


def test_where_one_rank_gives_up_nobody_waits_and_nothing_is_left(gang: Gang) -> None:
    gang.snapshot(1)
    _limit(gang.memories[1].keeper_pid, 4096)
    gang.persist(1, ranks=(1,), patience_s=0.0)
    gang.persist(1, ranks=(0,))
    told = gang.until(GivenUp)
    assert isinstance(told, GivenUp) and told.reason.startswith("rank 1: ")
    assert gang.committed() == []
    assert not [path for path in gang.root.rglob("*") if path.name.startswith(("shard", "part"))]


def test_T06_several_saves_in_flight_block_nothing_and_all_are_committed(gang: Gang) -> None:
    gang.snapshot(1)
    gang.snapshot(2)
    gang.persist(1)
    gang.persist(2)
    assert all(len(memory.saving) == 2 for memory in gang.memories)
    told = [gang.until(Committed) for _ in range(2)]
    assert {one.key.step for one in told if isinstance(one, Committed)} == {1, 2} and gang.committed() == [2, 1]


def test_without_a_free_segment_there_is_no_snapshot_until_one_is_written(gang: Gang) -> None:
    memory = gang.memories[1]
    os.kill(memory.keeper_pid, signal.SIGSTOP)  # it is slow
    for step in (1, 2):
        snapshot(memory, step)
        gang.persist(step, ranks=(1,))
    assert memory.begin(3) is None
    assert memory.sealed() == (2, 1)
    os.kill(memory.keeper_pid, signal.SIGCONT)
    gang.until(Written, rank=1)
    assert memory.begin(3) is not None


def test_of_snapshots_that_cannot_be_written_the_newest_waits_and_gives_way_to_a_newer_one(gang: Gang) -> None:
    for memory in gang.memories:
        _limit(memory.keeper_pid, 4096)
    for step in (1, 2, 3):  # more than there are segments
        gang.snapshot(step)
        gang.persist(step)
        if step > 1:
            told = gang.until(GivenUp)
            assert isinstance(told, GivenUp) and told.key.step == step - 1
            assert f"step {step} is saved instead" in told.reason and "File too large" in told.reason
            gang.until(GivenUp, rank=1)
    for memory in gang.memories:
        _limit(memory.keeper_pid, resource.RLIM_INFINITY)
    gang.until(Committed)
    assert gang.committed() == [3]


def test_a_save_that_lacks_a_rank_is_not_waited_for_once_a_newer_one_is_committed(gang: Gang) -> None:
    gang.snapshot(1)
    gang.persist(1, ranks=(0,))
    gang.until(Written)
    gang.snapshot(2)
    gang.persist(2)
    told = [gang.until(GivenUp), gang.until(Committed)]
    assert isinstance(told[0], GivenUp) and told[0].key.step == 1 and "step 2 was saved meanwhile" in told[0].reason
    assert gang.committed() == [2]


def test_a_keeper_killed_in_the_middle_of_a_save_loses_nothing(gang: Gang) -> None:
    gang.snapshot(1)
    gang.persist(1)
    gang.until(Committed)
    gang.until(Written, rank=1)
    _limit(gang.memories[1].keeper_pid, 4096)  # so that it stays in the middle
    gang.snapshot(2)
    gang.persist(2)
    gang.until(Written)  # rank 0's own part: nothing more comes of its keeper
    gang.until(Troubled, rank=1)
    killed = [memory.keeper_pid for memory in gang.memories]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
        ends(pid)
    assert gang.committed() == [1]
    assert all(memory.news() == [] and memory.saving for memory in gang.memories)
    eventually(lambda: all(memory._link.has_ended() for memory in gang.memories))  # the last of its threads
    assert [memory.repair() for memory in gang.memories] == [True, True]
    assert not set(killed) & {memory.keeper_pid for memory in gang.memories}
    gang.until(Committed)
    assert gang.committed() == [2, 1]


def test_a_newer_attempt_fences_a_keeper_that_goes_on_writing(gang: Gang) -> None:
    gang.root.mkdir()
    hold(gang.root, Holder(attempt="lm-1.2"))
    gang.snapshot(1)
    gang.persist(1)
    told = gang.until(GivenUp)
    assert isinstance(told, GivenUp) and told.fenced and "newer attempt" in told.reason
    assert gang.committed() == []


def test_a_save_of_an_older_generation_that_lacks_a_rank_is_given_up_at_once(gang: Gang) -> None:
    gang.snapshot(1)
    gang.persist(1, ranks=(0,))  # rank 1 died before it asked
    gang.snapshot(2, generation=1)
    gang.persist(2, key=SaveKey(step=2, save="g1", attempt=ATTEMPT, generation=1))
    told = gang.until(GivenUp)
    assert isinstance(told, GivenUp) and told.key.step == 1 and told.reason == "the gang was formed anew"
    gang.until(Committed)
    assert gang.committed() == [2]


def test_older_ones_go_once_a_newer_one_is_committed(gang: Gang) -> None:
    for step in (1, 2, 3):
        gang.snapshot(step)
        gang.persist(step)
        gang.until(Committed)
        gang.until(Written, rank=1)
    assert gang.committed() == [3, 2]


def test_a_snapshot_that_is_gone_is_not_written(gang: Gang) -> None:
    gang.snapshot(1)
    key = gang.persist(1, ranks=(1,))
    gang.until(Written, rank=1)
    memory = gang.memories[1]
    memory.forget_after(0)
    memory._link.say(Persist(
        root=str(gang.root), key=replace(key, save="gone"), rank=1, segment=0, content=None, keep=Keep(), patience_s=1,
    ))  # fmt: skip
    told = gang.until(GivenUp, rank=1)
    assert isinstance(told, GivenUp) and told.reason == "its snapshot is not there"


def test_a_snapshot_that_another_one_took_the_place_of_is_not_written(gang: Gang) -> None:
    gang.snapshot(1, generation=2)  # by the rank's successor
    gang.persist(1, ranks=(1,), key=SaveKey(step=1, save="old", attempt=ATTEMPT, generation=1))
    told = gang.until(GivenUp, rank=1)
    assert isinstance(told, GivenUp) and told.reason == "its snapshot was overwritten"
    assert not list(gang.root.rglob("part-*"))


def test_a_shard_of_a_snapshot_that_is_taken_while_it_is_written_is_not_announced(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(gang.memories[1], 1)
    segment, told, write = gang.memories[1]._segments[0], list[News](), shard_file.write

    def overtaken(*args: Any, **named: Any) -> ShardIndex:
        index = write(*args, **named)
        segment.break_seal()
        return index

    monkeypatch.setattr(shard_file, "write", overtaken)
    key = SaveKey(step=1, save="s1", attempt=ATTEMPT)
    asked = Persist(root=str(gang.root), key=key, rank=1, segment=0, content=None, keep=Keep(), patience_s=20)
    Saves(told.append, time.monotonic).begin(asked, segment)
    eventually(lambda: told == [GivenUp(key=asked.key, reason="its snapshot was overwritten")])
    assert not list(gang.root.rglob("part-*")) and list(gang.root.rglob("failed-*"))


def _limit(pid: int, num_bytes: int) -> None:
    """A disk on which no file can be larger."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def test_a_keeper_told_to_end_writes_what_it_is_writing_and_ends(gang: Gang) -> None:
    gang.snapshot(1)
    gang.persist(1)
    for memory in gang.memories:
        memory.leave()  # the ranks are dead
        os.kill(memory.keeper_pid, signal.SIGTERM)
    for memory in gang.memories:
        ends(memory.keeper_pid)
    assert gang.committed() == [1] and not gang.folder.exists()


def test_a_keeper_told_to_end_tries_nothing_again(gang: Gang) -> None:
    _limit(gang.memories[1].keeper_pid, 4096)
    gang.snapshot(1)
    gang.persist(1, ranks=(1,), patience_s=600)
    gang.until(Troubled, rank=1)
    os.kill(gang.memories[1].keeper_pid, signal.SIGTERM)
    ends(gang.memories[1].keeper_pid)
    assert gang.committed() == []
