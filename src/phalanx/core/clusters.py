"""Clusters that a job may go to: what a user's clusters file says of them, and what they offered for a job. Frozen.

Each is a platform of its own, with its own line, policy and prices; `clusters_parse` is the way in for the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import ConfigDict

from phalanx.core.units import duration_ms, size_bytes
from phalanx.core.views import PlanView

CLUSTERS_FILE: Final = "clusters.yaml"
"""In the home of whoever submits."""

EVERY: Final = "all"
"""Stands for every cluster of the file, and names none."""

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One platform.

    home: of one on this machine; or else url: of its API, and token_file: the file with a token for it. Paths start at the folder
    of the clusters file.
    price: US dollars per device and hour, where what it answers itself is not what is paid. speed: of its devices, against those
    that the job's `max_duration` was said of. burst: taken only when no other starts the job soon. bandwidth: bytes per second
    at which data arrive there from elsewhere, such as '1GB'.
    """

    __pydantic_config__ = _STRICT

    home: str = ""
    url: str = ""
    token_file: str = ""
    price: float | None = None
    speed: float = 1.0
    burst: bool = False
    bandwidth: str = "1GB"

    @property
    def bandwidth_bytes(self) -> int:
        return size_bytes(self.bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """The file. hour_of_delay: US dollars that one hour of later completion of a job is worth. egress: US dollars per TB moved
    between regions. burst_after: how long a job waits before a burst cluster is taken."""

    __pydantic_config__ = _STRICT

    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    hour_of_delay: float = 1.0
    egress: float = 90.0
    burst_after: str = "1h"

    @property
    def burst_after_ms(self) -> int:
        return duration_ms(self.burst_after)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cluster said of a job: its plan, or the `problem` for which there is none; `away`, it said nothing."""

    cluster: str
    plan: PlanView | None
    problem: str = ""
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferView:
    """One cluster and one job. verdict: chosen, possible, refused (it cannot or need not go there), away (it did not answer).

    start_ms: when it is expected to start there, None where that is not known; ready_ms: when its data are there too. done_ms: when
    it is expected to be done, late_ms of that past its deadline. cost: US dollars, the sum of the three parts. All None when there
    is no way to run it there.
    """

    cluster: str
    verdict: Literal["chosen", "possible", "refused", "away"]
    sentence: str
    region: str = ""
    start_ms: int | None = None
    ready_ms: int | None = None
    done_ms: int | None = None
    late_ms: int | None = None
    moved_bytes: int | None = None
    cost: float | None = None
    cost_of_devices: float | None = None
    cost_of_data: float | None = None
    cost_of_delay: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchView:
    """Where a job would go: the offers, the best first, and `chosen`, the cluster of the first; None when none takes it. run_ms:
    how long it was taken to run."""

    job: str
    chosen: str | None
    offers: tuple[OfferView, ...]
    run_ms: int
    as_of_ms: int
    currency: str = "USD"
    notes: tuple[str, ...] = ()
