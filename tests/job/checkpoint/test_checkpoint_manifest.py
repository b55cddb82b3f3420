"""Manifest and indexes alone, with shards of one rank: what they refuse, and what retention removes. Without torch."""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from phalanx.core import wire
from phalanx.core.checkpoints import FENCE
from phalanx.core.errors import CheckpointError, StoreUnavailable
from phalanx.job.checkpoint import commit, disk_folder, manifest, shard_file
from phalanx.job.checkpoint.commit import Content, Saved, SaveFailed, announce, announce_failure, commit_when_whole
from phalanx.job.checkpoint.fence import Holder, hold
from phalanx.job.checkpoint.manifest import MANIFEST, Origin, OtherFormat
from phalanx.job.checkpoint.retention import Keep, remove, superfluous
from phalanx.job.checkpoint.save import SavePolicy
from phalanx.job.checkpoint.shard_file import Damaged, Part, SaveKey, ShardIndex
from phalanx.job.checkpoint.whole import TensorSpec, open_checkpoint, verify

ORIGIN = Origin(config="c", data="d", world_size=1, layout={"dp": 1})
ROWS = 6


def row_part(first: int, count: int) -> tuple[Part, memoryview]:
    """Rows of a [6, 2] tensor of int16 that counts up."""
    numbers = b"".join(number.to_bytes(2, "little") for number in range(2 * first, 2 * (first + count)))
    return Part(name="w", dtype="I16", shape=(ROWS, 2), start=(first, 0), size=(count, 2)), memoryview(numbers)


def content(world_size: int = 1, metrics: dict[str, float] | None = None) -> Content:
    return Content(
        origin=replace(ORIGIN, world_size=world_size), dtype="fp32", extra={"loss": "0x1.8p+0"}, metrics=metrics or {},
        tensors={"w": TensorSpec(dtype="I16", shape=(ROWS, 2))},
    )  # fmt: skip


def put(folder: Path, key: SaveKey, rank: int, *parts: tuple[Part, memoryview]) -> ShardIndex:
    index = shard_file.write(folder, parts, key=key, rank=rank)
    announce(folder, index)
    return index


def make(root: Path, step: int, save: str = "s1", attempt: str = "", metrics: dict[str, float] | None = None) -> Path:
    folder = root / manifest.folder_name(step)
    key = SaveKey(step=step, save=save, attempt=attempt)
    put(folder, key, 0, row_part(0, 4), row_part(4, 2))
    saved = commit_when_whole(folder, key, content(metrics=metrics), patience_s=0)
    assert isinstance(saved, Saved), saved
    return folder


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = make(tmp_path, 7)
    checkpoint = verify(folder)
    read = checkpoint.manifest
    assert (read.step, read.attempt, read.origin, read.extra) == (7, "", ORIGIN, {"loss": "0x1.8p+0"})
    assert len(checkpoint.digest) == 64 and [one.entry.start for one in checkpoint.tensors["w"]] == [(0, 0), (4, 0)]
    assert read.size_bytes == sum(path.stat().st_size for path in folder.iterdir() if path.name != MANIFEST)


def test_a_shard_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = make(tmp_path, 1)
    shard = open_checkpoint(folder).shards[0]
    tensors = load_file(folder / shard.file)
    assert {name: tensor.flatten().tolist() for name, tensor in tensors.items()} == {"w@0,0": [*range(8)], "w@4,0": [*range(8, 12)]}


def test_who_may_read_one_is_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = make(tmp_path, 1)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}


DAMAGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "shard gone": (lambda _, shard: shard.unlink(), r"shard-00000-s1\.safetensors.*cannot be opened"),
    "shard cut short": (lambda _, shard: os.truncate(shard, 70), "has 70 bytes instead of"),
    "shard a link": (lambda _, shard: link(shard), "cannot be opened"),
    "header flipped": (lambda _, shard: flip(shard, 20), "its header does not match"),
    "part flipped": (lambda _, shard: flip(shard, -1), "w@4,0 does not match its checksum"),
    "index gone": (lambda folder, _: (folder / "part-00000-s1.json").unlink(), "part-00000-s1.json.*is missing"),
    "index flipped": (lambda folder, _: flip(folder / "part-00000-s1.json", 40), "part-00000-s1.json.*checksum"),
    "index longer": (lambda folder, _: append(folder / "part-00000-s1.json"), "part-00000-s1.json.*checksum"),
}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    damage, said = DAMAGES[name]
    folder = make(tmp_path, 1)
    damage(folder, folder / "shard-00000-s1.safetensors")
    with pytest.raises(Damaged, match=said):
        verify(folder)


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "file out of the folder": ({"file": "../shard"}, "out of the folder"),
    "part before the data": ({"parts": [{"offset": 0}]}, "outside of its tensor or file"),
    "part after the end": ({"parts": [{"offset": 1 << 40}]}, "outside of its tensor or file"),
    "another length": ({"parts": [{"length": 2}]}, "outside of its tensor or file"),
    "outside of the tensor": ({"parts": [{"start": [5, 0]}]}, "outside of its tensor or file"),
    "nothing of a tensor": ({"parts": [{"size": [0, 2], "length": 0}]}, "outside of its tensor or file"),
    "below the tensor": ({"parts": [{"start": [-1, 0]}]}, "outside of its tensor or file"),
    "dimensions missing": ({"parts": [{"shape": [ROWS]}]}, "outside of its tensor or file"),
    "an unknown type": ({"parts": [{"dtype": "OBJECT"}]}, "outside of its tensor or file"),
    "an overlap": ({"parts": [{"start": [2, 0]}]}, "w.*parts that overlap"),
    "two types": ({"parts": [{"dtype": "U16"}]}, "two types or shapes"),
    "no text": ({"rank": "x"}, "is not a shard's index"),
    "of another save": ({"key": {"step": 1, "save": "s2"}}, "is of another save"),
    "of another rank": ({"rank": 1}, "one shard for each of 1 ranks"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_index_that_lies_is_refused_even_with_hashes_that_fit(tmp_path: Path, name: str) -> None:
    change, said = HOSTILE[name]
    folder = make(tmp_path, 1)
    plain = wire.plain(ShardIndex, open_checkpoint(folder).shards[0])
    for key, value in change.items():
        plain[key] = [{**plain[key][0], **value[0]}, *plain[key][1:]] if key == "parts" else value
    data = json.dumps(plain).encode()
    (folder / "part-00000-s1.json").write_bytes(data)
    read, _ = manifest.read(folder)
    listed = replace(read.indexes[0], size_bytes=len(data), blake3=blake3(data).hexdigest())
    manifest.commit(folder, replace(read, indexes=(listed,)))
    with pytest.raises(Damaged, match=said):
        open_checkpoint(folder)


def test_a_manifest_that_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    read, _ = manifest.read(folder)
    manifest.commit(folder, replace(read, indexes=(replace(read.indexes[0], name="../part-00000-s1.json"),)))
    with pytest.raises(Damaged, match="out of the folder"):
        open_checkpoint(folder)


def test_the_manifest_of_another_checkpoint_fits_nothing(tmp_path: Path) -> None:
    folder, other = make(tmp_path / "a", 1), make(tmp_path / "b", 1, save="s2")
    (folder / MANIFEST).write_bytes((other / MANIFEST).read_bytes())
    with pytest.raises(Damaged, match=r"part-00000-s2\.json.*is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{}", "null", '{"sha256": 1}', '{"manifest": {"format": 2}}'])
def test_what_is_not_a_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path, 1)
    (folder / MANIFEST).write_text(text)
    with pytest.raises(Damaged, match=r"manifest\.json"):
        manifest.read(folder)


def test_a_changed_number_in_the_manifest_is_noticed(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    path = folder / MANIFEST
    path.write_text(path.read_text().replace("0x1.8p+0", "0x1.9p+0"))
    with pytest.raises(Damaged, match="own checksum"):
        manifest.read(folder)


def test_an_older_version_s_checkpoint_is_refused_by_its_number(tmp_path: Path) -> None:
    inner = '{"step":4,"origin":{},"dtype":"fp32","extra":{"x":1e-05},"files":[],"attempt":"lm-1.1","format":2}'
    folder = tmp_path / "step-00000004"
    folder.mkdir()
    sealed = f'{{"sha256":"{hashlib.sha256(inner.encode()).hexdigest()}","manifest":{inner}}}'
    (folder / MANIFEST).write_text(sealed)
    with pytest.raises(OtherFormat, match="has format 2, this version reads 3; use the version that wrote it"):
        manifest.read(folder)
    (folder / MANIFEST).write_text(sealed.replace('"step":4', '"step":5'))  # then it may be a flipped bit as well
    with pytest.raises(Damaged):
        manifest.read(folder)


# Committing without a collective


class Clock:
    """Time that passes only in pauses, in each of which something may happen."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self.now, self.happens = 0.0, list(happens)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        if self.happens:
            self.happens.pop(0)()


def commit_with(clock: Clock, folder: Path, key: SaveKey, patience_s: float = 1.0) -> Saved | SaveFailed:
    return commit_when_whole(folder, key, content(2), patience_s=patience_s, clock_s=lambda: clock.now, pause=clock.pause)


def test_the_committer_waits_for_the_last_rank(tmp_path: Path) -> None:
    folder, key = tmp_path / "step-00000001", SaveKey(step=1, save="a")
    put(folder, key, 0, row_part(0, 3))
    clock = Clock(lambda: None, lambda: put(folder, key, 1, row_part(3, 3)))
    assert isinstance(commit_with(clock, folder, key), Saved)
    assert [shard.rank for shard in verify(folder).shards] == [0, 1]


def test_a_rank_that_never_comes_fails_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    folder, key = tmp_path / "step-00000001", SaveKey(step=1, save="a")
    put(folder, key, 0, row_part(0, 3))
    assert commit_with(Clock(), folder, key) == SaveFailed(step=1, reason="no shard of rank 1 within 1 s")
    assert not folder.exists()


def test_a_rank_that_cannot_write_says_so_and_nobody_waits(tmp_path: Path) -> None:
    folder, key = tmp_path / "step-00000001", SaveKey(step=1, save="a")
    put(folder, key, 0, row_part(0, 3))
    announce_failure(folder, key, 1, "No space left on device")
    assert commit_with(Clock(), folder, key) == SaveFailed(step=1, reason="rank 1: No space left on device")
    assert not folder.exists()


def test_a_save_that_nobody_needs_any_more_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, key, clock = tmp_path / "step-00000001", SaveKey(step=1, save="a"), Clock()
    put(folder, key, 0, row_part(0, 3))
    put(folder, key, 1, row_part(3, 3))

    def away(*_: object) -> str:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(manifest, "commit", away)
    failed = commit_when_whole(
        folder,
        key,
        content(2),
        patience_s=600,
        clock_s=lambda: clock.now,
        pause=clock.pause,
        given_up=lambda: "the attempt has ended",
    )
    assert isinstance(failed, SaveFailed) and failed.reason.startswith("the attempt has ended: ") and clock.now == 0


def test_parts_of_an_earlier_try_are_never_merged(tmp_path: Path) -> None:
    folder, old, new = tmp_path / "step-00000001", SaveKey(step=1, save="old"), SaveKey(step=1, save="new")
    put(folder, old, 0, row_part(0, 3))
    put(folder, old, 1, row_part(3, 3))
    put(folder, new, 0, row_part(0, 3))
    assert isinstance(commit_with(Clock(), folder, new), SaveFailed)
    put(folder, new, 0, row_part(0, 3))
    put(folder, new, 1, row_part(3, 3))
    assert isinstance(commit_with(Clock(), folder, new), Saved)
    assert sorted(path.name for path in folder.iterdir() if "old" in path.name) == []


def test_a_failed_save_leaves_the_one_of_the_same_step_alone(tmp_path: Path) -> None:
    folder = make(tmp_path, 1)
    key = SaveKey(step=1, save="s2")
    put(folder, key, 0, row_part(0, 6))
    assert isinstance(commit_with(Clock(), folder, key), SaveFailed)
    assert verify(folder).manifest.key.save == "s1"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([row_part(0, 2), row_part(3, 3)], "w.*a hole or an overlap"),
        ([row_part(0, 3), row_part(2, 3)], "w.*parts that overlap"),
        ([], "w.*is part of this run but not saved"),
    ],
)
def test_a_save_with_a_hole_is_not_committed(tmp_path: Path, parts: list[tuple[Part, memoryview]], said: str) -> None:
    import re

    folder, key = tmp_path / "step-00000001", SaveKey(step=1, save="a")
    put(folder, key, 0, *parts)
    failed = commit_when_whole(folder, key, content(), patience_s=0)
    assert isinstance(failed, SaveFailed) and re.search(said, failed.reason), failed
    assert not folder.exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    key = SaveKey(step=1, save="a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"File too large|No space"):
            put(tmp_path / "step-00000001", key, 0, row_part(0, 6), big_part())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "step-00000001").iterdir()) == []


def big_part() -> tuple[Part, memoryview]:
    return Part(name="big", dtype="U8", shape=(4096,), start=(0,), size=(4096,)), memoryview(bytes(4096))


def test_the_newest_attempt_and_generation_hold_the_folder(tmp_path: Path) -> None:
    hold(tmp_path, Holder(attempt="lm-1.2", generation=1))
    assert (tmp_path / FENCE).exists()
    hold(tmp_path, Holder(attempt="lm-1.2", generation=2))
    for older in (Holder(attempt="lm-1.2", generation=1), Holder(attempt="lm-1.1", generation=9)):
        with pytest.raises(CheckpointError, match="may write no more"):
            hold(tmp_path, older)
    hold(tmp_path, Holder(attempt="lm-1.10"))  # by number, not by letters
    hold(tmp_path, Holder(attempt="lm-2.1"))
    hold(tmp_path, Holder())


def test_a_zombie_that_was_past_the_fence_does_not_replace_what_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked, was stopped for long, and goes on after the newer attempt has committed the same step."""
    folder = make(tmp_path, 1, attempt="lm-1.2")
    key = SaveKey(step=1, save="zombie", attempt="lm-1.1")
    put(folder, key, 0, row_part(0, 6))
    real, calls = manifest.check_fence, []

    def first_time_blind(root: Path, holder: Holder) -> None:
        calls.append(holder)
        if len(calls) > 1:
            real(root, holder)

    monkeypatch.setattr(manifest, "check_fence", first_time_blind)
    with pytest.raises(CheckpointError, match=r"lm-1\.1 may write no more"):
        commit_when_whole(folder, key, content(), patience_s=0)
    assert verify(folder).manifest.attempt == "lm-1.2"


def test_who_was_stopped_after_its_manifest_removes_nothing_of_a_newer_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = (SaveKey(step=1, save=f"s{n}", attempt="lm-1.1", generation=n) for n in (1, 2))
    folder = tmp_path / "step-00000001"
    put(folder, older, 0, row_part(0, 6))
    real = commit._clear_others

    def stopped(*what: Any) -> None:
        monkeypatch.setattr(commit, "_clear_others", real)
        hold(tmp_path, Holder(attempt="lm-1.1", generation=2))
        put(folder, newer, 0, row_part(0, 6))
        assert isinstance(commit_when_whole(folder, newer, content(), patience_s=0), Saved)
        real(*what)

    monkeypatch.setattr(commit, "_clear_others", stopped)
    commit_when_whole(folder, older, content(), patience_s=0)
    assert verify(folder).manifest.key == newer


def test_what_came_between_the_look_and_the_removal_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim comes after the fence was looked at once more, the shard with it."""
    key = SaveKey(step=1, save="s1", attempt="lm-1.1", generation=1)
    newer = SaveKey(step=1, save="s2", attempt="lm-1.1", generation=2)
    folder = tmp_path / "step-00000001"
    put(folder, SaveKey(step=1, save="left"), 0, row_part(0, 6))
    put(folder, key, 0, row_part(0, 6))
    real = manifest.check_fence

    def then_claimed(root: Path, holder: Holder) -> None:
        real(root, holder)
        if (folder / MANIFEST).exists():
            put(folder, newer, 0, row_part(0, 6))

    monkeypatch.setattr(manifest, "check_fence", then_claimed)
    assert isinstance(commit_when_whole(folder, key, content(), patience_s=0), Saved)
    tokens = {path.name.split("-")[-1].split(".")[0] for path in folder.iterdir() if path.name != MANIFEST}
    assert tokens == {shard_file.token(one).split("-")[-1] for one in (key, newer)}, sorted(folder.iterdir())


def test_a_fence_that_a_disk_would_not_read_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(tmp_path, Holder(attempt="lm-1.3"))
    real = Path.read_bytes

    def bad_sector(path: Path) -> bytes:
        if path.name == FENCE:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", bad_sector)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        hold(tmp_path, Holder(attempt="lm-1.2"))
    monkeypatch.undo()
    assert '"lm-1.3"' in (tmp_path / FENCE).read_text()


def test_who_was_stopped_with_the_fence_s_lock_is_told_of_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(tmp_path, Holder(attempt="lm-1.1"))
    monkeypatch.setattr(disk_folder, "LOCK_S", 0.2)
    with (tmp_path / FENCE).open("rb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="holds its lock"):
            hold(tmp_path, Holder(attempt="lm-1.2"))
    hold(tmp_path, Holder(attempt="lm-1.2"))  # the lock went with who had it
    assert '"lm-1.2"' in (tmp_path / FENCE).read_text()
    assert [path.name for path in tmp_path.iterdir()] == [FENCE]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_will_do_and_a_broken_one_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    hold(tmp_path, Holder(attempt="lm-1.1"))
    monkeypatch.setattr(fcntl, "flock", refused)
    if code == errno.ENOLCK:
        hold(tmp_path, Holder(attempt="lm-1.2"))
    else:
        with pytest.raises(StoreUnavailable, match="Input/output"):
            hold(tmp_path, Holder(attempt="lm-1.2"))


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert verify(make(tmp_path, 1)).manifest.step == 1
    assert [path.name for path in (tmp_path / "step-00000001").iterdir() if path.name.startswith(".")] == []


# Retention


def test_order_is_by_number_and_strangers_are_left_alone(tmp_path: Path) -> None:
    for step in (9, 100_000_000, 20):
        make(tmp_path, step)
    (tmp_path / "step-notes").mkdir()
    assert [step for step, _ in manifest.committed(tmp_path)] == [100_000_000, 20, 9]
    assert remove(superfluous(tmp_path, 20, Keep(last=1))) == ["step-00000009"]
    assert (tmp_path / "step-notes").exists() and (tmp_path / "step-100000000").exists()


def test_the_newest_is_kept_even_when_none_is_asked_for(tmp_path: Path) -> None:
    make(tmp_path, 1)
    make(tmp_path, 2)
    remove(superfluous(tmp_path, 2, Keep(last=0)))
    assert [step for step, _ in manifest.committed(tmp_path)] == [2]


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (Keep(last=1, best=2, metric="val_loss"), [4, 6, 12]),
        (Keep(last=1, best=1, metric="val_loss"), [6, 12]),  # of equals the newer
        (Keep(last=1, best=1, metric="val_loss", mode="max"), [2, 12]),
        (Keep(last=1, best=3, metric="accuracy"), [12]),  # nobody said it
        (Keep(last=2, every=4), [4, 8, 10, 12]),
        (Keep(last=1, best=1, metric="val_loss", every=8), [6, 8, 12]),
    ],
)
def test_the_best_and_every_so_many_stay_too(tmp_path: Path, keep: Keep, steps: list[int]) -> None:
    losses = {2: 3.0, 4: 1.0, 6: 1.0, 8: float("nan"), 10: 2.0, 12: 2.5}
    for step, loss in losses.items():
        make(tmp_path, step, metrics={"val_loss": loss})
    remove(superfluous(tmp_path, 12, keep))
    assert sorted(step for step, _ in manifest.committed(tmp_path)) == steps


def test_a_save_in_flight_is_not_taken_for_a_leftover(tmp_path: Path) -> None:
    for step in (1, 2):
        put(tmp_path / manifest.folder_name(step), SaveKey(step=step, save="a"), 0, row_part(0, 6))
    make(tmp_path, 3)
    assert [folder.name for folder in superfluous(tmp_path, 3, Keep(last=1), saving={2})] == ["step-00000001"]


def test_when_a_save_is_due() -> None:
    every_four = SavePolicy(root=Path(), every=4)
    assert [step for step in range(1, 11) if every_four.due(step, 10)] == [4, 8, 10]
    never = SavePolicy(root=Path(), every=0)
    assert [step for step in range(1, 11) if never.due(step, 10)] == [10]


def test_what_a_keeper_process_needs_comes_without_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from phalanx.job.checkpoint import commit, fence, manifest, retention, shard_file, whole; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert commit.RNG == "rng."
