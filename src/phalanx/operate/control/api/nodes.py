"""Nodes: look, and take them out of service for a while."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from phalanx.core.errors import NotFound
from phalanx.core.ids import NodeId
from phalanx.core.views import DrainRequest, HaltRequest, HaltView, NodeView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import BY, ServicesHere
from phalanx.operate.control.api.pages import LINK, Page, Pages
from phalanx.operate.control.api.services import Services

router = APIRouter(tags=["nodes"])
Node = Annotated[str, Path(max_length=255)]


@router.get("/nodes", responses=LINK)
async def list_nodes(
    services: ServicesHere, page: Annotated[Page, Depends(Pages("nodes", str, limit=None))]
) -> tuple[NodeView, ...]:
    """Every known node, by name."""
    return page.of(views.node_views(services.control.world, services.desk.seen_ms), lambda one: (one.node,))


@router.post("/nodes/{node}/drain")
async def drain(services: ServicesHere, node: Node, request: DrainRequest) -> NodeView:
    """Places nothing new on it; with `now` its gangs are stopped too and start again elsewhere, which uses up no restart."""
    name = NodeId(node)
    await services.control.change(lambda controller: controller.drain(name, request.reason, BY, request.now))
    return _view(services, name)


@router.post("/nodes/{node}/undrain")
async def undrain(services: ServicesHere, node: Node) -> NodeView:
    """It may be given work again."""
    await services.control.change(lambda controller: controller.undrain(NodeId(node), BY))
    return _view(services, NodeId(node))


@router.post("/halt")
async def halt(services: ServicesHere, request: HaltRequest) -> HaltView:
    """Before the platform goes down: stops what runs on other nodes. Nothing is started for 10 s; ask again while it is `busy`."""
    return await services.control.change(lambda controller: controller.halt(NodeId(request.but), BY))


def _view(services: Services, node: NodeId) -> NodeView:
    found = next((one for one in views.node_views(services.control.world, services.desk.seen_ms) if one.node == node), None)
    if found is None:
        raise NotFound("node", node, "no such node; `phalanx node ls` shows them all")
    return found
