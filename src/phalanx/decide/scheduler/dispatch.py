"""Which of several clusters a job goes to: residency and capacity forbid, then the least cost in money decides. Pure.

Cost of a cluster in US dollars = devices x run time x price + bytes that must be moved there x egress price + time until it is
done x what an hour of it is worth; of an array the first and the last of these for each job, while its data are moved once. A
cluster that is only for bursts is taken when no other starts the job within `burst_after_ms`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from phalanx.core.ids import JobId

HOUR_MS: Final = 3_600_000
TB: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster, asked about one job. Times are Unix milliseconds.

    start_ms: when the job is expected to start there, by that cluster's own scheduler; None if it never fits. price: US dollars per
    device and hour there. speed: of its devices, against those in which `run_ms` was said. burst: rented only when needed.
    bandwidth: bytes per second at which data arrive there from elsewhere.
    """

    cluster: str
    region: str
    start_ms: int | None
    price: float
    speed: float = 1.0
    burst: bool = False
    bandwidth: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What the dispatcher must know of a job. num_devices: a share of one is a fraction. run_ms: expected on devices of speed 1.
    jobs: so many alike, which read the same data, go there together.

    data: bytes that it reads, by the region in which they lie; those of other regions are moved first. regions: where it may run by
    law or contract; empty is anywhere. deadline_ms: Unix time by which it should be done.
    """

    job: JobId
    num_devices: float
    run_ms: int
    data: Mapping[str, int] = field(default_factory=dict)
    regions: frozenset[str] = frozenset()
    deadline_ms: int | None = None
    jobs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """hour_of_delay: US dollars that one hour of later completion is worth, for the whole job. egress: US dollars per TB moved
    between regions. burst_after_ms: how long the job would rather wait than have a burst cluster rented."""

    hour_of_delay: float = 1.0
    egress: float = 90.0
    burst_after_ms: int = HOUR_MS


Refusal = Literal["residency", "never fits", "burst not needed yet"]


@dataclass(frozen=True, slots=True)
class Route:
    """One way to run the job. late_ms: past its deadline; 0 when in time or without one. cost: the sum of what devices, moved data
    and the time until it is done cost."""

    cluster: str
    cost: float
    ready_ms: int
    done_ms: int
    late_ms: int
    moved_bytes: int
    devices: float
    data: float
    delay: float


@dataclass(frozen=True, slots=True)
class Dispatch:
    """routes: the best first; the job goes to the first. refused: why each other cluster is none."""

    routes: tuple[Route, ...]
    refused: Mapping[str, Refusal]

    @property
    def cluster(self) -> str | None:
        return self.routes[0].cluster if self.routes else None


def dispatch(errand: Errand, offers: Iterable[Offer], now_ms: int, terms: Terms | None = None) -> Dispatch:
    """Routes by lateness against the deadline, cost, time of completion, name; the order of `offers` means nothing."""
    terms = terms or Terms()
    asked = tuple(offers)
    refused = {offer.cluster: why for offer in asked if (why := _refusal(errand, offer)) is not None}
    left = [offer for offer in asked if offer.cluster not in refused]
    owned_start_ms = min((_ready_ms(errand, offer, now_ms) for offer in left if not offer.burst), default=None)
    if owned_start_ms is not None and owned_start_ms - now_ms <= terms.burst_after_ms:
        refused |= {offer.cluster: "burst not needed yet" for offer in left if offer.burst}
    routes = [_route(errand, offer, now_ms, terms) for offer in left if offer.cluster not in refused]
    return Dispatch(tuple(sorted(routes, key=lambda route: (route.late_ms, route.cost, route.done_ms, route.cluster))), refused)


def _refusal(errand: Errand, offer: Offer) -> Refusal | None:
    if errand.regions and offer.region not in errand.regions:
        return "residency"
    return "never fits" if offer.start_ms is None else None


def _moved(errand: Errand, offer: Offer) -> int:
    return sum(size for region, size in errand.data.items() if region != offer.region)


def _ready_ms(errand: Errand, offer: Offer, now_ms: int) -> int:
    """Data travel while the job waits for devices, so the later of the two counts."""
    assert offer.start_ms is not None
    return max(offer.start_ms, now_ms + round(1000 * _moved(errand, offer) / offer.bandwidth))


def _route(errand: Errand, offer: Offer, now_ms: int, terms: Terms) -> Route:
    ready_ms = _ready_ms(errand, offer, now_ms)
    run_ms = round(errand.run_ms / offer.speed)
    done_ms, moved = ready_ms + run_ms, _moved(errand, offer)
    devices = errand.jobs * errand.num_devices * run_ms / HOUR_MS * offer.price
    data, delay = moved / TB * terms.egress, errand.jobs * (done_ms - now_ms) / HOUR_MS * terms.hour_of_delay
    late_ms = max(0, done_ms - errand.deadline_ms) if errand.deadline_ms is not None else 0
    return Route(offer.cluster, devices + data + delay, ready_ms, done_ms, late_ms, moved, devices, data, delay)
