"""What older versions wrote, in logs, tables and answers, is read: a field that came later has its default."""

from typing import Any

import pytest

from phalanx.core import wire
from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.events import DevicesClaimed, EventBody, JobSubmitted
from phalanx.core.policy import Booking, Policy
from phalanx.core.reasons import NoRoom, Reason
from phalanx.core.spec import JobSpec, Placing
from phalanx.core.states import Running
from phalanx.core.views import PlanView

PLAN = (
    '{"answer":"never","sentence":"x","type":"","num_devices":1,"placed":[],"evicts":[],"reason":null,"position":null,"eta":null,'
    '"changes":[],"cost_per_hour":null,"cost_of_limit":null,"queues":[],"as_of_ms":1}'
)
SLICES = '{"slices":[{"node":"a","devices":[0]}]}'


@pytest.mark.parametrize(
    ("kind", "text", "field", "value"),
    [
        (EventBody, f'{{"kind":"devices_claimed","job":"j-1","placement":{SLICES}}}', "borrowed", False),
        (Running, f'{{"name":"running","attempt":1,"placement":{SLICES}}}', "borrowed", False),
        (Reason, '{"kind":"no_room","asked":2,"free":1,"held":1}', "milli", 0),
        (PlanView, PLAN, "region", ""),
        (Policy, '{"order":"fair","bookings":{}}', "region", ""),
        (Placing, '{"within":"rack"}', "data", {}),
        (Placing, '{"within":"rack"}', "regions", ()),
    ],
)
def test_a_field_that_came_later_has_its_default(kind: Any, text: str, field: str, value: object) -> None:
    read = wire.loads(kind, text)
    assert getattr(getattr(read, "placement", read), field) == value


def test_a_booking_that_would_be_refused_today_is_still_read() -> None:
    """It stands in the table of whoever set it before."""
    text = '{"bookings":{"demo":{"queue":"q","devices":"1","start":"2026-01-01T00:00Z","end":"2026-01-02T00:00Z"}}}'
    assert isinstance(wire.loads(Policy, text).bookings["demo"], Booking)


def test_what_is_new_comes_back_as_it_was() -> None:
    placement = Placement((NodeSlice("a", (0,)),), borrowed=True)  # type: ignore[arg-type]
    spec = JobSpec(name="j", entrypoint="true", placing=Placing(regions=("eu",), data={"eu": "2TB"}))
    for body in (DevicesClaimed("j-1", placement), JobSubmitted("j-1", spec, "", "", "ada", "", 0)):  # type: ignore[arg-type]
        assert wire.loads(EventBody, wire.dumps(EventBody, body)) == body
    assert wire.loads(Reason, wire.dumps(Reason, NoRoom(1, 0, 1, milli=250))) == NoRoom(1, 0, 1, milli=250)
