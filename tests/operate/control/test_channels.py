"""Channels in the server: names that nobody guesses, one node each, bounded, and errors of the node's that stay errors."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from phalanx.core.channels import CHANNELS_PER_JOB, ChannelAsked
from phalanx.core.errors import Conflict, NotFound, StoreUnavailable
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import OpenChannel
from phalanx.operate.control.agent_socket import AgentLink
from phalanx.operate.control.channels import REVOKED, Channels, Reached

JOB, ATTEMPT, ASKED = JobId("a-1"), AttemptId("a-1.1"), ChannelAsked("attach")


class FarEnd:
    """An agent's connection that says this first."""

    def __init__(self, first: dict[str, Any]) -> None:
        self.first = first

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.receive", "text": json.dumps(self.first)}


def run(test: Callable[[Channels, AgentLink], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        await test(Channels(), AgentLink(NodeId("n1"), asyncio.get_running_loop()))

    asyncio.run(inside())


async def asked_for(link: AgentLink) -> str:
    command = await link.next()
    assert isinstance(command, OpenChannel)
    assert (command.attempt, command.epoch, command.asked) == (ATTEMPT, 3, ASKED)
    assert command.channel not in repr(command)
    return command.channel


def test_a_channel_is_for_the_node_that_was_asked_and_once() -> None:
    async def test(channels: Channels, link: AgentLink) -> None:
        opening = asyncio.create_task(channels.reach(link, JOB, ATTEMPT, 3, ASKED))
        name = await asked_for(link)
        for wrong, node in (("0" * 64, "n1"), (name, "n2")):
            with pytest.raises(NotFound):
                channels.awaited(wrong, NodeId(node))
        channels.awaited(name, NodeId("n1")).agent.set_result(FarEnd({"opened": True}))  # type: ignore[arg-type] # as much as is used
        reached = await opening
        assert json.loads(reached.first) == {"opened": True}
        with pytest.raises(NotFound):
            channels.awaited(name, NodeId("n1"))
        reached.end()
        assert channels.open_to(NodeId("n1")) == 0

    run(test)


def test_what_the_node_refuses_is_the_error_that_it_says() -> None:
    async def test(channels: Channels, link: AgentLink) -> None:
        opening = asyncio.create_task(channels.reach(link, JOB, ATTEMPT, 3, ASKED))
        refused = {"refused": {"field": "port", "value": "80", "fix": "nothing listens"}}
        channels.awaited(await asked_for(link), None).agent.set_result(FarEnd(refused))  # type: ignore[arg-type] # as above
        with pytest.raises(Conflict, match="nothing listens"):
            await opening
        assert channels.open_to(NodeId("n1")) == 0

    run(test)


def test_who_leaves_before_it_is_open_leaves_nothing_and_a_job_has_so_many() -> None:
    async def test(channels: Channels, link: AgentLink) -> None:
        opening = [asyncio.create_task(channels.reach(link, JOB, ATTEMPT, 3, ASKED)) for _ in range(CHANNELS_PER_JOB)]
        await asked_for(link)
        with pytest.raises(Conflict, match="64 channels open"):
            await channels.reach(link, JOB, ATTEMPT, 3, ASKED)
        for one in opening:
            one.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        assert channels.open_to(NodeId("n1")) == 0

    run(test)


class Quiet:
    """An end that says nothing, and hears why it is over."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    async def send_text(self, text: str) -> None:
        """Nothing becomes of it."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def close(self, code: int, reason: str) -> None:
        self.closed.set_result((code, reason))


def test_who_may_no_more_is_out_and_a_database_that_is_away_ends_nothing() -> None:
    async def test() -> None:
        person, agent = Quiet(), Quiet()
        answers: list[bool | Exception] = [True, StoreUnavailable("away"), True, False]

        async def may() -> bool:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with asyncio.timeout(60):
            await Reached(agent, "{}", lambda: None).carry(person, may, ask_s=0)  # type: ignore[arg-type] # as much as is used
        assert (person.closed.result()[0], agent.closed.result()[0], answers) == (REVOKED, REVOKED, [])

    asyncio.run(test())
