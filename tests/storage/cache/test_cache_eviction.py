"""What leaves a full cache: pure choices, and a thousand histories of processes that come, hold, fail and die."""

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.storage.cache import needs
from phalanx.storage.cache.evict import to_evict
from phalanx.storage.cache.index import Index, Taken, Unit
from tests.drawn import examples

SIZES = st.integers(1, 9)
UNITS = st.dictionaries(st.integers(0, 20), SIZES, max_size=12)


@settings(max_examples=examples(150))
@given(
    units=UNITS,
    held=st.sets(st.integers(0, 20)),
    due=st.dictionaries(st.integers(0, 20), st.integers(0, 6)),
    free=st.integers(0, 60),
    beyond=st.integers(-1, 5),
)
def test_it_frees_enough_by_what_is_needed_last(
    units: dict[int, int], held: set[int], due: dict[int, int], free: int, beyond: int
) -> None:
    line = list(units.items())
    found = to_evict(line, held, due.get, free, beyond)
    may = {key for key in units if key not in held and due.get(key, beyond + 1) > beyond}
    if found is None:
        assert sum(units[key] for key in may) < free
        return
    assert set(found) <= may
    assert len(set(found)) == len(found)
    assert sum(units[key] for key in found) >= free
    assert sum(units[key] for key in found[:-1]) < max(free, 1), "no more than is needed"
    ranks = [(key in due, -due.get(key, 0)) for key in found]
    assert ranks == sorted(ranks)
    kept = may - set(found)
    if found and found[-1] in due:
        assert all(key in due and due[key] <= due[found[-1]] for key in kept), "what is kept is needed sooner"
    elif found:
        order = [key for key in units if key in may and key not in due]
        assert order[: len(found)] == found, "the oldest first"


@given(st.lists(st.dictionaries(st.integers(0, 2**60), st.integers(0, 2**40), max_size=8), max_size=4), st.integers(0, 2**60))
def test_needs_of_all_are_read_as_they_were_written(each: list[dict[int, int]], other: int) -> None:
    read = [needs.unpacked(needs.packed(due)) for due in each]
    for key in {other, *(key for due in each for key in due)}:
        assert needs.distance(read, key) == min((due[key] for due in each if key in due), default=None)


class World:
    """The index, the files that its caller makes and removes, and what processes hold and fetch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.index = Index(Path(":memory:"))
        self.index.make([])
        self.limit = self.random.randrange(12, 40)
        self.units = [Unit(f"{content:064x}", number, self.random.randrange(1, 5)) for content in range(3) for number in range(6)]
        self.files: set[tuple[str, int]] = set()
        self.held: dict[int, Counter[Unit]] = {}
        self.fetching: dict[int, set[Unit]] = {}
        self.enter()

    def enter(self) -> None:
        process = self.index.enter(self.limit)
        self.held[process], self.fetching[process] = Counter(), set()

    def remove(self, sha256: str, number: int) -> None:
        self.files.discard((sha256, number))
        assert not any((unit.sha256, unit.number) == (sha256, number) for one in self.held.values() for unit in one)

    def step(self) -> None:
        process = self.random.choice(list(self.held))
        some = self.random.sample(self.units, self.random.randrange(1, 5))
        match self.random.randrange(7):
            case 0 if len(self.held) < 4:
                self.enter()
            case 0 | 1:
                self.hold(process, some)
            case 2:
                self.ahead(process, some)
            case 3:
                self.end_fetching(process)
            case 4:
                self.release(process)
            case 5:
                due = {self.index.key(unit): self.random.randrange(9) for unit in some}
                self.index.publish(process, needs.packed(due))
            case 6 if len(self.held) > 1:
                self.die(process)

    def hold(self, process: int, some: list[Unit]) -> None:
        room = self.evictable(some)
        taken = self.index.take(process, some, self.remove, lease=True)
        assert (taken is not None) == room, "room is found where there is some"
        self.took(process, taken)
        if taken is not None:
            self.held[process].update(dict.fromkeys(some, 1))

    def evictable(self, some: list[Unit]) -> bool:
        """Whether they fit once all is gone that nobody holds or fetches."""
        busy = {unit for one in self.held.values() for unit in one} | {unit for one in self.fetching.values() for unit in one}
        present = {unit for unit in self.units if (unit.sha256, unit.number) in self.files}
        return sum(unit.size_bytes for unit in busy | set(some) | (present & busy)) <= self.limit

    def ahead(self, process: int, some: list[Unit]) -> None:
        self.took(process, self.index.take(process, some, self.remove, lease=False, beyond=self.random.randrange(9)))

    def took(self, process: int, taken: Taken | None) -> None:
        if taken is not None:
            assert not any(unit in one for one in self.fetching.values() for unit in taken.mine), "one fetches a unit"
            assert all(unit in self.fetching[who] for unit, who in taken.others)
            self.fetching[process].update(taken.mine)

    def end_fetching(self, process: int) -> None:
        for unit in sorted(self.fetching[process], key=self.units.index)[:2]:
            self.fetching[process].discard(unit)
            if self.random.random() < 0.8:
                self.files.add((unit.sha256, unit.number))
                self.index.fetched([unit])
            else:
                self.lost([unit])
                self.index.forget([unit], self.remove, process)

    def lost(self, units: Iterable[Unit]) -> None:
        """Whoever waits for them gives up."""
        for who, held in self.held.items():
            self.index.release(who, list(units))
            for unit in units:
                held.pop(unit, None)

    def release(self, process: int) -> None:
        units = list(self.held[process])[:3]
        self.index.release(process, units)
        for unit in units:
            del self.held[process][unit]

    def die(self, process: int) -> None:
        fetching = self.fetching.pop(process)
        del self.held[process]
        whole = {unit for unit in fetching if self.random.random() < 0.5}
        self.files |= {(unit.sha256, unit.number) for unit in whole}
        self.lost(fetching - whole)
        self.index.leave(process, lambda unit: (unit.sha256, unit.number) in self.files)

    def check(self) -> None:
        reserved = {(unit.sha256, unit.number) for one in self.fetching.values() for unit in one}
        there = [unit for unit in self.units if (unit.sha256, unit.number) in self.files | reserved]
        total = sum(unit.size_bytes for unit in there)
        assert self.index.held_bytes() == total <= self.limit
        for one in self.held.values():
            assert all((unit.sha256, unit.number) in self.files | reserved for unit in one), "nothing held is removed"


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    """SQLite gives up the transaction by itself then, and what was learnt in it is not so."""
    index = Index(tmp_path / "index")
    index.make([])
    process = index.enter(10**9)
    some = [Unit(f"{number:064x}", 0, 1) for number in range(4000)]
    index._db.execute(f"PRAGMA max_page_count={index._db.execute('PRAGMA page_count').fetchone()[0] + 1}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        index.take(process, some, lambda *_: None, lease=True)
    index._db.execute("PRAGMA max_page_count=100000")
    found = []
    for unit in reversed(some[:9]):
        taken = index.take(process, [unit], lambda *_: None, lease=True)
        assert taken is not None
        assert taken.mine == [unit]
    index.forget(some[:9], lambda *unit: found.append(unit), process)
    assert found == [(unit.sha256, 0) for unit in some[:9]]
    assert index.held_bytes() == 0
    index.close()


def test_a_smaller_limit_takes_all_that_nobody_holds(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.make([])
    process, units = index.enter(9), [Unit(f"{number:064x}", 0, 3) for number in range(3)]
    index.take(process, units, lambda *_: None, lease=True)
    index.fetched(units)
    index.release(process, units[1:])
    index.enter(2)
    removed = []
    index.shrink(lambda sha256, _: removed.append(sha256))
    assert removed == [unit.sha256 for unit in units[1:]]
    index.close()


def test_a_thousand_histories_keep_to_the_limit_and_lose_nothing_that_is_held() -> None:
    for seed in range(1000):
        world = World(seed)
        for _ in range(18):
            world.step()
            world.check()
        world.index.close()
