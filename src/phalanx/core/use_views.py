"""What the API answers about the use of the fleet: quotas, device time, tracked runs, and what their webhooks were told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Strict

from phalanx.core.ids import JobId
from phalanx.core.records import NAN_AS_TEXT
from phalanx.core.wire import CLOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """Of a queue and one type of device: what it holds with those below it, is guaranteed (`quota`), may have at most (`limit`),
    and what of `held` is `borrowed`; None where the policy says nothing. A share of a device is a fraction."""

    queue: str
    type: str
    held: float
    quota: int | None
    limit: int | None
    borrowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageView:
    """Of a queue's own jobs, or of one job (then of `queue`, by `user`), in a window, in milli-devices x milliseconds: `allocated`
    to `attempts` of it, and of that `used` in steps that were measured: 0 of a script that measures none."""

    name: str
    queue: str
    user: str
    attempts: int
    allocated: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The tracked run of a job, over all its attempts. config: its hyperparameters. `step` and `loss`: of the newest step that was
    measured; 0 and None before one was."""

    __pydantic_config__ = NAN_AS_TEXT

    run: JobId
    name: str
    project: str
    state: str
    user: str
    config: Mapping[str, Any]
    config_hash: str
    code: str
    started_ms: int
    finished_ms: int | None
    attempts: int
    step: int
    total_steps: int
    loss: float | None
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
    """A notice of a job's `event` (its seq) to the webhook at `host` that was not accepted yet; tried so often, next at due_ms."""

    id: int
    job: JobId
    event: int
    occasion: str
    host: str
    at_ms: int
    tries: int
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedDeliveryView:
    """Likewise, of one that was `accepted` or `given_up` at ended_ms, the last of `tries`. detail: why it was given up."""

    id: int
    job: JobId
    event: int
    occasion: str
    host: str
    at_ms: int
    tries: int
    ended_ms: int
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShareRequest:
    """Body of PATCH /queues/{queue}: its weight among its siblings, and devices by type guaranteed and at most, each in place of
    all that was there; None leaves it as it is."""

    __pydantic_config__ = CLOSED

    weight: float | None = None
    quota: Mapping[str, Annotated[int, Strict()]] | None = None
    limit: Mapping[str, Annotated[int, Strict()]] | None = None
