"""The agent's main loop: what the control plane says goes to attempts, what attempts and ranks say goes to the control plane."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import IO, Final

import structlog

from phalanx.core.devices import Device, NodeShape
from phalanx.core.errors import Bug, PhalanxError, ServerUnreachable, SetupError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import (
    PROTOCOL,
    ArtifactAck,
    AttemptReport,
    ChunkAck,
    Command,
    Forget,
    GangStarted,
    GiveUpNode,
    Granted,
    Hello,
    IdleWord,
    Launch,
    OpenChannel,
    PlanFaults,
    Report,
    RequestTraces,
    StartRanks,
    StopRanks,
    ToAgent,
    Welcome,
)  # fmt: skip
from phalanx.core.records import Ring
from phalanx.operate import daemons
from phalanx.operate.agent import boottime, code, secrets
from phalanx.operate.agent.abilities import abilities
from phalanx.operate.agent.artifacts import Artifacts
from phalanx.operate.agent.attempt_run import AttemptRun, Node
from phalanx.operate.agent.attempts import AttemptFolder, Seen, accept, discard, held
from phalanx.operate.agent.connection import Connection, StaleLeader
from phalanx.operate.agent.devices import Reader, discover, node_shape, numbered, read_nvml
from phalanx.operate.agent.faults import NodeFaults
from phalanx.operate.agent.fence import Fence
from phalanx.operate.agent.isolation.keeping import Keeping
from phalanx.operate.agent.isolation.of_node import Apartness, apartness
from phalanx.operate.agent.lease import HELLO, Lease
from phalanx.operate.agent.ports import PortBlock, claim_block
from phalanx.operate.agent.processes import boot_id
from phalanx.operate.agent.rank_socket import RankSocket
from phalanx.operate.agent.shim_forks import ShimForks
from phalanx.operate.agent.shipping import Shipping
from phalanx.operate.agent.sockets import agent_socket, leave_sockets, shim_socket, socket_folder
from phalanx.operate.agent.terminal.reached import Reached
from phalanx.operate.agent.terminal.watching import Watching
from phalanx.operate.agent.terminal.ways import Ways
from phalanx.operate.agent.together import cancelled, together, until_asked
from phalanx.operate.agent.uploading import upload
from phalanx.storage.atomic import write_atomic

LOOK_S: Final = 0.1
"""How often log files are looked at while attempts are held; record files are looked at as soon as a rank rings."""

TRIM_S: Final = 1.0
END_S_MAX: Final = 5.0
"""How long forgetting an attempt waits for its shim to be gone, which it is a moment after its last word."""

_log = structlog.get_logger()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Agent:
    """One node's agent. Everything here runs in one asyncio loop; waits for the disk happen in threads.

    Commands are obeyed one at a time by a task of the agent's own: a link that breaks cuts none of them in two. Those that it left
    waiting are dropped by the next one's Hello.
    """

    def __init__(
        self,
        home: Path,
        url: Callable[[], str | None],
        token: str,
        node: NodeId,
        devices: tuple[Device, ...],
        block: PortBlock,
        apart: Apartness | None = None,
    ) -> None:
        self._forks = ShimForks(home / "node" / "attempts")
        self._known_shape: NodeShape | None = None  # as the newest Hello told it: looking for programs takes a millisecond
        self._apart = apart
        self._keeping = Keeping(home, apart) if apart else None
        self._url = url
        self._token = token
        self._node = node
        self._devices = devices
        self._block = block
        self._attempts = home / "node" / "attempts"
        self._sockets = socket_folder(home)
        self._fence = Fence(home / "node" / "epoch.json")
        self._lease = Lease()
        self._runs: dict[AttemptId, AttemptRun] = {}
        self._busy = asyncio.Event()  # some are held: an agent without any has nothing to look at
        self._running: dict[AttemptId, asyncio.Task[None]] = {}
        self._commands: deque[Command] = deque()
        self._commanded = asyncio.Event()
        self._obeying = asyncio.Lock()
        self._shipping = Shipping()
        self._faults = NodeFaults(agent_socket(self._sockets))
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        jitter = Random()  # noqa: S311
        self._connection = Connection(url, token, self._hello, self._heard, self._shipping.next_chunk, jitter, self._sending)
        self._artifacts = Artifacts(self._upload, self._connection.send, self._ran)
        reached = Reached(self._runs.get, lambda attempt: shim_socket(self._sockets, attempt))
        self._ways = Ways(url, token, reached)
        sockets = self._sockets
        self._watching = Watching(
            lambda: list(self._runs.values()),
            lambda: self._known_shape or self._shape(),
            lambda attempt: shim_socket(sockets, attempt),
            self._ways,
            self._connection.send,
        )

    async def run(self) -> None:
        """Until cancelled; ranks are left alone then."""
        folders = await asyncio.to_thread(held, self._attempts)
        if self._keeping is not None:
            await asyncio.to_thread(self._keeping.recover, [folder.attempt for folder in folders])
        for folder in folders:
            self._hold(folder, await asyncio.to_thread(folder.read))
        server = await RankSocket(agent_socket(self._sockets), self._rung).open()
        try:
            await self._forks.warm()
            await together(
                self._connection.run(),
                self._obey_all(),
                self._look(),
                self._trim(),
                self._watching.run(),
                self._watch_failures(),
            )
        finally:
            self._forks.close()
            server.close()
            leave_sockets(self._sockets)
            self._shipping.close()
            await cancelled([*self._running.values(), *self._artifacts.close(), *self._ways.close()])

    async def _watch_failures(self) -> None:
        await self._failed

    def _hold(self, folder: AttemptFolder, seen: Seen) -> None:
        """Follows an attempt from now on, of which its files say that."""
        place = Node(
            self._known_shape or self._shape(),
            agent_socket(self._sockets),
            shim_socket(self._sockets, folder.attempt),
            now_ms,
            self._fetch,
            self._secrets,
            self._lease,
            self._forks,
            self._keeping,
            self._rung,
        )
        run = AttemptRun(folder, place, self._changed, seen)
        self._runs[folder.attempt] = run
        self._busy.set()
        self._shipping.add(folder)
        self._artifacts.add(folder)
        self._faults.planned(folder)
        running = asyncio.create_task(run.run())
        running.add_done_callback(self._ran)
        self._running[folder.attempt] = running

    def _ran(self, running: asyncio.Task[None]) -> None:
        """A bug in an attempt's coroutine ends the agent, loudly; its ranks go on, and the next `phalanx up` adopts."""
        if not running.cancelled() and (error := running.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _shape(self) -> NodeShape:
        told = self._apart.told if self._apart else None
        able = abilities(told is not None and told.mode == "uid")
        return node_shape(self._node, self._devices, self._block.ports, self._url(), able, told)

    async def _hello(self) -> Hello:
        """What came over the last connection and was not begun is dropped: the control plane takes for free what a Hello does not
        list, and sends again what it still wants."""
        self._commands.clear()
        shape = self._known_shape = await asyncio.to_thread(self._shape)
        async with self._obeying:
            reports = tuple(self._report(run) for run in self._runs.values())
        return Hello(shape, boot_id(), PROTOCOL, version("phalanx"), self._fence.seen, reports)

    def _report(self, run: AttemptRun) -> AttemptReport:
        return run.folder.report(run.seen, run.drained, now_ms())

    def _changed(self, run: AttemptRun) -> None:
        if run.folder.attempt not in self._runs:
            return
        self._connection.send(Report(self._report(run)))
        self._shipping.due(attempt=run.folder.attempt)
        self._connection.wake()
        self._notice_drained()  # its last byte may have arrived before its end was seen

    def _rung(self, ring: Ring) -> None:
        self._shipping.due("records", ring.rank)
        self._connection.wake()
        self._faults.look()

    async def _look(self) -> None:
        """Wakes shipping for logs, which nobody rings for, and notices when the last byte of an ended attempt has arrived."""
        while True:
            await self._busy.wait()
            self._notice_drained()
            self._faults.look()
            if self._shipping.look():
                self._connection.wake()
            await asyncio.sleep(LOOK_S)

    async def _trim(self) -> None:
        while True:
            await self._busy.wait()
            await self._shipping.trim()
            await asyncio.sleep(TRIM_S)

    def _notice_drained(self) -> None:
        for run in self._runs.values():
            attempt = run.folder.attempt
            if run.seen.ended and not run.drained and self._shipping.drained(attempt) and self._artifacts.drained(attempt):
                run.drained = True
                self._connection.send(Report(self._report(run)))

    async def _fetch(self, sha256: str) -> bytes:
        url = self._url()
        if url is None:
            raise ServerUnreachable("no control plane is known yet")
        return await code.fetch(url, self._token, sha256)

    async def _secrets(self, attempt: AttemptId) -> Mapping[str, str]:
        url = self._url()
        if url is None:
            raise ServerUnreachable("no control plane is known yet")
        return await secrets.fetch(url, self._token, self._node, attempt)

    async def _upload(self, attempt: AttemptId, sha256: str, size_bytes: int, source: IO[bytes]) -> None:
        url = self._url()
        if url is None:
            raise ServerUnreachable("no control plane is known yet")
        await upload(url, self._token, self._node, attempt, sha256, size_bytes, source)

    def _sending(self, number: int) -> None:
        self._lease.sending(number, boottime.now_ms())

    def _granted(self, number: int, lease_ms: int) -> None:
        if self._lease.granted(number, lease_ms):
            for run in self._runs.values():
                run.lease_renewed()

    async def _heard(self, message: ToAgent) -> None:
        match message:
            case Welcome(epoch=epoch, lease_ms=lease_ms, acked=acked, features=understood):
                if not await self._fence.admit(epoch):
                    raise StaleLeader(f"control plane of epoch {epoch}, though {self._fence.seen} was seen")
                self._granted(HELLO, lease_ms)
                self._shipping.welcome(acked)
                self._artifacts.welcome(understood)
                self._watching.welcome(understood)
                self._connection.wake()
            case ChunkAck():
                self._shipping.answered(message)
                self._notice_drained()
                self._connection.wake()
            case ArtifactAck():
                self._artifacts.answered(message)
            case StartRanks() | StopRanks() | Forget() | GiveUpNode() | GangStarted() | PlanFaults() | RequestTraces():
                if not self._waits(message):  # a slow disk must not make the line grow with every resend
                    self._commands.append(message)
                    self._commanded.set()
            case Granted(number=number, lease_ms=lease_ms):
                self._granted(number, lease_ms)
            case IdleWord() | OpenChannel():
                self._about_people(message)

    def _waits(self, command: Command) -> bool:
        """Whether that very command is in the line. Most are of other attempts, and comparing whole ones takes long."""
        about = _attempt_of(command)
        return any(_attempt_of(one) == about and one == command for one in self._commands)

    def _about_people(self, message: IdleWord | OpenChannel) -> None:
        """Beside commands: nobody waits for a disk to see their terminal."""
        match message:
            case IdleWord():
                self._watching.heard(message)
            case OpenChannel(epoch=epoch) if epoch >= self._fence.seen:
                self._ways.open(message)

    async def _obey_all(self) -> None:
        """Commands come again until they are carried out, so one that the disk refuses now is only told about."""
        while True:
            await self._commanded.wait()
            self._commanded.clear()
            while self._commands:
                command = self._commands.popleft()
                try:
                    async with self._obeying:
                        await self._obey(command)
                except Bug:
                    raise
                except (PhalanxError, OSError) as error:
                    _log.warning("command_not_carried_out", kind=command.kind, error=str(error))

    async def _obey(self, command: Command) -> None:
        if not await self._fence.admit(command.epoch):
            _log.warning("stale_command_refused", kind=command.kind, epoch=command.epoch, seen=self._fence.seen)
            return
        match command:
            case StartRanks():
                await self._start(command)
            case StopRanks(attempt=attempt):
                await self._stop(command, self._runs.get(attempt))
            case Forget(attempt=attempt):
                await self._forget(attempt)
            case GiveUpNode(attempt=attempt, node_rank=node):
                if (run := self._runs.get(attempt)) is not None:
                    run.give_up_node(node)
            case GangStarted(attempt=attempt):
                if (run := self._runs.get(attempt)) is not None:
                    run.gang_started()
            case PlanFaults(attempt=attempt) | RequestTraces(attempt=attempt):
                await self._tell_ranks(command, self._runs.get(attempt))

    async def _start(self, command: StartRanks) -> None:
        attempt = command.launch.attempt
        if attempt not in self._runs:
            try:
                self._hold(*await asyncio.to_thread(_accepted, self._attempts, command.launch, command.epoch))
            except (ValueError, SetupError) as error:  # it would be no better the next time
                _log.error("launch_refused", attempt=attempt, error=str(error))
                await self._never_held(attempt, command.epoch, f"the node refused to start them: {error}")
                return
        self._connection.send(Report(self._report(self._runs[attempt])))

    async def _never_held(self, attempt: AttemptId, epoch: int, lost: str = "") -> None:
        """Says that the attempt is over, and makes it so: half a promise, left by a failed start, must not be kept later."""
        await asyncio.to_thread(discard, self._attempts, attempt)
        self._connection.send(Report(AttemptReport(attempt, epoch, "ended", (), (), now_ms(), lost)))

    async def _stop(self, command: StopRanks, run: AttemptRun | None) -> None:
        if run is None:
            await self._never_held(command.attempt, command.epoch)
        elif run.seen.ended:
            self._connection.send(Report(self._report(run)))
        else:
            await run.stop(command.grace_ms)

    async def _tell_ranks(self, command: PlanFaults | RequestTraces, run: AttemptRun | None) -> None:
        """By files, which they look for themselves. Of an attempt that is not held nothing is said: the next Hello says so, as for
        any other."""
        if run is None or run.seen.ended:
            return
        match command:
            case PlanFaults(faults=faults, last=last):
                await asyncio.to_thread(run.folder.plan_faults, faults, last)
                self._faults.planned(run.folder)
            case RequestTraces(request=request):
                await asyncio.to_thread(run.folder.request_traces, request)
        await run.refresh()
        self._connection.send(Report(self._report(run)))

    async def _forget(self, attempt: AttemptId) -> None:
        run = self._runs.get(attempt)
        if run is not None and run.seen.ended:
            await asyncio.wait([self._running[attempt]], timeout=END_S_MAX)
        if run is not None and not (run.seen.ended and self._running[attempt].done()):
            _log.warning("forget_refused", attempt=attempt, why="it has not ended here")
            return
        if not await asyncio.to_thread(discard, self._attempts, attempt):
            _log.warning("attempt_files_left", attempt=attempt, why="not all could be removed; the next agent tries again")
        if run is not None:
            del self._runs[attempt], self._running[attempt]
            if not self._runs:
                self._busy.clear()
            self._shipping.drop(attempt)
            self._artifacts.drop(attempt)
            self._faults.drop(attempt)
            self._ways.drop(attempt)
            self._watching.drop(attempt)


def _attempt_of(command: Command) -> AttemptId:
    return command.launch.attempt if isinstance(command, StartRanks) else command.attempt


def _accepted(attempts: Path, launch: Launch, epoch: int) -> tuple[AttemptFolder, Seen]:
    """As `accept`, and what there is of it already. In one call: each hop to a thread costs as much as a small file."""
    folder = accept(attempts, launch, epoch)
    return folder, folder.read()


def run_agent(home: Path, url: Callable[[], str | None], token: str, node: NodeId, cpu_slots: int | None) -> None:
    """Runs this node's agent until SIGTERM, which leaves its ranks alone. `url` is asked at each dial, see `written_url`.

    Raises SetupError when another agent of this home is running, the home is not usable, or asks to keep jobs apart as this machine
    cannot; and whatever else ends it before it was asked to end, after a line that says so.
    """
    _log_to_stderr()
    with daemons.only_one(home, "agent", "another agent of this home is running; stop it first"):
        daemons.record_self(home, "agent")
        try:
            asyncio.run(_main(home, url, token, node, cpu_slots, read_nvml))
        except SetupError:  # whoever started it tells of it
            raise
        except Exception as error:
            _log.critical("agent_failed", node=node, kind=type(error).__name__, error=str(error))
            raise
        finally:
            daemons.erase_self(home, "agent")


async def _main(home: Path, url: Callable[[], str | None], token: str, node: NodeId, cpu_slots: int | None, read: Reader) -> None:
    block = _same_block(home / "node" / "ports.json")
    devices = discover(numbered(read, home / "node" / "devices.json", boot_id()), cpu_slots)
    apart = await asyncio.to_thread(apartness, home)
    agent = Agent(home, url, token, node, devices, block, apart)
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    _log.info("agent_started", node=node, pid=os.getpid(), ports=block.ports)
    with contextlib.closing(block.guard):
        await until_asked(agent.run(), asked)
    _log.info("agent_ended", node=node)


def _same_block(path: Path) -> PortBlock:
    """The block of the agent before us where it is still free: its ranks may use ports of it."""
    known = json.loads(path.read_bytes())["first"] if path.exists() else None
    block = claim_block(known)
    write_atomic(path, json.dumps({"first": block.ports[0] - 1}).encode())
    return block


def _log_to_stderr() -> None:
    """JSON, or words for whoever runs it in a terminal."""
    in_words = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            in_words if sys.stderr.isatty() else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
