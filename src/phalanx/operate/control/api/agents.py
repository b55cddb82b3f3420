"""Where agents dial in."""

from fastapi import APIRouter, WebSocket
from starlette.exceptions import WebSocketException

from phalanx.core.errors import Unauthorized
from phalanx.operate.control.api import access
from phalanx.operate.control.api.services import Services

router = APIRouter()


@router.websocket("/agent")
async def agent(socket: WebSocket) -> None:
    """The agent's protocol, core.messages, behind the node token."""
    services: Services = socket.app.state.services
    try:
        access.node(socket)
    except Unauthorized as error:
        raise WebSocketException(1008, str(error)) from error
    await socket.accept()
    await services.desk.serve(socket)
