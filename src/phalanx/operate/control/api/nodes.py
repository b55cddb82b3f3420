"""Nodes: look, and take them out of service for a while."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import TypeAdapter

from phalanx.core.errors import NotFound
from phalanx.core.ids import NodeId
from phalanx.core.isolation import exposed
from phalanx.core.views import DrainRequest, HaltRequest, HaltView, NodeView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, RULES, ServicesHere, change
from phalanx.operate.control.api.asker import Asker, AskerHere, directory_of
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.tags import IfMatch, check_match, tag_of, unless_known
from phalanx.operate.control.api.veil import veil_of
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.world import World

router = APIRouter(tags=["nodes"])
Node = Annotated[str, Path(max_length=255)]
_NODES = TypeAdapter(tuple[NodeView, ...])


@router.get("/nodes", dependencies=[READS], responses=LINK, response_model=tuple[NodeView, ...])
async def list_nodes(
    services: ServicesHere, asker: AskerHere, page: Annotated[Page, Depends(Pages("nodes", str, limit=None))]
) -> tuple[NodeView, ...] | Response:
    """Every known node, by name. What other teams hold there has no name."""
    world, strangers = services.control.world, (await directory_of(services)).strangers

    def found() -> tuple[NodeView, ...]:
        known = views.node_views(world, services.desk.seen_ms, strangers)
        return veil_of(services, asker).nodes(page.of(known, lambda one: (one.node,)))

    async def rendered() -> bytes:
        return _NODES.dump_json(found())

    if page.after or page.limit:
        return found()
    key = ("nodes", asker.sight, world.seq, strangers)
    return await services.answers.answer(key, rendered, page.request.headers.get("accept-encoding", ""))


@router.get("/nodes/{node}", dependencies=[READS])
async def get_node(services: ServicesHere, asker: AskerHere, node: Node, request: Request, response: Response) -> NodeView:
    """One node. Its tag is of all but when it was last heard of, so a write that names it is refused once anything else changed."""
    view = await _view(services, asker, NodeId(node))
    unless_known(request, response, view.tag)
    return view


@router.post("/nodes/{node}/drain", dependencies=[RULES], responses=refusals(412))
async def drain(services: ServicesHere, asker: AskerHere, node: Node, request: DrainRequest, if_match: IfMatch = "") -> NodeView:
    """Places nothing new on it; with `now` its gangs are stopped too and start again elsewhere, which uses up no restart. With
    If-Match only while it is, and holds, what its writer has seen."""
    name = NodeId(node)

    def act(controller: Controller) -> None:
        if (tag := _tag(controller.world, asker, name, services.accounts.strangers())) is not None:
            check_match("node", tag, if_match)
        controller.drain(name, request.reason, asker.name, request.now)

    await change(services, asker, "node.drain", node, act)
    return await _view(services, asker, name)


@router.post("/nodes/{node}/undrain", dependencies=[RULES], responses=refusals(412))
async def undrain(services: ServicesHere, asker: AskerHere, node: Node, if_match: IfMatch = "") -> NodeView:
    """It may be given work again."""
    name = NodeId(node)

    def act(controller: Controller) -> None:
        if (tag := _tag(controller.world, asker, name, services.accounts.strangers())) is not None:
            check_match("node", tag, if_match)
        controller.undrain(name, asker.name)

    await change(services, asker, "node.undrain", node, act)
    return await _view(services, asker, name)


@router.post("/halt", dependencies=[RULES])
async def halt(services: ServicesHere, asker: AskerHere, request: HaltRequest) -> HaltView:
    """Before the platform goes down: stops what runs on other nodes. Nothing is started for 10 s; ask again while it is `busy`."""
    view: HaltView = await change(
        services, asker, "platform.halt", f"but {request.but}", lambda controller: controller.halt(NodeId(request.but), asker.name)
    )
    return view


def _tag(world: World, asker: Asker, node: NodeId, strangers: bool) -> str | None:
    """None of a node that is not there. strangers: whether teams do not trust each other, who may then not be given it."""
    record = world.nodes.get(node)
    if record is None:
        return None
    is_open = strangers and exposed(record.shape.isolation)
    return tag_of(asker.sight, record.shape, record.boot, record.up, record.drained, is_open, world.on_nodes.get(node, ()))


async def _view(services: Services, asker: Asker, node: NodeId) -> NodeView:
    """With its tag. Raises NotFound."""
    world = services.control.world
    strangers = (await directory_of(services)).strangers
    found = tuple(one for one in views.node_views(world, services.desk.seen_ms, strangers) if one.node == node)
    if not found:
        raise NotFound("node", node, "no such node; `phalanx node ls` shows them all")
    (shown,) = veil_of(services, asker).nodes(found)
    return replace(shown, tag=_tag(world, asker, node, strangers) or "")
