"""A range that is later than nearly all before is asked for again, and the first answer counts."""

import threading
from collections.abc import Callable

import pytest

from phalanx.storage.hedged import AFTER_S_MIN, HEDGES_AT_ONCE, SEEN_MIN, HedgedReads, Times


def test_late_is_what_comes_after_nearly_all_of_its_size() -> None:
    times = Times()
    for number in range(SEEN_MIN - 1):
        times.add(2**20, 0.1 + number / 1000)
    assert times.late_s(2**20) is None, "too few to tell"
    times.add(2**20 + 5, 9.0)
    assert times.late_s(2**20) == 9.0
    for _ in range(80):
        times.add(2**20, 0.1)
    assert times.late_s(2**20) == pytest.approx(0.115)
    assert times.late_s(2**23) is None, "of another size nothing is known"
    for _ in range(SEEN_MIN):
        times.add(5, 0.0001)
    assert times.late_s(5) == AFTER_S_MIN


class Store:
    """Answers each request by the next of `plan`, in the order in which they come, and at once where none is left."""

    def __init__(self, *plan: Callable[[], bytes]) -> None:
        self._plan = iter(plan)
        self._lock = threading.Lock()

    def read(self, key: str, start: int, length: int) -> memoryview:
        with self._lock:
            answer = next(self._plan, lambda: b"at once")
        return memoryview(answer())


@pytest.fixture
def never() -> threading.Event:
    return threading.Event()


def warm(store: Store) -> HedgedReads:
    reads = HedgedReads(store.read, threads=4)
    for _ in range(SEEN_MIN):
        reads._times.add(7, 0.001)
    return reads


def stuck(event: threading.Event) -> Callable[[], bytes]:
    def answer() -> bytes:
        assert event.wait(60)
        return b"too late"

    return answer


def fails() -> bytes:
    raise ValueError("refused")


def test_a_late_answer_is_not_waited_for(never: threading.Event) -> None:
    reads = warm(Store(stuck(never), lambda: b"second."))
    assert bytes(reads.read("key", 0, 7)) == b"second."
    assert (reads.hedges, reads.won) == (1, 1)
    never.set()


def test_the_first_may_still_win_when_the_second_fails(never: threading.Event) -> None:
    def second() -> bytes:
        never.set()
        return fails()

    reads = warm(Store(stuck(never), second))
    assert bytes(reads.read("key", 0, 7)) == b"too late"
    assert (reads.hedges, reads.won) == (1, 0)


def test_errors_of_both_are_an_error_and_of_the_first_alone_at_once(never: threading.Event) -> None:
    with pytest.raises(ValueError, match="refused"):
        warm(Store(fails)).read("key", 0, 7)

    def late() -> bytes:
        assert never.wait(60)
        return fails()

    def second() -> bytes:
        never.set()
        return fails()

    with pytest.raises(ValueError, match="refused"):
        warm(Store(late, second)).read("key", 0, 7)


def test_a_store_that_is_slow_for_everyone_is_not_flooded(never: threading.Event) -> None:
    reads = warm(Store(*[stuck(never)] * 8))
    threads = [threading.Thread(target=reads.read, args=("key", 0, 7)) for _ in range(4)]
    for thread in threads:
        thread.start()
    threads[0].join(0.5)
    assert reads.hedges <= HEDGES_AT_ONCE
    never.set()
    for thread in threads:
        thread.join(60)
