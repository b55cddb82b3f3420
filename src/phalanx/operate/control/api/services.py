"""What the routes need of the server; nothing else reaches them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request

from phalanx.operate.control.agent_socket import AgentDesk
from phalanx.operate.control.api.doors import Doors
from phalanx.operate.control.api.kept_answers import KeptAnswers
from phalanx.operate.control.api.oidc_door import OidcDoor
from phalanx.operate.control.api.sending import OpenStreams
from phalanx.operate.control.auth import Tokens
from phalanx.operate.control.bells import LogBells
from phalanx.operate.control.channels import Channels
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.gc_run import Collector
from phalanx.operate.control.ledger_past import LedgerPast
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.ports import Clock
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.step_times import StepTimes
from phalanx.operate.control.store import Store
from phalanx.operate.control.tail import Tail
from phalanx.record.telemetry.journal import Journal
from phalanx.record.telemetry.series import SeriesStore
from phalanx.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of one server. `url` is where it listens; `processes` gives the pids of the platform's processes by name."""

    home: Path
    url: str
    control: ControlThread
    store: Store
    clock: Clock
    tokens: Tokens
    accounts: Accounts
    doors: Doors
    oidc: OidcDoor | None
    secrets: Secrets
    blobs: BlobStore
    collector: Collector
    journal: Journal
    series: SeriesStore
    desk: AgentDesk
    channels: Channels = field(default_factory=Channels)
    processes: Callable[[], Mapping[str, int]]
    tail: Tail
    grown: LogBells
    streams: OpenStreams = field(default_factory=OpenStreams)
    ledger_past: LedgerPast = field(default_factory=LedgerPast)
    step_times: StepTimes = field(default_factory=StepTimes)
    answers: KeptAnswers = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", KeptAnswers(self.clock.monotonic_ms))


def services_of(request: Request) -> Services:
    """The parts behind the application that serves this request."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services
