"""The client for an event loop is the other one, awaited: against the real application, and against servers that go away."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, assert_type

import httpx
import pytest

from phalanx.client import Client, connect_async
from phalanx.client.asynchronous import AsyncClient
from phalanx.client.methods import Methods
from phalanx.client.people import Accounts
from phalanx.client.steps import Method, Values
from phalanx.core import wire
from phalanx.core.errors import Conflict, NotFound, ServerUnreachable, SetupError, SpecError, Stale, WaitTimeout
from phalanx.core.ids import AttemptId
from phalanx.core.people import WhoView
from phalanx.core.views import ArtifactView, JobView, LogPage, NodeView, StatusView
from tests.operate.control.served import HOST, Served, served
from tests.recorded import JOB, job_view, recorded_server

RAN = AttemptId("ran-1.1")
URL = f"http://{HOST}"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        one.run("ran")
        yield one


def on_loop(one: Served, act: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """`act` with a client of the real application, on one event loop."""

    async def run() -> None:
        async with AsyncClient(URL, one.admin, httpx.ASGITransport(one.app)) as client:
            await act(client)

    asyncio.run(run())


def away(error: httpx.TransportError, times: int, then: httpx.Response) -> Callable[[httpx.Request], httpx.Response]:
    left = [times]

    def answer(request: httpx.Request) -> httpx.Response:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return then

    return answer


def test_both_have_the_same_methods_of_the_same_programs() -> None:
    programs = {name: one for name, one in vars(Methods).items() if isinstance(one, Method | Values)}
    assert len(programs) >= 50
    client, other = Client(URL, "t"), AsyncClient(URL, "t")
    for name, program in programs.items():
        assert getattr(Client, name) is getattr(AsyncClient, name) is program
        assert inspect.signature(getattr(client, name)) == inspect.signature(getattr(other, name))
        assert getattr(client, name).__doc__ == getattr(other, name).__doc__ == program.__doc__ != None, name  # noqa: E711
    of_people = {name: one for name, one in vars(Accounts).items() if isinstance(one, Method)}
    assert len(of_people) >= 16
    for name, program in of_people.items():
        assert inspect.signature(getattr(client.people, name)) == inspect.signature(getattr(other.people, name))
        assert getattr(client.people, name).__doc__ == getattr(other.people, name).__doc__ == program.__doc__ != None, name  # noqa: E711
    extra = {name for name in vars(Client) if not name.startswith("_")} - {"carry_out", "give", "url", "people"}
    assert extra == {"close", "hurry", "patient", "now_s", "rest", "channel", "forward", "notebook"}  # of who waits in a thread


def test_methods_are_typed(one: Served) -> None:
    """mypy reads this; so it is a test of what it understands."""

    async def act(client: AsyncClient) -> None:
        assert_type(await client.status(), StatusView)
        assert_type(await client.job("ran-1"), JobView)
        assert_type(await client.nodes(), tuple[NodeView, ...])
        assert_type(await client.people.whoami(), WhoView)
        assert_type(client.follow_logs("ran-1"), AsyncIterator[LogPage])

    on_loop(one, act)

    def typed(client: Client) -> None:
        assert_type(client.people.whoami(), WhoView)
        assert_type(client.job("ran-1"), JobView)
        assert_type(client.follow_logs("ran-1"), Iterator[LogPage])
        client.job(7)  # type: ignore[arg-type] # an ignore that is needed for nothing is an error of mypy

    assert callable(typed)


def test_a_job_is_submitted_looked_at_and_read(one: Served, tmp_path: Path) -> None:
    one.write_log(RAN, b"hello\n" * 20_000)
    one.measure(RAN, 5)
    one.keep_file(RAN, "out/a.txt", b"bytes")
    one.bench.clock.sleep(5_000)
    one.end(RAN)

    async def act(client: AsyncClient) -> None:
        assert (await client.wait("ran-1")).outcome == "succeeded"
        pages = [page async for page in client.follow_logs("ran-1")]
        assert "".join(page.text for page in pages) == "hello\n" * 20_000
        assert (await client.log_end("ran-1")).endswith("hello\n")
        made = await client.submit({"name": "new", "entrypoint": "true"}, key="k-1")
        assert (await client.submit({"name": "new", "entrypoint": "true"}, key="k-1")).id == made.id
        assert [job.id for job in await client.jobs(limit=None)] == [made.id, "ran-1"]
        assert (await client.run("ran-1")).step == 5
        assert len((await client.run_metrics("ran-1")).points) == 5
        assert [one.attempt for one in await client.attempts("ran-1")] == [RAN]
        assert (await client.attempt("ran-1", "1")).attempt == RAN
        (artifact,) = await client.artifacts("ran-1")
        assert_type(artifact, ArtifactView)
        await client.save_artifact(artifact, tmp_path / "a.txt")
        assert (tmp_path / "a.txt").read_bytes() == b"bytes"
        with pytest.raises(Conflict):
            await client.save_artifact(artifact, tmp_path / "a.txt")
        (row,) = [row for row in await client.usage("job") if row.name == "ran-1"]
        assert 0 <= row.used <= row.allocated
        assert await client.deliveries() == ()
        assert (await client.people.whoami()).user == "admin"
        assert (await client.people.add_team("red")).members == {}
        assert [(row.what, row.on) for row in await client.people.audit(what="team")] == [("team.add", "red")]

    on_loop(one, act)


def test_refusals_are_the_same_errors(one: Served) -> None:
    async def act(client: AsyncClient) -> None:
        with pytest.raises(NotFound):
            await client.job("none-9")
        for bad in ("../x", "A B", ""):
            with pytest.raises(NotFound):
                await client.job(bad)
        with pytest.raises(SpecError):
            await client.submit({"name": "x", "gpu": 1})
        old = (await client.policy()).tag
        await client.set_policy({"queues": {"research": {}}}, tag=old)
        with pytest.raises(Stale):
            await client.set_policy({}, tag=old)
        with pytest.raises(WaitTimeout):
            await client.wait("ran-1", timeout_s=0)

    on_loop(one, act)


def test_what_may_be_repeated_is_asked_again_and_what_may_not_is_not() -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    async def act() -> None:
        there = httpx.Response(200, content=wire.dumps(JobView, job_view()))
        for error, lost in ((httpx.ConnectError("refused"), False), (httpx.ReadError("cut"), True)):
            found = AsyncClient(URL, "t", httpx.MockTransport(away(error, 4, there)), sleep=rest)
            assert (await found.job(JOB)).id == JOB
            for verb, times in (("pause", 4), ("cancel", 0)):
                gone = AsyncClient(URL, "t", httpx.MockTransport(away(error, 99, there)), sleep=rest)
                rests.clear()
                with pytest.raises(ServerUnreachable) as caught:
                    await getattr(gone, verb)(JOB)
                assert (caught.value.lost, len(rests)) == (lost, times)

    asyncio.run(act())


def test_a_server_that_moved_is_found_again(tmp_path: Path) -> None:
    async def act() -> None:
        places = iter([("http://127.0.0.1:2", "new-token")])
        seen: list[tuple[str, str]] = []

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append((str(request.url.host) + f":{request.url.port}", request.headers["Authorization"]))
            if len(seen) == 1:
                raise httpx.ConnectError("refused")
            return httpx.Response(200, content=wire.dumps(JobView, job_view()))

        async def rest(seconds: float) -> None:
            pass

        client = AsyncClient(
            "http://127.0.0.1:1", "old-token", httpx.MockTransport(answer), relocate=lambda: next(places), sleep=rest
        )
        await client.job(JOB)
        assert seen == [("127.0.0.1:1", "Bearer old-token"), ("127.0.0.1:2", "Bearer new-token")]
        with pytest.raises(SetupError):
            connect_async(None, {"PHALANX_URL": "http://127.0.0.1:1"})

    asyncio.run(act())


def test_it_connects_as_the_other_does(tmp_path: Path) -> None:
    with recorded_server(tmp_path) as server:
        server.view(f"/jobs/{JOB}", JobView, job_view())

        async def act() -> JobView:
            async with connect_async(tmp_path, {}) as client:
                return await client.job(JOB)

        assert asyncio.run(act()) == job_view()
