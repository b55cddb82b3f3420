"""Logins by an OpenID provider: where to go, and the exchange of an id token for a token of the platform's."""

import asyncio

from fastapi import APIRouter, Request, Response

from phalanx.core.errors import NotFound, Unauthorized
from phalanx.core.oidc import NO_DEVICES, OidcLoginRequest, OidcView
from phalanx.core.people import MadeTokenView
from phalanx.operate.control.api.access import ANYBODY, ServicesHere
from phalanx.operate.control.api.asker import address_of
from phalanx.operate.control.api.oidc_door import OidcDoor
from phalanx.operate.control.api.openapi import refusals
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.people.accounts import logged_in
from phalanx.operate.control.people.notes import Note

router = APIRouter(tags=["oidc"])
NO_STORE = {"Cache-Control": "no-store"}
_one_at_a_time = asyncio.Lock()
"""Of the event loop's; a provider that is slow holds up logins and nothing else."""


@router.get("/oidc", dependencies=[ANYBODY], responses=refusals(404))
async def begin_oidc(services: ServicesHere, response: Response) -> OidcView:
    """Where to log in, and the nonce to do it with."""
    door = _door(services)
    config = door.provider.config
    response.headers.update(NO_STORE)
    nonce = door.nonces.make(services.clock.monotonic_ms())
    return OidcView(
        issuer=config.issuer, client_id=config.client_id, scope=config.scope, nonce=nonce, device_logins=config.device_logins
    )


@router.post("/oidc/login", status_code=201, dependencies=[ANYBODY], responses=refusals(404, 409))
async def end_oidc(services: ServicesHere, connection: Request, request: OidcLoginRequest, response: Response) -> MadeTokenView:
    """A token for whom the id token means, told this once. 401 for one that is not good, or whose nonce was used."""
    door = _door(services)
    if request.device and not door.provider.config.device_logins:
        raise Unauthorized("device", "true", NO_DEVICES)
    async with _one_at_a_time:
        door.nonces.use(request.nonce, services.clock.monotonic_ms())
        now_ms = services.clock.now_ms()
        who = await asyncio.to_thread(door.provider.identity, request.id_token, request.nonce, now_ms, request.device)
        if request.device:
            door.nonces.spend(request.id_token, services.clock.monotonic_ms())
    note = Note(at_ms=now_ms, who=who.name, token="", what="user.login", target=who.name, address=address_of(connection))
    made = await services.control.call(
        lambda controller: logged_in(services.accounts, controller.epoch, who, door.provider.config, note)
    )
    response.headers.update(NO_STORE)
    return made


def _door(services: Services) -> OidcDoor:
    if services.oidc is None:
        raise NotFound("oidc", "", "this platform knows no OpenID provider; log in with a token of `phalanx token create`")
    return services.oidc
