"""The control thread and the tick around it: order, writes between observing and deciding, and what goes wrong."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from phalanx.core.errors import Bug, Conflict, StoreUnavailable, WorldError
from phalanx.core.ids import JobId
from phalanx.core.spec import JobSpec
from phalanx.decide.scheduler import Plan, Snapshot, Wait, schedule
from phalanx.operate.control.api.application import create_app
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.control_thread import GATHER_S_MAX, STALE_S, TICK_S, TICKS_KEPT, ControlThread
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.deciding import NO_CHANGE, Decider
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.server import MachineClock
from phalanx.operate.control.store import Store
from phalanx.operate.control.tracked import lineage_of, outbox_entries

SCHEDULER = [sys.executable, "-P", "-m", "phalanx.app", "scheduler", "--home", "/nowhere"]
EMPTY = Snapshot(0, (), (), ())


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    settings = Settings(home=tmp_path, lineage=lineage_of, outbox_for=outbox_entries)
    return Controller(Store(tmp_path / "phalanx.db"), MachineClock(), {}, settings)


@pytest.fixture
def bugs() -> list[BaseException]:
    return []


@pytest.fixture
def control(controller: Controller, bugs: list[BaseException]) -> Iterator[ControlThread]:
    made = ControlThread(controller, bugs.append)
    yield made
    made.close()


def submit(controller: Controller) -> JobId:
    return controller.submit(JobSpec(name="job", entrypoint="true"), "", "", "me")


def test_everything_runs_on_one_thread_in_order(control: ControlThread) -> None:
    async def scenario() -> None:
        seen: list[int] = []
        threads: set[str] = set()

        def note(number: int) -> None:
            threads.add(threading.current_thread().name)
            seen.append(number)

        await asyncio.gather(*(control.call(lambda _, n=number: note(n)) for number in range(100)))  # type: ignore[misc]  # n is bound early on purpose
        assert seen == list(range(100))
        assert len(threads) == 1
        assert threading.current_thread().name not in threads

    asyncio.run(scenario())


def test_a_users_error_reaches_who_asked_and_nobody_else(control: ControlThread, bugs: list[BaseException]) -> None:
    def refuse(_: Controller) -> None:
        raise Conflict("job", "x", "no")

    with pytest.raises(Conflict):
        asyncio.run(control.call(refuse))
    assert bugs == []


def test_a_bug_is_told_and_not_swallowed(control: ControlThread, bugs: list[BaseException]) -> None:
    def broken(_: Controller) -> None:
        raise Bug("a promise")

    with pytest.raises(Bug):
        asyncio.run(control.call(broken))
    assert [str(one) for one in bugs] == ["a promise"]


def test_a_write_gets_in_between_observing_and_carrying_out(control: ControlThread) -> None:
    async def scenario() -> None:
        async def slow(snapshot: Snapshot) -> Plan:
            job = await control.call(submit)  # would wait for ever if the tick held the thread
            assert job not in [one.facts.job for one in snapshot.pending]
            decided.set()
            return schedule(snapshot)

        decided = asyncio.Event()
        ticking = asyncio.create_task(control.run_ticks(slow))
        await asyncio.wait_for(decided.wait(), 10)
        ticking.cancel()
        assert list(control.world.jobs) == ["job-1"]

    asyncio.run(scenario())


def test_P04_health_says_so_when_ticks_stall_or_end(controller: Controller, bugs: list[BaseException]) -> None:
    now_s = 0.0
    control = ControlThread(controller, bugs.append, lambda: now_s)
    app = create_app(cast(Services, SimpleNamespace(control=control)))

    async def scenario() -> None:
        nonlocal now_s
        stuck, decided = asyncio.Event(), asyncio.Event()

        async def decide(snapshot: Snapshot) -> Plan:
            decided.set()
            await stuck.wait()
            return NO_CHANGE

        async def health() -> tuple[int, str]:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
                answer = await client.get("/healthz")
            return answer.status_code, answer.text

        assert await health() == (503, "stalled")
        ticking = asyncio.create_task(control.run_ticks(decide))
        await decided.wait()
        assert await health() == (200, "ok")
        now_s += STALE_S + 1
        assert await health() == (503, "stalled")
        stuck.set()
        async with asyncio.timeout(60):
            while await health() != (200, "ok"):
                await asyncio.sleep(0.01)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        assert await health() == (503, "stalled")

    asyncio.run(scenario())
    control.close()


def test_the_newest_completed_ticks_say_how_long_they_took(controller: Controller, bugs: list[BaseException]) -> None:
    now_s = 0.0
    control = ControlThread(controller, bugs.append, lambda: now_s, pause=at_once)

    async def scenario() -> None:
        nonlocal now_s
        takes_s = [float(number) for number in range(TICKS_KEPT + 2)]

        async def decide(snapshot: Snapshot) -> Plan:
            nonlocal now_s
            control.wake()
            if not takes_s:
                done.set()
                await asyncio.Event().wait()
            now_s += takes_s.pop(0)
            if now_s == 1.0:
                raise WorldError("away")
            return NO_CHANGE

        done = asyncio.Event()
        assert control.tick_ms == ()
        ticking = asyncio.create_task(control.run_ticks(decide))
        await asyncio.wait_for(done.wait(), 10)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)

    asyncio.run(scenario())
    control.close()
    assert control.tick_ms == tuple(1000.0 * number for number in range(2, TICKS_KEPT + 2))  # the second was put off


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


def test_what_comes_soon_after_a_tick_shares_the_next_one_which_waits_as_long_as_that_took(
    controller: Controller, bugs: list[BaseException]
) -> None:
    now_s, pauses, submitted = 0.0, list[float](), list[int]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        for _ in range(3 if len(pauses) == 1 else 0):
            await ticker.change(submit)

    ticker = ControlThread(controller, bugs.append, lambda: now_s, pause=pause)

    async def scenario() -> None:
        nonlocal now_s
        over = asyncio.Event()

        async def decide(snapshot: Snapshot) -> Plan:
            nonlocal now_s
            submitted.append(len(snapshot.pending))
            now_s += (0.02, 3.0)[len(submitted) - 1]
            if len(submitted) == 2:
                over.set()
            return NO_CHANGE

        ticking = asyncio.create_task(ticker.run_ticks(decide))
        await asyncio.wait_for(over.wait(), 60)
        while len(pauses) < 2:
            await asyncio.sleep(0)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)

    asyncio.run(scenario())
    ticker.close()
    assert submitted == [0, 3]
    assert pauses == [pytest.approx(0.02), GATHER_S_MAX]


async def ticks(control: ControlThread) -> AsyncIterator[Snapshot]:
    """Snapshots of ticks as they come."""
    queue: asyncio.Queue[Snapshot] = asyncio.Queue()

    async def note(snapshot: Snapshot) -> Plan:
        queue.put_nowait(snapshot)
        return schedule(snapshot)

    ticking = asyncio.create_task(control.run_ticks(note))
    try:
        while True:
            yield await queue.get()
    finally:
        ticking.cancel()


def test_a_change_starts_a_tick_at_once_and_time_does_too(control: ControlThread) -> None:
    async def scenario() -> None:
        clock, stream = asyncio.get_running_loop().time, ticks(control)
        await anext(stream)
        start_s = clock()
        await control.change(submit)
        assert [one.facts.job for one in (await anext(stream)).pending] == ["job-1"]
        assert clock() - start_s < TICK_S
        await anext(stream)
        assert clock() - start_s >= TICK_S / 2
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator behind its protocol

    asyncio.run(scenario())


def test_a_store_that_is_away_puts_the_tick_off(control: ControlThread, controller: Controller, bugs: list[BaseException]) -> None:
    async def scenario() -> None:
        failures = iter([StoreUnavailable("busy"), WorldError("away")])

        async def failing(snapshot: Snapshot) -> Plan:
            for error in failures:
                control.wake()
                raise error
            done.set()
            return NO_CHANGE

        done = asyncio.Event()
        ticking = asyncio.create_task(control.run_ticks(failing))
        await asyncio.wait_for(done.wait(), 10)
        ticking.cancel()

    asyncio.run(scenario())
    assert bugs == []


def test_anything_else_in_a_tick_is_a_bug(control: ControlThread, bugs: list[BaseException]) -> None:
    async def broken(snapshot: Snapshot) -> Plan:
        raise KeyError("oops")

    with pytest.raises(KeyError):
        asyncio.run(control.run_ticks(broken))
    assert len(bugs) == 1


def test_the_scheduler_process_decides_as_the_function_does_and_comes_back_after_a_kill(controller: Controller) -> None:
    async def scenario() -> None:
        submit(controller)
        snapshot = controller.observe()
        scheduler = LineProcess("scheduler", SCHEDULER, 20)
        decider = Decider(scheduler)
        plan = await decider.decide(snapshot)
        assert plan == schedule(snapshot)
        assert isinstance(plan.decisions[0], Wait)
        first = scheduler.pid
        assert first is not None
        scheduler._child.kill()  # type: ignore[union-attr]  # it was started just now
        await scheduler._child.wait()  # type: ignore[union-attr]
        assert await decider.decide(snapshot) == plan, "the new process knows nothing, and is told everything"
        again = scheduler.pid
        assert await decider.decide(controller.observe()) == plan, "and then what is new"
        assert scheduler.pid == again
        assert again not in (None, first)
        await scheduler.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.stdin.readline(); sys.exit(1)",
        "import sys; sys.stdin.readline(); print('junk', flush=True); sys.stdin.readline()",
        "import sys; sys.stdin.readline(); print('{', end='', flush=True)",
        'import sys; sys.stdin.readline(); print(\'{"plan": null, "error": "KeyError"}\', flush=True); sys.stdin.readline()',
        "import signal; signal.pause()",
    ],
)
def test_without_an_answer_the_plan_changes_nothing(program: str) -> None:
    async def scenario() -> None:
        scheduler = LineProcess("scheduler", [sys.executable, "-c", program], 1.5)
        assert await Decider(scheduler).decide(EMPTY) == NO_CHANGE
        await scheduler.close()

    asyncio.run(scenario())


def test_a_scheduler_that_cannot_start_is_no_answer_either() -> None:
    assert asyncio.run(Decider(LineProcess("scheduler", ["/nowhere/python"], 5)).decide(EMPTY)) == NO_CHANGE
