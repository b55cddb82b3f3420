"""The calls about sharing the fleet: its policy and its queues."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from phalanx.client.http import Line, decoded
from phalanx.core import wire
from phalanx.core.views import PolicyRequest, PolicyView, QueueView

_JSON = {"Content-Type": "application/json"}


def policy(line: Line) -> PolicyView:
    """What is in force."""
    view: PolicyView = line.read(PolicyView, "/policy")
    return view


def set_policy(line: Line, new: Mapping[str, Any], dry_run: bool, url: str, tag: str = "") -> PolicyView:
    """Puts `new` in the place of the whole policy, or only checks it; with a `tag` only of the policy that has it."""
    body = wire.dumps(PolicyRequest, PolicyRequest(policy=new, dry_run=dry_run))
    headers = {**_JSON, "If-Match": tag} if tag else _JSON
    put = partial(line.exchange, "PUT", "/policy", content=body, headers=headers)
    answer = put() if tag else line.repeat(put)  # sent again after a lost answer it would find what it put there itself
    view: PolicyView = decoded(PolicyView, answer, url)
    return view


def queues(line: Line) -> tuple[QueueView, ...]:
    """Every queue that is configured, has jobs or has had devices."""
    return line.read_all(QueueView, "/queues")
