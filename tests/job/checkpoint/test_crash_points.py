"""Ends at every call of a save that changes the disk: what was committed stays whole, and the next try succeeds."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from phalanx.job.checkpoint import manifest, shard_file
from phalanx.job.checkpoint.commit import Content, Saved, announce, commit_when_whole
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.retention import Keep, remove, superfluous
from phalanx.job.checkpoint.shard_file import Part, SaveKey
from phalanx.job.checkpoint.whole import TensorSpec, verify

RANKS, LENGTH = 2, 1000
CALLS = ("write", "fsync", "replace", "link", "rename", "unlink", "rmdir", "mkdir")


class Crash(BaseException):
    """The process is gone: nothing of ours runs any more that could tidy up."""


def save(root: Path, step: int, token: str, attempt: str) -> None:
    """As two ranks and the committer do it, one after the other, and then what retention does."""
    folder, key = root / manifest.folder_name(step), SaveKey(step=step, save=token, attempt=attempt)
    for rank in range(RANKS):
        part = Part(name="w", dtype="U8", shape=(RANKS * LENGTH,), start=(rank * LENGTH,), size=(LENGTH,))
        data = memoryview(bytes([step]) * LENGTH)
        announce(folder, shard_file.write(folder, [(part, data)], key=key, rank=rank))
    origin = Origin(config="", data="", world_size=RANKS, layout={"dp": RANKS})
    tensors = {"w": TensorSpec(dtype="U8", shape=(RANKS * LENGTH,))}
    saved = commit_when_whole(folder, key, Content(origin=origin, dtype="", extra={}, tensors=tensors), patience_s=0)
    assert isinstance(saved, Saved), saved
    remove(superfluous(root, step, Keep(last=1)))


@contextmanager
def crashing(at: int) -> Iterator[list[str]]:
    """From the `at`-th of these calls on, none is made: the first raises, and so do those of whoever would tidy up. The names of
    the calls that were asked for."""
    asked: list[str] = []

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            asked.append(name)
            if len(asked) > at:
                raise Crash
            return real(*arguments, **named)

        return call

    with ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(patch.object(os, name, guarded(name, getattr(os, name))))
        yield asked


def steps_that_verify(root: Path) -> list[int]:
    return [verify(folder).manifest.step for _, folder in manifest.committed(root)]


def test_whatever_call_a_save_ends_at_the_committed_ones_are_whole_and_the_next_try_succeeds(tmp_path: Path) -> None:
    with crashing(10_000) as asked:
        save(tmp_path / "counted", 1, "a", "lm-1.1")
    kinds = set(asked)
    assert {"write", "fsync", "link"} <= kinds and len(asked) > 20
    seen = set()
    for at in range(len(asked) + 12):  # and what the second save has to remove
        root = tmp_path / f"at-{at}"
        save(root, 1, "a", "lm-1.1")
        try:
            with crashing(at):
                save(root, 2, "b", "lm-1.1")
            ended = "whole"
        except Crash:
            ended = "crashed"
        found = steps_that_verify(root)
        assert found in ([1], [2, 1], [2]), (at, found)
        seen.add((ended, tuple(found)))
        save(root, 2, "c", "lm-1.2")  # the next attempt
        assert steps_that_verify(root) == [2], at
        left = sorted(path.name for path in root.rglob("*") if path.is_file())
        assert all("-c." in name for name in left if name not in ("manifest.json", "attempt.json")), (at, left)
    assert {found for _, found in seen} == {(1,), (2, 1), (2,)} and ("whole", (2,)) in seen


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_disk_that_refuses_one_call_costs_the_save_and_nothing_else(tmp_path: Path, call: str) -> None:
    save(tmp_path, 1, "a", "")

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    from phalanx.core.errors import StoreUnavailable

    with patch.object(os, call, refused), pytest.raises((StoreUnavailable, AssertionError), match="Input/output error"):
        save(tmp_path, 2, "b", "")
    assert steps_that_verify(tmp_path) == [1]
