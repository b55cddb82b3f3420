"""Leases count from the sending of what was granted; ranks that must not outlive theirs do not, whoever else is dead or paused."""

import functools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import features
from phalanx.core.interruptions import WITH_LEASE
from phalanx.core.messages import StopRanks
from phalanx.operate.agent import boottime, shim
from phalanx.operate.agent.lease import ASKED_MAX, GRACE_MS, HELLO, Lease
from phalanx.operate.control.controller import Settings
from tests.operate.agent.agent_cell import DEADLINE_S, PACE_MS, Cell, alive, until
from tests.operate.agent.test_shim import POLITE, STUBBORN, Order, script

WAIT = "import signal; print('up', flush=True); signal.pause()"
DYING_MS = 5_000
"""More than a killed process was ever seen to need."""
LONG_MS = 20_000
"""Enough for a machine that stalls, and short enough to wait for where it was not made shorter in time."""
SPANS_MS = (1_000, 6_000, 36_000)
"""What must happen within a moment is tried again with more of it: machines stall."""


def test_a_lease_counts_from_the_sending_of_what_was_granted() -> None:
    lease = Lease()
    assert not lease.holds(0)
    lease.sending(HELLO, 1_000)
    assert not lease.holds(1_000), "asking is not having"
    assert lease.granted(HELLO, 500)
    assert (lease.ends_ms, lease.holds(1_499), lease.holds(1_500)) == (1_500, True, False)
    lease.sending(1, 1_400)
    assert lease.granted(1, 500)  # whenever the answer comes
    assert lease.ends_ms == 1_900


def test_a_late_answer_counts_from_its_own_sending_and_an_answer_to_nothing_moves_nothing() -> None:
    lease = Lease()
    for number, at in ((HELLO, 0), (1, 100), (2, 200)):
        lease.sending(number, at)
    assert lease.granted(2, 500)
    assert not lease.granted(1, 900)
    assert not lease.granted(2, 900), "granted once already"
    assert not lease.granted(7, 900), "never asked for"
    assert lease.ends_ms == 700
    lease.sending(HELLO, 300)
    assert not lease.granted(1, 900), "of the connection before"
    assert lease.granted(HELLO, 100)
    assert lease.ends_ms == 400, "the newest grant counts, also where it is the shorter one"


def test_renewals_that_nobody_answers_are_not_kept_without_end() -> None:
    lease = Lease()
    for number in range(10 * ASKED_MAX):
        lease.sending(number + 1, number)
    assert not lease.granted(1, 500)
    assert lease.granted(10 * ASKED_MAX, 500)


@given(
    st.lists(st.tuples(st.sampled_from(("hello", "renew", "grant")), st.integers(0, 8), st.integers(1, 1000)), max_size=60),
)
def test_no_order_of_answers_makes_a_lease_longer_than_its_newest_grant(steps: list[tuple[str, int, int]]) -> None:
    lease, now, number = Lease(), 0, HELLO
    asked: dict[int, int] = {}
    best: tuple[int, int] | None = None
    for what, which, ms in steps:
        now += ms
        if what == "grant":
            if which in asked and (best is None or asked[which] >= best[0]):
                best = (asked[which], ms)
            lease.granted(which, ms)
            asked.pop(which, None)
        else:
            number = HELLO if what == "hello" else number + 1
            asked = {} if what == "hello" else asked
            asked[number] = now
            lease.sending(number, now)
        assert lease.ends_ms == (None if best is None else sum(best))


def test_the_last_rank_is_gone_before_the_control_plane_may_give_it_up() -> None:
    kill_grace_ms: Any = next(field.default for field in fields(Settings) if field.name == "kill_grace_ms")
    assert kill_grace_ms >= GRACE_MS + DYING_MS


@pytest.fixture
def started() -> Iterator[list[Order]]:
    made: list[Order] = []
    yield made
    for order in made:
        if order.process is not None and order.process.poll() is None:
            order.process.kill()
            order.process.wait()


def ordered(folder: Path, started: list[Order], text: str, lease: tuple[int, int] | None, ranks: int = 1) -> Order:
    """A shim at work. `lease`: in how many ms it ends, and its grace."""
    order = Order(folder, [script(text)] * ranks)
    said = json.loads((folder / "shim.json").read_bytes())
    said["lease"] = {"ends_ms": boottime.now_ms() + lease[0], "grace_ms": lease[1]} if lease else None
    (folder / "shim.json").write_text(json.dumps(said))
    started.append(order.start())
    return order


def tell(order: Order, **said: int) -> None:
    """Returns when the shim has heard it, and hung up in turn."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(order.folder / "s"))
        agent.sendall(json.dumps(said).encode() + b"\n")
        agent.shutdown(socket.SHUT_WR)
        while agent.recv(4096):
            pass


def soon(order: Order) -> int:
    """The lease is over in a moment, and not while a slow machine still starts the ranks; when."""
    ends_ms = boottime.now_ms() + 200
    tell(order, lease_ends_ms=ends_ms)
    return ends_ms


def passed(at_ms: int) -> None:
    until(lambda: boottime.now_ms() > at_ms)


def test_when_the_lease_is_over_ranks_are_told_and_the_end_says_why_with_no_agent_about(
    tmp_path: Path, started: list[Order]
) -> None:
    order = ordered(tmp_path / "a", started, POLITE, (60_000, 60_000), ranks=2)
    until(lambda: "up" in order.log(0) and "up" in order.log(1))
    soon(order)
    assert order.end() == [0, 0]
    assert (order.ended["lost"], order.ended["interrupted"]) == (WITH_LEASE, True)


def test_ranks_that_do_not_listen_are_killed_within_the_grace(tmp_path: Path, started: list[Order]) -> None:
    order = ordered(tmp_path / "a", started, STUBBORN, (60_000, 300))
    until(lambda: "up" in order.log())
    ends_ms = soon(order)
    assert order.end() == [-9]
    assert boottime.now_ms() - ends_ms >= 300
    assert order.log() == "up\nTERM\n"
    assert order.ended["lost"] == WITH_LEASE


def test_a_renewed_lease_holds_and_one_that_is_renewed_no_more_ends(tmp_path: Path, started: list[Order]) -> None:
    for span_ms in SPANS_MS:
        order = ordered(tmp_path / str(span_ms), started, WAIT, (60_000, 60_000))
        until(lambda order=order: "up" in order.log())  # type: ignore[misc]  # bound early on purpose
        first_ms = boottime.now_ms() + span_ms
        tell(order, lease_ends_ms=first_ms)
        tell(order, lease_ends_ms=boottime.now_ms() + 60_000)
        if boottime.now_ms() < first_ms:
            break
    passed(first_ms + 200)
    assert order.process is not None
    assert order.process.poll() is None
    soon(order)
    assert order.end() == [-15]
    assert order.ended["lost"] == WITH_LEASE


def test_a_shim_that_slept_through_the_grace_kills_at_once_and_hears_no_renewal_that_came_too_late(
    tmp_path: Path, started: list[Order]
) -> None:
    for span_ms in SPANS_MS:
        order = ordered(tmp_path / str(span_ms), started, STUBBORN, (60_000, 500))
        until(lambda order=order: "up" in order.log())  # type: ignore[misc]  # bound early on purpose
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(order.folder / "s"))
            agent.recv(4096)  # so it is being listened to
            ends_ms = boottime.now_ms() + span_ms
            tell(order, lease_ends_ms=ends_ms)
            assert order.process is not None
            order.process.send_signal(signal.SIGSTOP)
            if boottime.now_ms() >= ends_ms:
                continue
            passed(ends_ms + 500)
            agent.sendall(json.dumps({"lease_ends_ms": boottime.now_ms() + 600_000}).encode() + b"\n")
            order.process.send_signal(signal.SIGCONT)
            assert order.end() == [-9], "at once: it was given no other grace, nor the lease that came too late"
            break
    assert order.ended["lost"] == WITH_LEASE


def test_the_end_of_a_lease_does_not_wait_for_a_disk_that_takes_nothing(tmp_path: Path, started: list[Order]) -> None:
    order = ordered(tmp_path / "a", started, STUBBORN, (60_000, 100))
    way = order.folder / "ended.json" / "in the way"
    way.mkdir(parents=True)
    (order.folder / "exits").rmdir()
    until(lambda: "up" in order.log())
    [pid] = order.pids()
    soon(order)
    until(lambda: not alive(pid))
    until(lambda: "cannot write exits/rank-0.json yet" in order.said())
    assert order.process is not None
    assert order.process.poll() is None, "it still has something to say"
    (order.folder / "exits").mkdir()
    until(lambda: "cannot write ended.json yet" in order.said())
    way.rmdir()
    way.parent.rmdir()
    assert order.end() == [-9]
    assert order.ended["lost"] == WITH_LEASE


def test_nor_for_one_that_hangs(tmp_path: Path, started: list[Order]) -> None:
    order = Order(tmp_path / "a", [script(POLITE), script(STUBBORN)])
    said = json.loads((order.folder / "shim.json").read_bytes())
    said["lease"] = {"ends_ms": boottime.now_ms() + 60_000, "grace_ms": 500}
    (order.folder / "shim.json").write_text(json.dumps(said))
    started.append(order.start())
    until(lambda: "up" in order.log(0) and "up" in order.log(1) and (order.folder / "ranks.json").exists())
    assert order.process is not None
    os.mkfifo(order.folder / "exits" / f".rank-0.json.{order.process.pid}")  # to open it to write waits for a reader
    polite, stubborn = order.pids()
    soon(order)
    until(lambda: not alive(polite))
    until(lambda: not alive(stubborn))


def test_a_lease_that_is_over_before_the_ranks_are_started_starts_none(tmp_path: Path, started: list[Order]) -> None:
    order = ordered(tmp_path / "a", started, WAIT, (-1, 5000), ranks=2)
    assert order.end() == [-15, -15]
    assert order.log(1) == "phalanx: not started, since its node's lease ended\n"
    assert (order.ended["lost"], order.ended["interrupted"]) == (WITH_LEASE, True)


def test_a_job_that_was_stopped_before_is_not_interrupted_but_has_no_longer_than_the_lease(
    tmp_path: Path, started: list[Order]
) -> None:
    order = ordered(tmp_path / "a", started, STUBBORN, (60_000, 100))
    until(lambda: "up" in order.log())
    tell(order, stop=60_000)
    soon(order)
    assert order.end() == [-9]
    assert (order.ended["lost"], order.ended["interrupted"]) == ("", False)


def test_ranks_without_a_lease_are_bound_by_none(tmp_path: Path, started: list[Order]) -> None:
    order = ordered(tmp_path / "a", started, WAIT, None)
    until(lambda: "up" in order.log())
    tell(order, lease_ends_ms=1)
    tell(order, stop=1000)
    order.end()
    assert order.ended["interrupted"] is False


@pytest.mark.needs_root
def test_the_time_that_a_machine_sleeps_counts(tmp_path: Path) -> None:
    """CLOCK_BOOTTIME set forward beneath a shim, as it is after a sleep, while CLOCK_MONOTONIC stays."""
    order = Order(tmp_path / "a", [script(WAIT)])
    said = json.loads((order.folder / "shim.json").read_bytes())
    (order.folder / "shim.json").write_text(json.dumps(said | {"lease": {"ends_ms": boottime.now_ms() + 60_000, "grace_ms": 5000}}))
    slept = ["unshare", "--time", "--boottime", "100", "--fork", *shim.command(order.folder)]
    assert subprocess.run(slept, timeout=DEADLINE_S).returncode == 0
    assert json.loads((order.folder / "ended.json").read_bytes())["lost"] == WITH_LEASE


def up(cell: Cell, on_partition: str) -> int:
    """The pid of the one rank of a job of that kind, once it is up."""
    cell.far.start(cell.launch(WAIT, ranks=1, on_partition=on_partition))
    until(lambda: cell.far.text("log", "demo-1.1", 0))
    return cell.far.phase("demo-1.1", "running").ranks[0].pid


def test_an_agent_says_that_it_knows_leases_and_which_devices_it_holds(cell: Cell) -> None:
    up(cell, "keep")
    assert features.LEASE in cell.far.hellos()[0].shape.features
    assert cell.far.reports("demo-1.1")[-1].devices == (0,)


@pytest.mark.parametrize("agent_dead", [False, True])
def test_stop_ends_the_ranks_of_a_node_that_is_cut_off_also_when_its_agent_is_dead(cell: Cell, agent_dead: bool) -> None:
    cell.on_terms(PACE_MS)
    cell.far.grants(LONG_MS)
    pid = up(cell, "stop")
    cell.far.grants(1_000)
    if agent_dead:
        cell.agent.end(signal.SIGKILL)
    else:
        cell.far.down()
    until((cell.folder() / "ended.json").exists)
    assert not alive(pid)
    if agent_dead:
        cell.agent.start()
    else:
        cell.far.up()
    report = cell.far.phase("demo-1.1", "ended")
    assert (report.lost, report.interrupted) == (WITH_LEASE, True)
    assert [(exited.code, exited.first) for exited in report.exits] == [(-15, False)]


def test_a_control_plane_that_is_connected_and_does_not_grant_ends_them_too(cell: Cell) -> None:
    cell.on_terms(PACE_MS)
    cell.far.grants(LONG_MS)
    pid = up(cell, "stop")
    cell.far.grants(1_000)
    cell.far.granting = False
    assert cell.far.phase("demo-1.1", "ended").lost == WITH_LEASE
    assert not alive(pid)


def test_grants_that_are_on_their_way_for_longer_than_a_lease_are_worth_nothing(cell: Cell) -> None:
    """They come as often as ever; what counts is when they were asked for."""
    cell.on_terms(PACE_MS)
    cell.far.grants(LONG_MS)  # to come over the time in which none arrives
    up(cell, "stop")
    cell.far.lease_ms, cell.far.grants_late_s = PACE_MS, 1.5 * PACE_MS / 1000
    assert cell.far.phase("demo-1.1", "ended").lost == WITH_LEASE


def test_keep_lets_ranks_live_on_beyond_their_lease(cell: Cell) -> None:
    cell.on_terms(PACE_MS)
    pid = up(cell, "keep")
    cell.far.down()
    passed(boottime.now_ms() + 2 * cell.far.lease_ms)
    assert alive(pid)
    assert json.loads((cell.folder() / "shim.json").read_bytes())["lease"] is None
    before = len(cell.far.hellos())
    cell.far.up()
    until(lambda: len(cell.far.hellos()) > before)
    assert cell.far.hellos()[-1].attempts[0].phase == "running"


def first_end_ms(cell: Cell) -> int:
    """When the lease would have been over under which the ranks were started."""
    return int(json.loads((cell.folder() / "shim.json").read_bytes())["lease"]["ends_ms"])


def test_ranks_live_on_as_long_as_the_lease_is_renewed(cell: Cell) -> None:
    cell.on_terms(PACE_MS, LONG_MS)
    pid = up(cell, "stop")
    cell.far.lease_ms = 60_000
    passed(first_end_ms(cell) + 200)
    assert alive(pid)


def test_an_agent_that_is_started_again_within_the_lease_costs_nothing(cell: Cell) -> None:
    pid = up(cell, "stop")
    for cell.far.welcome_ms in (60_000, 8_000):  # a busy machine takes seconds to start an agent
        before = len(cell.far.hellos())
        cell.agent.end(signal.SIGKILL)
        cell.agent.start()
        until(functools.partial(lambda before: len(cell.far.hellos()) > before, before))
    passed(boottime.now_ms() + 8_200)
    assert alive(pid), "the new agent renews"


def test_ranks_that_must_not_outlive_a_lease_wait_for_one(cell: Cell) -> None:
    cell.on_terms(0)
    launch = cell.launch(WAIT, ranks=1, on_partition="stop")
    cell.far.start(launch)
    until((cell.folder() / "launch.json").exists)
    before = cell.far.renewals()
    until(lambda: cell.far.renewals() > before + 3)
    assert cell.far.reports("demo-1.1")[-1].phase == "starting"
    assert not (cell.folder() / "shim-pid.json").exists()
    cell.far.lease_ms = 60_000
    until(lambda: cell.far.text("log", "demo-1.1", 0))
    cell.far.say(StopRanks(launch.attempt, 1, 300))
    assert cell.far.phase("demo-1.1", "ended").lost == ""


def test_a_stop_ends_the_wait_for_a_lease(cell: Cell) -> None:
    cell.on_terms(0)
    launch = cell.launch(WAIT, ranks=1, on_partition="stop")
    cell.far.start(launch)
    cell.far.phase("demo-1.1", "starting")
    cell.far.say(StopRanks(launch.attempt, 1, 300))
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [-15]


def test_boottime_is_the_kernels() -> None:
    before_ms = boottime.now_ms()
    uptime_ms = round(1000 * float(Path("/proc/uptime").read_text().split()[0]))
    assert before_ms - 11 < uptime_ms <= boottime.now_ms(), "which the kernel writes in hundredths of a second"
    alarm = boottime.Alarm()
    alarm.ring_at(1)
    until(lambda: os.read(alarm.fileno(), 8))
    alarm.ring_at(None)
    with pytest.raises(BlockingIOError):
        os.read(alarm.fileno(), 8)
    alarm.close()
