"""Asks the control plane for the values of an attempt's secrets. They are held in memory, and no error here has one in it."""

import json
from collections.abc import Mapping
from typing import Final

import httpx

from phalanx.core.errors import Conflict, NotFound, ServerUnreachable
from phalanx.core.ids import AttemptId, NodeId
from phalanx.operate.agent.asking import open_http

_TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
_CANNOT: Final = "cannot fetch secrets"


async def fetch(url: str, token: str, node: NodeId, attempt: AttemptId) -> Mapping[str, str]:
    """Name to value. Raises ServerUnreachable when it may be tried again, Conflict when one is not stored or cannot be opened,
    NotFound when it is not this node's to ask, or not any more."""
    try:
        async with open_http(url, _TIMEOUT) as client:
            headers = {"Authorization": f"Bearer {token}"}
            answer = await client.get(f"/api/v1/attempts/{attempt}/secrets", params={"node": node}, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(f"{_CANNOT}: {str(error) or type(error).__name__}") from error
    if answer.is_server_error:
        raise ServerUnreachable(f"{_CANNOT}: the control plane answered {answer.status_code}")
    body = _body(answer)
    if answer.status_code in (httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY):
        raise Conflict("secret", body.get("value", ""), body.get("fix", "was refused by the control plane"))
    if answer.status_code != httpx.codes.OK:
        raise NotFound("secrets", attempt, f"the control plane does not hand them out: it answered {answer.status_code}")
    return body


def _body(answer: httpx.Response) -> dict[str, str]:
    """The answer's object of texts. What is none of the kind is not quoted."""
    try:
        body = json.loads(answer.content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ServerUnreachable(f"{_CANNOT}: the answer is not of a control plane") from None
    return {str(name): str(value) for name, value in body.items()}
