"""Nodes: look, and take them out of service for a while."""

from typing import Annotated

from fastapi import APIRouter, Path

from phalanx.core.errors import NotFound
from phalanx.core.ids import NodeId
from phalanx.core.views import DrainRequest, HaltRequest, HaltView, NodeView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, RULES, ServicesHere, change
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.api.veil import veil_of

router = APIRouter(tags=["nodes"])
Node = Annotated[str, Path(max_length=255)]


@router.get("/nodes", dependencies=[READS])
async def list_nodes(services: ServicesHere, asker: AskerHere) -> tuple[NodeView, ...]:
    """Every known node, by name. What other teams hold there has no name."""
    return veil_of(services, asker).nodes(views.node_views(services.control.world, services.desk.seen_ms))


@router.post("/nodes/{node}/drain", dependencies=[RULES])
async def drain(services: ServicesHere, asker: AskerHere, node: Node, request: DrainRequest) -> NodeView:
    """Places nothing new on it; with `now` its gangs are stopped too and start again elsewhere, which uses up no restart."""
    name = NodeId(node)
    await change(
        services, asker, "node.drain", node, lambda controller: controller.drain(name, request.reason, asker.name, request.now)
    )
    return _view(services, name)


@router.post("/nodes/{node}/undrain", dependencies=[RULES])
async def undrain(services: ServicesHere, asker: AskerHere, node: Node) -> NodeView:
    """It may be given work again."""
    await change(services, asker, "node.undrain", node, lambda controller: controller.undrain(NodeId(node), asker.name))
    return _view(services, NodeId(node))


@router.post("/halt", dependencies=[RULES])
async def halt(services: ServicesHere, asker: AskerHere, request: HaltRequest) -> HaltView:
    """Before the platform goes down: stops what runs on other nodes. Nothing is started for 10 s; ask again while it is `busy`."""
    view: HaltView = await change(
        services, asker, "platform.halt", f"but {request.but}", lambda controller: controller.halt(NodeId(request.but), asker.name)
    )
    return view


def _view(services: Services, node: NodeId) -> NodeView:
    found = next((one for one in views.node_views(services.control.world, services.desk.seen_ms) if one.node == node), None)
    if found is None:
        raise NotFound("node", node, "no such node; `phalanx node ls` shows them all")
    return found
