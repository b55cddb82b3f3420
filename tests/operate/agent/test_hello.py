"""A Hello is the whole truth: what came over the connection before it has been obeyed and is listed, or never will be."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from phalanx.core.devices import Device
from phalanx.core.ids import NodeId
from phalanx.core.messages import StartRanks
from phalanx.operate.agent.agent import Agent
from phalanx.operate.agent.ports import claim_block
from phalanx.operate.agent.together import cancelled
from tests.operate.agent.agent_cell import DEADLINE_S, TOKEN, AgentProcess, Cell, FarSide


def start(home: Path, attempt: str = "demo-1.1") -> StartRanks:
    """Of an attempt that never gets further than waiting for its code, since nobody has it."""
    return StartRanks(Cell(home, FarSide(home), AgentProcess(home)).launch("", attempt, code="0" * 64), 1)


@asynccontextmanager
async def an_agent(home: Path) -> AsyncIterator[Agent]:
    """Without a control plane; what it has to do in threads is done one after the other."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    block = claim_block(None)
    agent = Agent(home, lambda: None, TOKEN, NodeId("a"), (Device(0, "cpu", "cpu"),), block)
    obeying = asyncio.create_task(agent._obey_all())
    try:
        yield agent
    finally:
        await cancelled([obeying, *agent._running.values()])
        block.guard.close()


def test_a_command_that_waited_when_the_connection_broke_is_not_carried_out_under_the_next(tmp_path: Path) -> None:
    """The control plane may have given its devices to another attempt since: no Hello listed this one."""

    async def scenario() -> None:
        async with an_agent(tmp_path) as agent:
            await agent._heard(start(tmp_path))
            assert (await agent._hello()).attempts == ()
            await agent._heard(start(tmp_path, "demo-2.1"))
            async with asyncio.timeout(DEADLINE_S):
                while "demo-2.1" not in agent._runs:
                    await asyncio.sleep(0.001)
            assert list(agent._runs) == ["demo-2.1"]

    asyncio.run(scenario())


def test_a_command_in_the_middle_of_being_carried_out_is_in_the_next_hello(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with an_agent(tmp_path) as agent:
            command = start(tmp_path)
            await agent._heard(command)
            await asyncio.sleep(0)  # it is begun
            assert [report.attempt for report in (await agent._hello()).attempts] == [command.launch.attempt]

    asyncio.run(scenario())
