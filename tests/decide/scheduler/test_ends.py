"""When devices come free: what this decision ends, promises and starts moves that, and what nobody touches stays as it was."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.decide.scheduler.room.ends import NEVER, Ends
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import RunningJob, Shape
from phalanx.decide.scheduler.where.fleet import Fleet
from tests.decide.scheduler.closed_loop import ALL, HOUR, MINUTE, NOW, Loop, fleet, gang, name_of
from tests.drawn import examples


def runs(name: str, devices: Sequence[int], limit_ms: int | None, milli: int = 1000) -> RunningJob:
    """On the first node since an hour ago; it ends `limit_ms` after that."""
    found = gang(name, (0, devices))
    shape = replace(found.facts.shape, request=DeviceRequest(("H100",), len(devices), milli))
    placement = Placement((NodeSlice(name_of(0), tuple(devices), milli),))
    return replace(found, facts=replace(found.facts, shape=shape, limit_ms=limit_ms), placement=placement)


class World:
    """One node with so many devices, and the gangs on it."""

    def __init__(self, count: int, *running: RunningJob) -> None:
        self.fleet = Fleet.of(Loop(fleet(1, count), running=list(running)).snapshot().nodes)
        self.ends = Ends(Gangs.of(running, self.fleet.ground), self.fleet, NOW)

    def ready(self, count: int) -> int:
        """Minutes until so many devices are free; -1 for never."""
        spare = (self.fleet.free_cpus, self.fleet.free_memory_bytes)
        at_ms = int(self.ends.ready(Shape(DeviceRequest((), count)), "H100", self.fleet.free["H100"], spare)[0])
        return -1 if at_ms == NEVER else max(0, at_ms - NOW) // MINUTE


def of(*devices: int, milli: int = 1000) -> Placement:
    return Placement((NodeSlice(name_of(0), devices, milli),))


def test_what_a_gang_lets_go_of_is_there_in_a_minute_though_its_limit_is_later() -> None:
    one = runs("one", ALL, 5 * HOUR)
    world = World(8, one)
    assert world.ready(8) == 4 * 60
    world.ends.ends(one)
    assert world.ready(8) == 1
    world.ends.claimed(of(0, 1, 2, 3), [one])
    assert (world.ready(4), world.ready(5)) == (1, -1)
    world.ends.starts(replace(one.facts, limit_ms=HOUR), of(0, 1, 2, 3), MINUTE)
    assert (world.ready(4), world.ready(5)) == (1, 61)


def test_a_shared_device_is_whole_again_when_the_last_share_ends_whoever_is_ended_before() -> None:
    short, long = runs("short", [0], 2 * HOUR, 500), runs("long", [0], 3 * HOUR, 400)
    world = World(1, short, long)
    assert world.ready(1) == 2 * 60
    world.ends.ends(short)
    assert world.ready(1) == 2 * 60, "the other one still holds some of it"
    world.ends.ends(long)
    assert world.ready(1) == 1


def test_a_share_that_starts_keeps_its_device_from_being_whole() -> None:
    short = runs("short", [0], 2 * HOUR, 500)
    world = World(1, short)
    world.ends.starts(replace(short.facts, job=gang("new", (0, [0])).facts.job, limit_ms=4 * HOUR), of(0, milli=500))
    assert world.ready(1) == 4 * 60


def test_a_device_is_promised_as_a_whole_when_shares_are_ended_for_it() -> None:
    one, other = runs("one", [0], None, 500), runs("other", [0], None, 500)
    world = World(1, one, other)
    for gang_ in (one, other):
        world.ends.ends(gang_)
    assert world.ready(1) == 1
    world.ends.claimed(of(0), [one, other])
    assert world.ready(1) == -1
    world.ends.starts(replace(one.facts, limit_ms=HOUR), of(0), MINUTE)
    assert world.ready(1) == 61


HOLDERS = st.lists(st.tuples(st.sampled_from([2, 3, 5, None]), st.booleans()), max_size=3)
"""Of one device: hours of each one's limit, and whether it is ended now."""


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(HOLDERS, min_size=1, max_size=4))
def test_so_many_devices_are_free_when_the_last_holder_of_each_has_gone(devices: list[list[tuple[int | None, bool]]]) -> None:
    """Counted device by device: who is alone holds it whole, others hold parts."""
    running, ended, free_at = list[RunningJob](), list[RunningJob](), list[int]()
    for index, holders in enumerate(devices):
        until = [0]
        for number, (hours, is_ended) in enumerate(holders):
            limit_ms = None if hours is None else hours * HOUR
            one = runs(f"{index}-{number}", [index], limit_ms, 1000 if len(holders) == 1 else 300)
            running.append(one)
            until.append(1 if is_ended else 60 * (hours - 1) if hours is not None else 10**9)
            ended += [one] if is_ended else []
        free_at.append(max(until))
    world = World(len(devices), *running)
    for one in ended:
        world.ends.ends(one)
    for count, minutes in enumerate(sorted(free_at), 1):
        assert world.ready(count) == (-1 if minutes == 10**9 else minutes)
