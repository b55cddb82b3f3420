"""What a notebook server says of its kernels, by the REST API that Jupyter servers share (jupyter_server's api.yaml)."""

import json
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from phalanx.core.activity import Signal
from phalanx.core.channels import NotebookPlace

ANSWER_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
_NOT_BUSY: Final = ("idle", "dead", "starting")
"""One that nobody has ever spoken to is `starting` for as long as it lives."""
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Loopback is no business of a proxy."""


def kernels(place: NotebookPlace, now_s: float) -> Signal:
    """now_s: Unix time. A kernel that runs a cell is at work, however silent; without an answer nothing is known."""
    try:
        status, running = _ask(place, "status"), _ask(place, "kernels")
        return _judged(status, running, now_s)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Signal("kernel", None, f"the notebook server does not say: {type(error).__name__}")


def _ask(place: NotebookPlace, what: str) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{place.port}/api/{what}", headers={"Authorization": f"token {place.token}"})
    with _OPENER.open(request, timeout=ANSWER_S_MAX) as answer:
        return json.loads(answer.read(ANSWER_BYTES_MAX))


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
