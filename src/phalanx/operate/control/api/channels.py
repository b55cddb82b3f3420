"""Channels into running jobs: a person's WebSocket, and the one that an agent dials for it. Refusals are problem+json."""

from functools import partial
from typing import Annotated, Final, cast, get_args

import structlog
from fastapi import APIRouter, Query, WebSocket
from starlette.exceptions import WebSocketException

from phalanx.core import features
from phalanx.core.channels import ARGV_BYTES_MAX, ChannelAsked, What
from phalanx.core.errors import Conflict, Forbidden, NotFound, PhalanxError, SpecError, Unauthorized
from phalanx.core.ids import JobId, NodeId
from phalanx.core.states import Running
from phalanx.operate.control.agent_socket import AgentLink
from phalanx.operate.control.api.access import INTO_A_JOB, SOCKET, found_node, job_for, own_job, to_change
from phalanx.operate.control.api.asker import Again, again, asker
from phalanx.operate.control.api.errors import problem
from phalanx.operate.control.api.refusals import noted
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.people import audit
from phalanx.operate.control.world import AttemptRecord, JobRecord

PORTS: Final = range(1, 65_536)
router = APIRouter(tags=["channels"])
log = structlog.get_logger(__name__)


@router.websocket("/jobs/{job}/channel", dependencies=[INTO_A_JOB])
async def channel(
    socket: WebSocket,
    job: str,
    what: Annotated[str, Query(max_length=20)] = "",
    rank: Annotated[str, Query(max_length=10)] = "0",
    port: Annotated[str, Query(max_length=10)] = "0",
    argv: Annotated[list[str] | None, Query()] = None,
    terminal: Annotated[str, Query(max_length=5)] = "",
) -> None:
    """A way into the job's running attempt, see `core.channels`. Whoever is in a job can do what it can, so it takes who may change
    the job, and leaves a row of the audit log."""
    services: Services = socket.app.state.services
    try:
        found = await asker(socket)
        record = await own_job(found, job_for(services, found, job))
        asked = _asked(what, rank, port, argv or [], terminal)
        attempt, link = _target(services, record, asked)
        note = found.note(f"job.{asked.what}", record.id, services.clock.now_ms())
        await services.control.call(lambda controller: audit.append(services.store, controller.epoch, note))
        reached = await services.channels.reach(link, record.id, attempt.id, services.control.epoch, asked)
    except PhalanxError as error:
        late = noted(socket, error) if isinstance(error, Unauthorized) else None
        await socket.send_denial_response(problem(late or error))
        return
    log.info("channel_opened", job=record.id, what=asked.what, node=link.node)
    try:
        await socket.accept()
        await reached.carry(socket, partial(_may, await again(socket), services, record.id))
    finally:
        reached.end()


@router.websocket("/agent/channels/{channel}", dependencies=[SOCKET])
async def agent_end(socket: WebSocket, channel: str) -> None:
    """A node's end of a channel that its agent was asked for."""
    services: Services = socket.app.state.services
    try:
        caller = (await found_node(socket)).caller
        waiting = services.channels.awaited(channel, caller.node)
        services.tokens.check_name(caller, waiting.node)
    except (Unauthorized, NotFound) as error:
        raise WebSocketException(1008, str(error)) from error
    await socket.accept()
    if not waiting.agent.done():
        waiting.agent.set_result(socket)
        await waiting.over.wait()


async def _may(again: Again, services: Services, job: JobId) -> bool:
    """Whether they may still change the job. Raises StoreUnavailable."""
    try:
        to_change(await again(), services.control.world.jobs[job])
    except (Unauthorized, Forbidden, NotFound):
        return False
    return True


def _asked(what: str, rank: str, port: str, argv: list[str], terminal: str) -> ChannelAsked:
    """Raises SpecError."""
    if what not in get_args(What):
        raise SpecError("what", what, f"write one of {', '.join(get_args(What))}")
    for name, text in (("rank", rank), ("port", port)):
        if not (text.isascii() and text.isdecimal()):
            raise SpecError(name, text, "write a whole number")
    if what == "forward" and int(port) not in PORTS:
        raise SpecError("port", port, "write 1 to 65535")
    if what == "exec" and not (argv and argv[0]):
        raise SpecError("command", "(empty)", "name a command, as in `phalanx exec JOB -- nvidia-smi`")
    if sum(len(word.encode(errors="surrogatepass")) for word in argv) > ARGV_BYTES_MAX or any("\0" in word for word in argv):
        raise SpecError("command", argv[0][:50], f"has a NUL or more than {ARGV_BYTES_MAX} bytes; put it into a file")
    return ChannelAsked(cast(What, what), int(rank), tuple(argv), terminal == "true", int(port))


def _target(services: Services, job: JobRecord, asked: ChannelAsked) -> tuple[AttemptRecord, AgentLink]:
    """The attempt that runs, and the connection of the node that has the rank. Raises Conflict, NotFound."""
    world = services.control.world
    if asked.what == "attach" and job.spec.session != "shell":
        fix = f"is of kind {job.spec.kind} and has no terminal; `phalanx exec -t {job.id} -- bash` opens one in it while it runs"
        raise Conflict("job", job.id, fix)
    if asked.what == "notebook" and job.spec.session != "notebook":
        raise Conflict("job", job.id, f"is of kind {job.spec.kind}, no notebook; `phalanx notebook` starts one")
    if not isinstance(job.state, Running) or job.attempt is None:
        raise Conflict("job", job.id, f"is {job.state.name}; nothing of it runs now, see `phalanx why {job.id}`")
    attempt = world.attempts[job.attempt]
    node = _node_of(attempt, asked.rank)
    if features.CHANNELS not in world.nodes[node].shape.features:
        raise Conflict("node", node, "its agent is too old to open ways into jobs; upgrade it")
    link = services.desk.links.get(node)
    if not isinstance(link, AgentLink):
        raise Conflict("node", node, "is away now, so nothing can be reached on it; the job goes on, ask again later")
    return attempt, link


def _node_of(attempt: AttemptRecord, rank: int) -> NodeId:
    first = 0
    for part in attempt.placement.slices:
        if first <= rank < first + len(part.devices):
            return part.node
        first += len(part.devices)
    raise NotFound("rank", str(rank), f"{attempt.id} has ranks 0 to {first - 1}")
