"""What a notebook server says of its kernels, by the REST API that Jupyter servers share (jupyter_server's api.yaml)."""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import httpx

from phalanx.core.activity import Signal
from phalanx.core.channels import NotebookPlace

HOST: Final = "127.0.0.1"
ANSWER_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
_NOT_BUSY: Final = ("idle", "dead", "starting")
"""One that nobody has ever spoken to is `starting` for as long as it lives."""


async def kernels(place: NotebookPlace, now_s: float, limit_s: float = ANSWER_S_MAX) -> Signal:
    """now_s: Unix time. A kernel that runs a cell is at work, however silent; without a whole answer in `limit_s` nothing is known.

    The server is the job's: it is given no more time by answering slowly, and sends us, with its token, nowhere else.
    """
    try:
        async with asyncio.timeout(limit_s), httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=limit_s) as client:
            status, running = await _ask(client, place, "status"), await _ask(client, place, "kernels")
        return _judged(status, running, now_s)
    except (OSError, TimeoutError, httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return Signal("kernel", None, f"the notebook server does not say: {type(error).__name__}")


async def _ask(client: httpx.AsyncClient, place: NotebookPlace, what: str) -> Any:
    url, headers = (
        f"http://{HOST}:{place.port}/api/{what}",
        {"Authorization": f"token {place.token}", "Accept-Encoding": "identity"},
    )
    async with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"it answers {answer.status_code}")
        body = b""
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"it answers with more than {ANSWER_BYTES_MAX} bytes")
    return json.loads(body)


def _judged(status: Mapping[str, Any], running: list[Mapping[str, Any]], now_s: float) -> Signal:
    busy = [one for one in running if one["execution_state"] not in _NOT_BUSY]
    if busy:
        return Signal("kernel", 0, f"{len(busy)} of {len(running)} at work")
    times = [_unix_s(str(one["last_activity"])) for one in running]
    last_s = max([_unix_s(str(status["started"])), *times])
    said = f"{len(running)} idle" if running else "none"
    return Signal("kernel", max(0, int((now_s - last_s) * 1000)), said)


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
