"""How many snapshots ranks of a node take memory for, before any of them takes it."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import SetupError
from phalanx.job.checkpoint import fitting
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.keeper.segments import SPARE_BYTES
from phalanx.job.checkpoint.segment import layout_of
from phalanx.job.checkpoint.shard_file import Part

PARTS = [Part(name="weight", dtype="U8", shape=(1 << 20,), start=(0,), size=(1 << 20,))]
SIZE = layout_of(PARTS).size_bytes


class Copier:
    """Without memory; notes for how many snapshots it is asked."""

    memory = None

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder=folder, slot=0)
        self.asked: list[int] = []
        self.given_back = 0

    def rest(self) -> None: ...

    def begin_fit(self, parts: object, buffers: int) -> None:
        self.asked.append(buffers)

    def has_fit(self, wait_s: float) -> bool:
        return True

    def end_fit(self) -> Any:
        return self

    def give_back(self) -> None:
        self.given_back += 1


def test_ranks_that_want_or_have_other_numbers_agree_on_the_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a survivor goes on with and what a new process wants; a keeper's memory that stays, and another's that is new."""
    copier = Copier(tmp_path)
    copier.buffers = 3  # type: ignore[attr-defined]  # it is there already
    monkeypatch.setattr(fitting, "told_by_all", lambda mine: [mine, (*mine[:-1], 2) if isinstance(mine, tuple) else mine])
    assert fitting.Fitting(copier, PARTS, 3).finish() == (copier, 2)  # type: ignore[arg-type,comparison-overlap]  # stands for one
    assert copier.asked == [2]


def test_nobody_has_memory_before_all_have_and_all_try_with_fewer_when_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, others = Copier(tmp_path), {"are ready": False, "refused": True}

    def told(mine: object) -> list[object]:
        if isinstance(mine, bool):
            return [mine, others["are ready"]]
        if others["refused"] and isinstance(mine, tuple) and len(mine) == 2:
            return [mine, (SetupError("checkpoint memory", "3", "give it more"), 0)]
        return [mine, mine]

    monkeypatch.setattr(fitting, "told_by_all", told)
    copier.buffers = 3  # type: ignore[attr-defined]  # as of the memory that it gets
    taken = fitting.Fitting(copier, PARTS, 3)  # type: ignore[arg-type]  # stands for one
    assert taken.ready() is None
    others["are ready"] = True
    assert taken.ready() is None, "another was refused"
    assert (copier.asked, copier.given_back) == ([3, 2], 1)
    others["refused"] = False
    assert taken.ready() == (copier, 3)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("free", "ranks", "wanted"),
    [(100 * SIZE, 2, 3), (5 * SIZE, 2, 2), (6 * SIZE, 2, 3), (SIZE, 2, 2), (5 * SIZE, 1, 3)],
)
def test_it_asks_at_once_for_what_all_ranks_of_the_node_have_room_for(
    free: int, ranks: int, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = Copier(tmp_path)
    copier.buffers = wanted  # type: ignore[attr-defined]  # as of the memory that it gets
    monkeypatch.setattr(fitting, "free_bytes", lambda: free + SPARE_BYTES)
    monkeypatch.setattr(fitting, "told_by_all", lambda mine: [mine] * ranks)
    assert fitting.Fitting(copier, PARTS, 3).finish()[1] == wanted  # type: ignore[arg-type]  # stands for one
    assert copier.asked == [wanted]
