"""Checkpoints in a real S3 server, by the same rules as on a disk."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import pytest

from phalanx.core import wire
from phalanx.core.checkpoints import FENCE
from phalanx.core.errors import CheckpointError, NotFound, SetupError, StoreUnavailable
from phalanx.job.checkpoint import manifest, shard_file
from phalanx.job.checkpoint.commit import Saved, SaveFailed, announce_failure, commit_when_whole, discard
from phalanx.job.checkpoint.fence import Holder, hold
from phalanx.job.checkpoint.folder import Folder, folder_at
from phalanx.job.checkpoint.listing import listed, verified
from phalanx.job.checkpoint.manifest import MANIFEST, folder_name
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.shard_file import SaveKey
from phalanx.job.checkpoint.whole import open_checkpoint, verify
from phalanx.storage.objects import ObjectStore
from tests.job.checkpoint.small_saves import LENGTH, content, put, save, steps_that_verify
from tests.storage.seaweed import BUCKET, Seaweed

MIB = 2**20


def test_what_was_saved_comes_back(root: Folder) -> None:
    saved = save(root, 7)
    assert isinstance(saved, Saved) and saved.path == str(root / "step-00000007")
    found = verify(folder_at(saved.path))
    assert found.digest == saved.digest and found.manifest.step == 7
    entry = found.tensors["w"][1].entry
    data = memoryview(bytearray(entry.length))
    with shard_file.opened(found.folder, found.shards[1]) as file:
        shard_file.read_parts(file, found.folder, found.shards[1], entry, [data])
    assert data == bytes([7]) * LENGTH
    assert sorted((root / "step-00000007").names()) == sorted([
        MANIFEST, "part-00000-a.json", "part-00001-a.json", "shard-00000-a.safetensors", "shard-00001-a.safetensors",
    ])  # fmt: skip


def test_a_shard_of_several_parts_goes_up_and_down_in_pieces(root: Folder) -> None:
    folder, key = root / folder_name(1), SaveKey(step=1, save="a")
    for rank in (0, 1):
        put(folder, key, rank, 40 * MIB + 3)
    assert isinstance(commit_when_whole(folder, key, content(40 * MIB + 3), patience_s=0), Saved)
    assert verify(folder).manifest.size_bytes > 80 * MIB


def test_retention_leaves_the_newest_and_nothing_half(root: Folder) -> None:
    for step in (1, 2, 3, 4):
        put(root / folder_name(step), SaveKey(step=step, save="lost"), 0)  # a try that was given up
        save(root, step, keep=Keep(last=1, every=2))
    assert [step for step, _ in manifest.step_folders(root)] == [4, 2] and steps_that_verify(root) == [4, 2]
    assert all("lost" not in name for _, folder in manifest.step_folders(root) for name in folder.names())
    discard(root / folder_name(4))
    assert [step for step, _ in manifest.step_folders(root)] == [2]


DAMAGES: dict[str, tuple[Callable[[Folder], object], str]] = {
    "shard gone": (lambda folder: folder.remove("shard-00001-a.safetensors"), "shard-00001-a.safetensors"),
    "shard cut short": (lambda folder: _change(folder, "shard-00001-a.safetensors", lambda data: data[:-1]), "shard-00001"),
    "shard flipped": (lambda folder: _change(folder, "shard-00001-a.safetensors", _flipped), "shard-00001.*w@100000"),
    "index gone": (lambda folder: folder.remove("part-00000-a.json"), "part-00000-a.json.*is missing"),
    "index flipped": (lambda folder: _change(folder, "part-00000-a.json", _flipped), "part-00000-a.json.*checksum"),
    "manifest flipped": (lambda folder: _change(folder, MANIFEST, _flipped), MANIFEST),
    "manifest cut short": (lambda folder: _change(folder, MANIFEST, lambda data: data[:100]), MANIFEST),
}


def _flipped(data: bytes) -> bytes:
    at = len(data) - 90
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _change(folder: Folder, name: str, how: Callable[[bytes], bytes]) -> None:
    folder.write(name, how(folder.read(name, MIB)))


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damage_is_named(root: Folder, damage: str) -> None:
    how, where = DAMAGES[damage]
    save(root, 1)
    folder = root / folder_name(1)
    verify(folder)
    how(folder)
    with pytest.raises(CheckpointError, match=where):
        verify(folder)
    (one,) = verified(str(root), lambda *_: None)
    assert one.committed and one.problem and not one.verified


def test_a_newer_attempt_fences_an_older_one(root: Folder) -> None:
    save(root, 1, attempt="lm-1.1")
    hold(root, Holder(attempt="lm-1.2"))
    with pytest.raises(CheckpointError, match="newer attempt"):
        save(root, 2, attempt="lm-1.1")
    assert [step for step, _ in manifest.committed(root)] == [1]
    assert isinstance(save(root, 2, "b", attempt="lm-1.2"), Saved)
    with pytest.raises(CheckpointError, match="newer attempt"):
        hold(root, Holder(attempt="lm-1.1"))


def test_a_manifest_of_an_older_holder_is_replaced_and_a_newer_one_is_not(root: Folder) -> None:
    save(root, 1, "old", attempt="lm-1.1")
    assert isinstance(save(root, 1, "new", attempt="lm-1.2"), Saved)
    folder = root / folder_name(1)
    assert open_checkpoint(folder).manifest.attempt == "lm-1.2" and not [name for name in folder.names() if "-old." in name]
    with pytest.raises(CheckpointError, match="newer attempt"):
        save(root, 1, "older", attempt="lm-1.1")
    assert open_checkpoint(folder).manifest.key.save == "new"


def test_of_two_that_take_the_right_to_write_at_once_the_newer_has_it(root: Folder) -> None:
    holders = [Holder(attempt="lm-1.1", generation=number) for number in range(8)]
    refused: list[int] = []

    def take(holder: Holder) -> None:
        try:
            hold(root, holder)
        except (CheckpointError, StoreUnavailable):
            refused.append(holder.generation)

    threads = [Thread(target=take, args=(holder,)) for holder in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hold(root, replace(holders[-1], generation=9))  # whoever asks next and is newer gets it
    with pytest.raises(CheckpointError, match="generation 9"):
        hold(root, holders[-1])


def test_a_claim_that_was_stopped_half_way_never_sets_the_fence_back(root: Folder) -> None:
    """As the thread of an older generation, which looked at the fence before the newer took it and writes after that."""
    first, slow, newest = (Holder(attempt="lm-1.1", generation=number) for number in (1, 2, 3))
    hold(root, first)
    has_looked, may_go_on, told = Event(), Event(), list[BaseException]()
    swap = type(root).swap

    def stopped(folder: Any, name: str, data: bytes, version: str | None) -> bool:
        if b'"generation":2' in data and not has_looked.is_set():
            has_looked.set()
            assert may_go_on.wait(60)
        return bool(swap(folder, name, data, version))

    def claim() -> None:
        try:
            hold(root, slow)
        except CheckpointError as error:
            told.append(error)

    with patch.object(type(root), "swap", stopped):
        thread = Thread(target=claim)
        thread.start()
        assert has_looked.wait(60)
        hold(root, newest)
        may_go_on.set()
        thread.join()
    assert wire.loads(Holder, root.read(FENCE, MIB)) == newest
    assert len(told) == 1 and "generation 3" in str(told[0])


def test_a_rank_that_gave_up_is_named_and_nothing_of_the_save_is_left(root: Folder) -> None:
    folder, key = root / folder_name(3), SaveKey(step=3, save="a")
    put(folder, key, 0)
    announce_failure(folder, key, 1, "No space left on device")
    failed = commit_when_whole(folder, key, content(), patience_s=60)
    assert failed == SaveFailed(step=3, reason="rank 1: No space left on device")
    assert not list(folder.names())


def test_ls_names_what_is_there(root: Folder) -> None:
    save(root, 1)
    save(root, 2)
    put(root / folder_name(3), SaveKey(step=3, save="a"), 0)
    found = listed(str(root))
    assert [(one.name, one.committed, one.ranks) for one in found] == [
        ("step-00000003", False, 0), ("step-00000002", True, 2), ("step-00000001", True, 2),
    ]  # fmt: skip
    assert listed(str(root / "step-00000002"))[0].path == str(root / "step-00000002")


class Crash(BaseException):
    """The process is gone: nothing of ours runs any more that could tidy up."""


@contextmanager
def crashing(at: int) -> Iterator[list[str]]:
    """From the `at`-th request on that changes the store, none is made. The names of those that were asked for."""
    asked: list[str] = []

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            asked.append(name)
            if len(asked) > at:
                raise Crash
            return real(*arguments, **named)

        return call

    with ExitStack() as stack:
        for name in ("put_pieces", "put", "put_if_absent", "put_if_match", "delete", "delete_all"):
            stack.enter_context(patch.object(ObjectStore, name, guarded(name, getattr(ObjectStore, name))))
        yield asked


def test_whatever_request_a_save_ends_at_the_committed_ones_are_whole_and_the_next_try_succeeds(s3: Seaweed) -> None:
    keep = Keep(last=1)
    with crashing(10_000) as asked:
        save(folder_at(s3.url()), 1, keep=keep)
    assert asked.count("put_pieces") == 2 and asked.index("put_pieces") < asked.index("put") < len(asked) - 1, asked
    seen = set()
    for at in range(len(asked) + 4):  # and what the second save has to remove
        root = folder_at(s3.url())
        save(root, 1, keep=keep)
        try:
            with crashing(at):
                save(root, 2, "b", keep=keep)
        except Crash:
            pass
        found = steps_that_verify(root)
        assert found in ([1], [2, 1], [2]), (at, found)
        seen.add(tuple(found))
        save(root, 2, "c", attempt="lm-1.2", keep=keep)  # the next attempt
        assert steps_that_verify(root) == [2], at
        assert all("-c." in name for name in (root / folder_name(2)).names() if name != MANIFEST), at
    assert seen == {(1,), (2, 1), (2,)}


def test_a_url_that_is_no_place_for_checkpoints_is_refused(s3: Seaweed) -> None:
    for url in ("memory://", f"s3://{BUCKET}", f"s3://{BUCKET}/", "s3:///x", "ftp://host/x", "s3://key:secret@bkt/x"):
        with pytest.raises(SetupError, match="checkpoints") as caught:
            folder_at(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(NotFound, match="holds no checkpoint"):
        listed(f"s3://{BUCKET}/nothing-here")
    with pytest.raises(SetupError, match="there is no bucket"):
        listed("s3://no-such-bucket/x")
