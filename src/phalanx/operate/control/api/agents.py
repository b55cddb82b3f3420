"""Where agents join, and dial in."""

import asyncio
from functools import partial
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Path, Request, Response, WebSocket
from starlette.exceptions import WebSocketException
from starlette.requests import HTTPConnection

from phalanx.core.errors import Conflict, NotFound, SpecError, Unauthorized
from phalanx.core.ids import NAME, NodeId
from phalanx.core.views import JOIN_TOKEN_MS, JoinRequest, JoinTokenRequest, JoinTokenView, MembershipView
from phalanx.operate.control import joining
from phalanx.operate.control.agent_socket import POLICY, AgentLink
from phalanx.operate.control.api.access import JOINING, NODES, RULES, SOCKET, ServicesHere, found_node
from phalanx.operate.control.api.asker import AskerHere, address_of
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.refusals import noted
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.auth import bearer
from phalanx.operate.control.people.notes import Note
from phalanx.operate.home import node_name
from phalanx.storage.hashes import is_sha256

router = APIRouter(tags=["agents"])
log = structlog.get_logger(__name__)


@router.post("/agent/tokens", status_code=201, dependencies=[RULES])
async def make_join_token(services: ServicesHere, asker: AskerHere, request: JoinTokenRequest, response: Response) -> JoinTokenView:
    """A token that lets one node join. Nobody is told it again."""
    shortest, longest = JOIN_TOKEN_MS
    if not shortest <= request.lifetime_ms <= longest:
        raise SpecError("lifetime_ms", request.lifetime_ms, f"choose {shortest} (a second) to {longest} (30 days)")
    now_ms = services.clock.now_ms()
    note = asker.note("agent.token", f"for {request.lifetime_ms} ms", now_ms)
    token, expires_ms = await services.control.call(
        lambda controller: joining.make_token(services.store, controller.epoch, request.lifetime_ms, now_ms, note)
    )
    response.headers["Cache-Control"] = "no-store"
    return JoinTokenView(token=token, expires_ms=expires_ms)


@router.delete("/agent/credentials/{node}", status_code=204, dependencies=[RULES])
async def revoke(services: ServicesHere, asker: AskerHere, node: Annotated[str, Path(max_length=255)]) -> Response:
    """That node's credential opens nothing any more, and its connection ends. What it runs is left alone."""
    name = NodeId(node)
    note = asker.note("agent.revoke", node, services.clock.now_ms())
    try:
        await services.control.call(lambda controller: joining.revoke(services.store, controller.epoch, name, note))
    except NotFound:
        services.tokens.dismiss(name)  # an earlier try may have been done though the database did not say so
        raise
    services.tokens.dismiss(name)
    link = services.desk.links.get(name)
    if isinstance(link, AgentLink):
        link.close(POLICY, "this node's credential was revoked")
    log.info("node_revoked", node=name)
    return Response(status_code=204)


async def known_token(connection: HTTPConnection) -> str:
    """The join token in the request's header. Raises Unauthorized."""
    services: Services = connection.app.state.services
    token = bearer(connection.headers.get("authorization"))
    await asyncio.to_thread(joining.check_known, services.store, token)
    return token


@router.post("/agent/join", dependencies=[JOINING], responses=refusals(409))
async def join(
    services: ServicesHere, connection: Request, token: Annotated[str, Depends(known_token)], request: JoinRequest
) -> MembershipView:
    """Exchanges a join token for a credential that the node made itself."""
    node, sha256 = NodeId(request.node), request.credential_sha256
    if NAME.fullmatch(node) is None:
        raise SpecError("node", node, "use 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends")
    if not is_sha256(sha256):
        raise SpecError("credential_sha256", sha256, "send the SHA-256 of the credential, in hexadecimal")
    if _is_anothers(services, node):
        raise Conflict("node", node, "another node has this name; choose one with --name")
    now_ms = services.clock.now_ms()
    note = Note(at_ms=now_ms, who=f"node {node}", token="", what="agent.join", target=node, address=address_of(connection))
    await services.control.call(
        lambda controller: joining.exchange(services.store, controller.epoch, token, sha256, node, now_ms, note)
    )
    services.tokens.admit(sha256, node)
    log.info("node_joined", node=node)
    return MembershipView(node=node)


def _is_anothers(services: Services, node: NodeId) -> bool:
    """Whether a node that connects with the home's own token has that name: the home's agent, or another that is here now."""
    here = node in services.desk.links and not services.tokens.holds(node)
    return here or node == node_name(services.home)


@router.get("/agent/membership", dependencies=[NODES])
async def membership(asker: AskerHere) -> MembershipView:
    """Whether a node's credential still opens the door, and as which node."""
    return MembershipView(node=asker.caller.node or "")


@router.websocket("/agent", dependencies=[SOCKET])
async def agent(socket: WebSocket) -> None:
    """The agent's protocol, core.messages, behind the node's credential or token."""
    services: Services = socket.app.state.services
    try:
        caller = (await found_node(socket)).caller
    except Unauthorized as error:
        noted(socket, error)
        raise WebSocketException(1008, str(error)) from error
    await socket.accept()
    await services.desk.serve(socket, partial(services.tokens.check_name, caller))
