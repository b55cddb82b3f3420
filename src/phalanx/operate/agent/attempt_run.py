"""Brings one held attempt to its end: prepares it, starts its shim once, watches, and cleans up after a shim that died.

Level, not edge: `run` may begin at any point of the attempt's life, so adopting after a restart is the same code as starting.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec

import structlog

from phalanx.core.devices import NodeShape
from phalanx.core.errors import Conflict, PhalanxError, SetupError, SpecError, UserError, WorldError
from phalanx.core.ids import AttemptId
from phalanx.core.interruptions import WITH_BOOT
from phalanx.core.messages import Launch
from phalanx.core.records import Ring
from phalanx.operate.agent import boottime, code, shim
from phalanx.operate.agent.agent_calls import LINE_BYTES_MAX
from phalanx.operate.agent.attempts import STOPPED_EARLY, AttemptFolder, NodeProcess, Seen, ShimProcess, clear
from phalanx.operate.agent.devices import refuse_slices
from phalanx.operate.agent.images import gpus_of
from phalanx.operate.agent.isolation.keeping import HOME, Keeping
from phalanx.operate.agent.isolation.variables import allowed
from phalanx.operate.agent.launch_env import marks
from phalanx.operate.agent.lease import Lease
from phalanx.operate.agent.ports import cannot_listen, is_taken
from phalanx.operate.agent.processes import boot_id
from phalanx.operate.agent.rank_socket import RankSocket
from phalanx.operate.agent.shim_forks import Shim, ShimForks
from phalanx.operate.agent.sockets import door_folder, door_socket, remove_shim_sockets
from phalanx.operate.agent.surroundings import surroundings, tidy
from phalanx.operate.agent.sweeping import SWEEP_S_MAX, sweep
from phalanx.operate.agent.terminal import listening
from phalanx.operate.agent.together import cancelled, to_its_end
from phalanx.storage.credentials import parted

CLAIM_S_MAX: Final = 30.0
RETRY_S: Final = 0.5
_log = structlog.get_logger()
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Node:
    """What an attempt needs to know of the node it runs on."""

    shape: NodeShape
    agent_socket: Path
    shim_socket: Path
    now_ms: Callable[[], int]
    fetch: Callable[[str], Awaitable[bytes]]
    secrets: Callable[[AttemptId], Awaitable[Mapping[str, str]]]
    lease: Lease
    forks: ShimForks
    keeping: Keeping | None = None
    rung: Callable[[Ring], None] = lambda _: None


class StartFailed(PhalanxError):
    """The ranks cannot be started, and trying again would not help this attempt."""


class StartRefused(StartFailed):
    """Nor would it help the next one: somebody has to change something first."""


class AttemptRun:
    """One attempt in the agent's memory. `changed` is called in the loop whenever `seen` is new."""

    def __init__(
        self, folder: AttemptFolder, node: Node, changed: Callable[["AttemptRun"], None], seen: Seen | None = None
    ) -> None:
        """seen: what its files say now, where somebody has just read them."""
        self.folder = folder
        self.seen = seen or Seen()
        self.drained = False
        self._node = node
        self._changed = changed
        self._stop_asked = asyncio.Event()
        self._renewed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._grace_ms: int | None = None  # asked for of this agent, durable or not
        self._control: asyncio.StreamWriter | None = None
        self._child: Shim | None = None
        self._server: asyncio.Server | None = None  # hears ranks that are kept apart
        self._given: Mapping[str, str] = {}  # values of secrets, from their fetching to the shim's start
        self._uid: int | None = None  # of ranks that are kept apart

    @property
    def _rank_socket(self) -> Path:
        """Where the ranks find the agent."""
        return self._node.agent_socket if self._uid is None else door_socket(self._door)

    @property
    def _door(self) -> Path:
        return door_folder(self._node.shim_socket.parent, self.folder.attempt)

    async def run(self) -> None:
        """Returns when the attempt has ended on disk. A machine short of anything only delays us: the files say where we are."""
        failed = False
        try:
            while True:
                try:
                    if failed:  # else whoever made us has just looked
                        await self.refresh()
                    await self._at_its_door()
                    await self._bring_to_end()
                    break
                except OSError as error:
                    failed = True
                    _log.warning("attempt_not_followed_now", attempt=self.folder.attempt, error=str(error))
                    await asyncio.sleep(RETRY_S)
            await asyncio.to_thread(self._tidy_up)
        finally:
            if self._server is not None:
                self._server.close()
            if self._child is not None:
                self._child.close()
                self._child = None

    def _tidy_up(self) -> None:
        """What its shim and its ranks have left, once the shim is gone. Does file I/O."""
        if self._child is not None:
            self._child.wait()
        tidy(self.folder.accepted.launch, self._node.agent_socket)
        remove_shim_sockets(self._node.shim_socket)  # one that was killed has left them
        if self._node.keeping is not None:
            self._node.keeping.leave(self.folder, self._door)

    async def stop(self, grace_ms: int) -> None:
        """SIGTERM, then SIGKILL after `grace_ms`; returns once the wish is durable.

        Raises PhalanxError or OSError when the disk does not take it: the ranks are stopped all the same, only an agent after
        this one would not know unless the wish comes again.
        """
        self._grace_ms = grace_ms if self._grace_ms is None else min(grace_ms, self._grace_ms)
        self._stop_asked.set()
        self._tell_stop()
        await asyncio.to_thread(self.folder.ask_stop, grace_ms)
        await self.refresh()

    def give_up_node(self, node: int) -> None:
        """Tells the gang's coordinator, if this node has it, that `node` of the gang is lost. It comes again until that is so."""
        if self._control is not None:
            self._control.write(json.dumps({"lose_node": node}).encode() + b"\n")

    def gang_started(self) -> None:
        """Tells the gang's coordinator, if this node has it, that all nodes of the gang run. It comes again while it awaits one."""
        if self._control is not None:
            self._control.write(json.dumps({"gang_started": True}).encode() + b"\n")

    def listens_at(self, port: int) -> str | None:
        """At which address of loopback the attempt's own processes listen on it; None where they do not. Does file I/O."""
        process = self.folder.shim_process()
        if process is None:
            return None
        return listening.address(port, process.pid, marks(self.folder.accepted.launch, str(self._rank_socket)), self._uid)

    def begin_beside(self, name: str) -> None:
        """Has the shim start what `execs/NAME.json` in the attempt's folder says. Raises Conflict while it does not hear us."""
        if self._control is None:
            raise Conflict("job", self.folder.attempt, "its shim does not answer; ask again in a moment")
        self._control.write(json.dumps({"exec": name}).encode() + b"\n")

    def lease_renewed(self) -> None:
        self._renewed.set()
        self._tell_lease()

    async def refresh(self) -> None:
        """Reads the files again and tells about a difference. One at a time: an older look must not take a newer one's place."""
        async with self._looking:
            seen = await asyncio.to_thread(self.folder.read)
            if seen != self.seen:
                self.seen = seen
                self._changed(self)

    async def _bring_to_end(self) -> None:
        if not self.seen.ended and self.folder.shim_process() is None:
            await self._start() if (failing := self.folder.failing()) is None else await self._end(self.folder.fail, **failing)
        if not self.seen.ended and (process := self.folder.shim_process()) is not None:
            await self._watch(process)

    async def _start(self) -> None:
        try:
            if not await self._prepared():
                await self._fail("stopped before its ranks were started", STOPPED_EARLY)
                return
            await self._spawn()
        except StartFailed as error:
            await self._fail(str(error), shim.CANNOT_START, isinstance(error, StartRefused))
        finally:
            self._given = {}

    async def _at_its_door(self) -> None:
        """Hears the ranks of an attempt that is kept apart: from its preparation on, and after this agent was started again."""
        keeping = self._node.keeping
        self._uid = await asyncio.to_thread(keeping.uids.of, self.folder.attempt) if keeping else None
        if self._uid is not None and self._server is None and self._door.is_dir():
            self._server = await RankSocket(self._rank_socket, self._node.rung, self._uid).open()

    async def _kept_apart(self) -> Mapping[str, Any] | None:
        """What the shim has to do for it, all else done; None where ranks are the agent's own user. Raises UserError, OSError."""
        keeping = self._node.keeping
        if keeping is None or not keeping.on:
            return None
        await to_its_end(keeping.enter, self.folder, self._door)
        await self._at_its_door()
        return await asyncio.to_thread(keeping.order, self.folder, self._node.shape, self._door)

    async def _prepared(self) -> bool:
        """Lays out the work folder, waiting for the control plane where it must. False when asked to stop meanwhile."""
        if self.seen.stop_grace_ms is not None:
            return False
        prepare = asyncio.create_task(self._prepare())
        stopped = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({prepare, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not prepare.done():
                return False
            await prepare
            return not stopped.done()
        finally:
            await cancelled([prepare, stopped])

    async def _prepare(self) -> None:
        launch = self.folder.accepted.launch
        if not launch.argv or not launch.devices:
            raise StartFailed(f"cannot start the ranks: no {'devices' if launch.argv else 'command'} given")
        try:
            refuse_slices(gpus_of(launch, self._node.shape))
            data = await self._code(launch.code) if launch.code else None
            await to_its_end(self._lay_out, data)
            await self._order(launch, data)
        except SpecError as error:
            raise StartRefused(f"cannot prepare the attempt: {error}") from error
        except (UserError, WorldError, OSError) as error:
            raise StartFailed(f"cannot prepare the attempt: {error}") from error
        if launch.node_rank == 0:
            self._check_ports(launch)

    async def _order(self, launch: Launch, data: bytes | None) -> None:
        """Writes what the shim reads, once all that it takes is there. Raises UserError, WorldError, OSError."""
        apart = await self._kept_apart()
        if launch.secret_files and apart is None:
            raise SetupError("secret_files", ", ".join(launch.secret_files), "this node gives none: it does not keep jobs apart")
        node, outer = self._node, dict(os.environ)
        around = await surroundings(self.folder, node.shape, self._rank_socket, data, outer)
        outer, credentials = parted(outer)
        if apart is not None:  # the agent's right to stores is not every job's
            outer, credentials = allowed(outer, f"{launch.folder}/{HOME}", f"phalanx-{apart['uid']}", apart["secrets"]), {}
        credentials = {name: value for name, value in credentials.items() if name not in launch.env}
        self._given = {**credentials, **(await self._secrets() if launch.secrets or launch.secret_files else {})}
        given, lease_ends_ms = self._variables(launch), await self._lease_ends_ms()
        order = (node.shape, self._rank_socket, node.shim_socket, around.python, outer, around.container, lease_ends_ms)
        await asyncio.to_thread(self.folder.order_shim, *order, origin=around.origin, given=given, apart=apart)
        if apart is not None and node.keeping is not None:
            await to_its_end(node.keeping.hand_over, self.folder)

    def _variables(self, launch: Launch) -> list[str]:
        """Of what is given: a secret that is asked for as a file alone is in no environment."""
        return sorted(name for name in self._given if name not in launch.secret_files or name in launch.secrets)

    def _check_ports(self, launch: Launch) -> None:
        """Of the gang's first node, where the others look for it."""
        if is_taken(launch.master_port):
            raise StartFailed(f"cannot start the gang: MASTER_PORT {launch.master_port} is already taken on this node")
        if launch.recovery is None or launch.num_nodes == 1:
            return
        if problem := cannot_listen(launch.master_address, launch.recovery.port):
            raise StartFailed(
                f"cannot start the gang: its coordinator cannot listen at {launch.master_address}:{launch.recovery.port}: {problem}"
            )

    def _lay_out(self, data: bytes | None) -> None:
        clear(self.folder.code)  # half of it may be there already
        code.lay_out(data, self.folder.code, self.folder.work)

    async def _lease_ends_ms(self) -> int | None:
        """Of the lease that the ranks must not outlive; waits for one that holds. None where they may."""
        if self.folder.accepted.launch.on_partition == "keep":
            return None
        while not self._node.lease.holds(boottime.now_ms()):
            self._renewed.clear()
            await self._renewed.wait()
        return self._node.lease.ends_ms

    async def _code(self, sha256: str) -> bytes:
        while True:
            try:
                return await self._node.fetch(sha256)
            except WorldError as error:
                _log.warning("code_not_fetched_yet", attempt=self.folder.attempt, error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _secrets(self) -> Mapping[str, str]:
        """Their values, which stay in memory. A control plane that is away is waited for."""
        while True:
            try:
                return await self._node.secrets(self.folder.attempt)
            except Conflict as error:
                raise StartRefused(f"secret {error.value} {error.fix}") from error
            except WorldError as error:
                _log.warning("secrets_not_fetched_yet", attempt=self.folder.attempt, error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _spawn(self) -> None:
        """Has a shim forked and waits for its claim. A second one, of after a crash of ours, sees the first's and leaves."""
        if self._child is not None:  # of an earlier try, which came to nothing
            self._child.close()
            self._child = None
        try:
            self._child = await asyncio.to_thread(self._node.forks.fork, self.folder.path, self._given)
        except OSError as error:
            raise StartFailed(f"cannot start the process that starts ranks: {error}") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLAIM_S_MAX):
                await _readable(self._child.claimed)
        if self._claimed():
            return
        self._child.kill()
        await asyncio.to_thread(self._child.wait)
        if self.folder.shim_process() is None:  # from here on it cannot claim any more
            log = self.folder.path / "shim.log"
            raise StartFailed(f"the process that starts ranks did not come up; see {log}{await asyncio.to_thread(_last_word, log)}")

    def _claimed(self) -> bool:
        try:
            return self.folder.shim_process() is not None
        except OSError:
            return False  # not known now

    async def _watch(self, process: ShimProcess) -> None:
        """Follows the shim until it is gone; ends the attempt for it when it died early."""
        listening = asyncio.create_task(self._listen())
        try:
            await _gone(process)
        finally:
            await cancelled([listening])
        await self.refresh()
        if not self.seen.ended:
            await self._lost(process)

    async def _listen(self) -> None:
        """Reads the files whenever the shim says that they changed. Connects as often as needed."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                reader, self._control = await asyncio.open_unix_connection(str(self._node.shim_socket), limit=LINE_BYTES_MAX)
                try:
                    self._tell_stop()
                    self._tell_lease()
                    await self.refresh()  # something may have changed before we connected
                    while await reader.read(LINE_BYTES_MAX):  # lines that came together are one look: none says more than that
                        await self.refresh()
                finally:
                    self._control.close()
                    self._control = None
            await asyncio.sleep(0.02)

    def _tell_stop(self) -> None:
        asked = [grace_ms for grace_ms in (self._grace_ms, self.seen.stop_grace_ms) if grace_ms is not None]
        if self._control is not None and asked:
            self._control.write(json.dumps({"stop": min(asked)}).encode() + b"\n")

    def _tell_lease(self) -> None:
        """A shim does not wait for us: what it was told last holds, whatever becomes of this agent."""
        bound, ends_ms = self.folder.accepted.launch.on_partition == "stop", self._node.lease.ends_ms
        if self._control is not None and bound and ends_ms is not None:
            self._control.write(json.dumps({"lease_ends_ms": ends_ms}).encode() + b"\n")

    async def _lost(self, process: ShimProcess) -> None:
        """The kernel killed the ranks with their shim; their children may be alive still."""
        attempt_marks = marks(self.folder.accepted.launch, str(self._rank_socket))
        swept = await asyncio.to_thread(sweep, attempt_marks)
        if process.init is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S_MAX):
                    await _gone(process.init)  # the last of its namespace
        _log.warning("shim_died", attempt=self.folder.attempt, pid=process.pid, swept=len(swept))
        killed = f"the shim (pid {process.pid}) died without exit records; its ranks were killed"
        why = killed if process.boot == boot_id() else WITH_BOOT
        await self._end(self.folder.lose, why, self._node.now_ms())

    async def _fail(self, why: str, exit_code: int, refused: bool = False) -> None:
        _log.warning("attempt_not_started", attempt=self.folder.attempt, why=why)
        await self._end(self.folder.fail, why, exit_code, self._node.now_ms(), refused)

    async def _end(self, write: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """An end that the disk does not take yet is no end: tries until it does."""
        while True:
            try:
                await asyncio.to_thread(write, *args, **kwargs)
                break
            except OSError as error:
                _log.warning("end_not_written_yet", attempt=self.folder.attempt, error=str(error))
                await asyncio.sleep(RETRY_S)
        await self.refresh()


def _last_word(log: Path) -> str:
    """What a shim said that did not come up, for whoever may not read its log; '' where it said nothing."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        return f": {lines[-1][:300]}" if lines else ""
    return ""


async def _gone(process: NodeProcess) -> None:
    """Returns when that very process is no more. Raises OSError when that cannot be known now."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not process.lives():
            return
        await _readable(handle)
    finally:
        os.close(handle)


async def _readable(handle: int) -> None:
    """Returns once there is something to read, or nothing any more."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(handle)
