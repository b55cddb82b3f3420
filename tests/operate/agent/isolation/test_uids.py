"""A user is one attempt's alone for as long as anything of it lives, whoever dies meanwhile."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId
from phalanx.operate.agent.isolation.uids import Uids, ended, users_alive

NOBODY: dict[int, list[int]] = {}
ONE, TWO = AttemptId("demo-1.1"), AttemptId("demo-2.1")


def pool(folder: Path, count: int = 4, alive: dict[int, list[int]] = NOBODY) -> Uids:
    return Uids(folder / "uids", 300_000, count, lambda: alive)


def test_two_attempts_never_have_the_same_and_each_keeps_its_own(tmp_path: Path) -> None:
    one, two = pool(tmp_path).take(ONE, alike=False), pool(tmp_path).take(TWO, alike=False)
    assert one != two and {one, two} <= set(pool(tmp_path).all)
    assert pool(tmp_path).take(ONE, alike=False) == one == pool(tmp_path).of(ONE), "an agent that was started again knows"
    assert pool(tmp_path).release(ONE) and pool(tmp_path).release(ONE) and pool(tmp_path).of(ONE) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40))
def test_whatever_comes_and_goes_none_is_shared(moves: list[tuple[bool, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        users, held = pool(Path(name), 9), dict[str, int]()
        for takes, number in moves:
            attempt = AttemptId(f"demo-{number}.1")
            if takes:
                held[attempt] = users.take(attempt, alike=False)
            elif held.pop(attempt, None) is not None:
                assert users.release(attempt)
            assert len(set(held.values())) == len(held)


def test_a_job_tends_to_have_the_same_again(tmp_path: Path) -> None:
    users, again = pool(tmp_path, 65_536), AttemptId("demo-1.2")
    first = users.take(ONE, alike=False, seed="of demo-1")
    users.release(ONE)
    assert users.take(again, alike=False, seed="of demo-1") == first
    users.release(again)
    assert users.take(again, alike=False, seed="of another home", owner=first) == first, "whose its folder is"
    assert users.take(TWO, alike=False, owner=first) != first, "but not while somebody has it"
    assert users.take(AttemptId("demo-3.1"), alike=False, owner=0) in users.all, "nor one that is not of the pool"


def test_a_jobs_name_does_not_say_its_user(tmp_path: Path) -> None:
    """Its owner chooses the name, and would choose with it whose files that lie about are its own."""
    for alike, seeds in ((False, ("", "")), (False, ("one", "two")), (True, ("one", "two"))):
        here, there = pool(tmp_path / f"{alike}{seeds}a", 65_536), pool(tmp_path / f"{alike}{seeds}b", 65_536)
        assert here.take(ONE, alike, seeds[0]) != there.take(ONE, alike, seeds[1])


def test_one_with_a_living_process_is_not_taken(tmp_path: Path) -> None:
    free = pool(tmp_path, 2).take(ONE, alike=False)
    pool(tmp_path).release(ONE)
    assert pool(tmp_path, 2, {free: [1]}).take(ONE, alike=False) != free


def test_a_pool_that_is_used_up_says_so(tmp_path: Path) -> None:
    pool(tmp_path, 1).take(ONE, alike=False)
    with pytest.raises(SetupError, match=r"300000 to 300000.*all are in use"):
        pool(tmp_path, 1).take(TWO, alike=False)


def test_nodes_of_one_attempt_come_to_the_same_or_to_none(tmp_path: Path) -> None:
    here, there = pool(tmp_path / "a", 65_536), pool(tmp_path / "b", 65_536)
    there.take(TWO, alike=False)
    uid = here.take(ONE, alike=True, seed="of demo-1.1")
    assert there.take(ONE, alike=True, seed="of demo-1.1", owner=300_003) == uid
    there.release(ONE)
    taken = pool(tmp_path / "b", 65_536, {uid: [1]})
    with pytest.raises(SetupError, match="all nodes of the attempt"):
        taken.take(ONE, alike=True, seed="of demo-1.1")
    assert pool(tmp_path / "c").take(ONE, alike=True) == pool(tmp_path / "d").take(ONE, alike=True), "of an older control plane"


def test_what_a_crash_left_is_free_again_once_nobody_holds_it(tmp_path: Path) -> None:
    users = pool(tmp_path)
    kept, left = users.take(ONE, alike=False), users.take(TWO, alike=False)
    (tmp_path / "uids" / ".300001").write_text("half a wr")
    again = pool(tmp_path)
    again.recover([ONE])
    assert again.of(ONE) == kept and again.of(TWO) is None and left != kept


@pytest.mark.needs_root
def test_it_is_free_only_when_its_processes_are_ended(tmp_path: Path) -> None:
    users = Uids(tmp_path / "uids", 300_000, 4)
    uid = users.take(ONE, alike=False)
    lives = subprocess.Popen(["sleep", "600"], user=uid, group=uid, extra_groups=[])
    assert lives.pid in users_alive()[uid]
    assert users.release(ONE)
    assert lives.wait(60) == -9 and uid not in users_alive()
    assert ended(uid) and os.getpid() in users_alive()[0]
