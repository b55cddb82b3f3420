"""The server process: the controller on its thread, the API on the event loop, the scheduler and the tracker as children."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import uvicorn

from phalanx.core.errors import Bug, Exit, SetupError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.operate import daemons
from phalanx.operate.control import auth, blob_home, database_home, joining, server_log
from phalanx.operate.control import standby as standby_needs
from phalanx.operate.control.agent_socket import FRAME_BYTES_MAX, AgentDesk
from phalanx.operate.control.api.application import create_app
from phalanx.operate.control.api.doors import Doors
from phalanx.operate.control.api.guards import LOOPBACK
from phalanx.operate.control.api.oidc_door import open_door
from phalanx.operate.control.api.sending import OpenStreams
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.artifacts import Artifacts
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.deciding import ANSWER_S_MAX, Decider
from phalanx.operate.control.gang_keys import gang_key
from phalanx.operate.control.gc_run import Collector
from phalanx.operate.control.ingest import Ingest
from phalanx.operate.control.last_words import LastWords
from phalanx.operate.control.leadership import Leadership, await_lead, claim, holder_of, this_process
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.notice_pump import NoticePump
from phalanx.operate.control.outbox_pump import OutboxPump
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.ports import NodeLink
from phalanx.operate.control.sealing import Sealing
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.store import FIRST_LEASED, Store, Superseded
from phalanx.operate.control.tail import Tail
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from phalanx.operate.home import open_home
from phalanx.record.telemetry.journal import Journal
from phalanx.record.telemetry.series import SeriesStore, rebuild
from phalanx.record.tracking.entries import Measured
from phalanx.storage.blobs import BlobStore

TRACK_S_MAX: Final = 120.0
"""The tracker's first answer waits for MLflow's import and migrations: 10 s on a busy small machine."""

GRACEFUL_S: Final = 3
Command = Callable[[str], Sequence[str]]
"""The argument vector of a child process: of 'scheduler' or 'tracking'."""

log = structlog.get_logger(__name__)


def run_server(
    home: Path,
    command: Command,
    host: str = "127.0.0.1",
    port: int = daemons.DEFAULT_PORT,
    store: str = "",
    database: str = "",
    standby: bool = False,
) -> int:
    """Serves `home` until SIGTERM or SIGINT; returns the exit code. `port` 0 takes any free one; `store` is where its blobs shall
    be from now on, '' where they are; `database` likewise. A `standby` waits until nobody else leads the database.

    Raises SetupError for a home, port or database that cannot be had, and when another server has this home or database.
    """
    if host not in LOOPBACK:
        raise SetupError("host", host, "listen on 127.0.0.1: without TLS the token would travel readable")
    open_home(home)
    if standby:
        return _stand_by(home, command, host, port, store, database)
    with (
        daemons.only_one(home, "server", "another server runs on it; stop that one with `phalanx down`"),
        daemons.listen(host, port) as listener,
        _opened(home, database) as (opened, leadership),
    ):
        if opened.revision() < FIRST_LEASED:
            opened.upgrade()
        epoch = claim(leadership, opened.shown)
        return _lead(home, listener, command, store, opened, leadership, epoch)


def _stand_by(home: Path, command: Command, host: str, port: int, store: str, database: str) -> int:
    """Beside a server of this home, or in a home of its own; the port is taken once this one leads."""
    with _opened(home, database) as (opened, leadership):
        with daemons.only_one(home, "standby", "another standby waits on it already"):
            epoch = _waited(home, opened, leadership)
        with _listener(host, port) as listener:
            return _lead(home, listener, command, store, opened, leadership, epoch)


def _waited(home: Path, opened: Store, leadership: Leadership) -> int:
    """The epoch, once nobody else leads. Raises SetupError for what this home lacks to lead."""
    signal.signal(signal.SIGTERM, _stop_waiting)
    if opened.revision() < FIRST_LEASED:
        fix = "was made by a version that knew of no standbys; start its own server once with `phalanx up`, which upgrades it"
        raise SetupError("database", opened.shown, fix)
    try:
        for lacking in standby_needs.check(home, opened, holder_of(opened.leader().holder)):
            log.warning("standby_lacks", lacking=lacking)
        daemons.record_self(home, "standby")
        epoch = await_lead(leadership, opened, lambda leader: log.info("standby_waits", leader=leader, database=opened.shown))
    finally:
        daemons.erase_self(home, "standby")
    log.warning("standby_leads", epoch=epoch)
    return epoch


def _stop_waiting(*_: object) -> None:
    raise SystemExit(Exit.OK)


def _listener(host: str, port: int) -> socket.socket:
    """The port that was asked for may be that of the leader that hangs: better another one than none."""
    try:
        return daemons.listen(host, port)
    except SetupError as error:
        log.warning("port_taken", error=str(error))
        return daemons.listen(host, 0)


@contextmanager
def _opened(home: Path, database: str) -> Iterator[tuple[Store, Leadership]]:
    """The home's database, of which nothing is changed before this process leads it."""
    server_log.write_to(home / "run" / "server.log")
    database_home.choose(home, database, os.environ, running=False)
    opened = Store(database_home.place(home), upgrade=False)
    leadership = Leadership(opened, this_process(home))
    try:
        yield opened, leadership
    finally:
        leadership.close()
        opened.close()


def _lead(
    home: Path, listener: socket.socket, command: Command, store: str, opened: Store, leadership: Leadership, epoch: int
) -> int:
    life = _Life()
    leadership.keep(life.crash)
    opened.upgrade()
    return asyncio.run(_serve(home, listener, command, store, life, opened, leadership, epoch))


class MachineClock:
    """The machine's time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class _Life:
    """How long to serve: until a signal, or until a promise of ours is broken."""

    def __init__(self) -> None:
        self.bug: BaseException | None = None
        self.over = False
        self.server: uvicorn.Server | None = None

    def end(self, *_: object) -> None:
        self.over = True
        if self.server is not None:
            self.server.should_exit = True

    def crash(self, error: BaseException) -> None:
        """Memory cannot be trusted any more, the database can: the next process starts from it."""
        if isinstance(error, Superseded):
            log.critical("superseded", error=str(error), this="ends now; nothing that it still does is taken by database or nodes")
        else:
            log.critical("bug", exc_info=error)
        self.bug = error
        self.end()


class _Uvicorn(uvicorn.Server):
    """Leaves the server's record once it listens, and ends the streams before it waits for what is open."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], streams: OpenStreams) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._streams = streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.closing = True
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What has to be kept going beside the API, and put away at the end."""

    services: Services
    ingest: Ingest
    scheduler: LineProcess
    tracker: LineProcess

    def background(self) -> list[Coroutine[Any, Any, None]]:
        services = self.services
        pump = OutboxPump(services.control, self.tracker, lambda attempt: _measured(services.series, attempt))
        ticks = services.control.run_ticks(Decider(self.scheduler).decide)
        notices = NoticePump(
            services.control,
            services.store,
            services.secrets,
            services.url,
            services.clock.now_ms,
            strangers=lambda: services.accounts.directory().strangers,  # `Accounts.strangers` is the control thread's alone
        )
        return [ticks, pump.run(), notices.run(), Sealing(services.control, services.series).run()]

    async def close(self) -> None:
        await self.services.collector.close()
        await self.scheduler.close()
        await self.tracker.close()
        self.services.control.close()
        self.services.series.close()


async def _serve(
    home: Path,
    listener: socket.socket,
    command: Command,
    store: str,
    life: _Life,
    opened: Store,
    leadership: Leadership,
    epoch: int,
) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, life.end)  # uvicorn takes them while it serves, and sends what it took here afterwards
    blobs = blob_home.open_blobs(home, store, partial(daemons.note_progress, home, "server"))
    parts = _build(home, _url(listener), command, blobs, life, opened, leadership, epoch)
    try:
        await parts.ingest.catch_up(partial(daemons.note_progress, home, "server"))
        working = [asyncio.create_task(_kept(work, life)) for work in parts.background()]
        try:
            await _listen(home, parts.services, listener, life)
        finally:
            life.end()
            for work in working:
                work.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    finally:
        daemons.erase_self(home, "server")
        await parts.close()
    log.info("server_ended", bug=repr(life.bug) if life.bug else None)
    return Exit.BUG if life.bug else Exit.OK


def _build(
    home: Path, url: str, command: Command, blobs: BlobStore, life: _Life, store: Store, leadership: Leadership, epoch: int
) -> _Parts:
    clock, links = MachineClock(), dict[NodeId, NodeLink]()
    tokens = auth.open_tokens(home, store, epoch, clock.now_ms(), joining.credentials(store))
    accounts = Accounts(store, clock.now_ms)
    settings = Settings(
        home=home, lineage=lineage_of, outbox_for=outbox_entries, gang_key=gang_key(home), strangers=accounts.strangers
    )
    control = ControlThread(Controller(store, clock, links, settings, epoch), life.crash, check_lease=leadership.check)
    getting_on = partial(daemons.note_progress, home, "server")
    journal, series = Journal(home / "journal"), SeriesStore(home / "series", getting_on)
    rebuild(series, journal, control.world.attempts, daemons.boot_id(), getting_on)
    ingest = Ingest(control, journal, series)
    secrets = Secrets(home, store, clock.now_ms)
    words = LastWords(lambda: control.world, journal, lambda spec: secrets.values(spec.all_secrets, spec.team).values())
    scheduler = LineProcess("scheduler", command("scheduler"), ANSWER_S_MAX)
    tracker = LineProcess("tracking", command("tracking"), TRACK_S_MAX)
    services = Services(
        home=home,
        url=url,
        control=control,
        store=store,
        clock=clock,
        tokens=tokens,
        accounts=accounts,
        doors=Doors(),
        oidc=open_door(home),
        secrets=secrets,
        blobs=blobs,
        collector=Collector(home, control, store, series, blobs, clock),
        journal=journal,
        series=series,
        desk=AgentDesk(control, links, ingest, settings.lease_ms, clock.now_ms, {}, Artifacts(control, store, blobs), words),
        processes=lambda: _processes(home, links, {"scheduler": scheduler.pid, "tracking": tracker.pid}),
        tail=Tail(control, store),
        grown=ingest.grown,
    )
    return _Parts(services, ingest, scheduler, tracker)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _listen(home: Path, services: Services, listener: socket.socket, life: _Life) -> None:
    config = uvicorn.Config(
        create_app(services),
        http="h11",
        ws="websockets-sansio",
        ws_max_size=FRAME_BYTES_MAX,
        ws_ping_interval=None,  # whoever waits for a slow reader reads no pong; the dead are found by leases and by TCP
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    server = _Uvicorn(config, lambda: _ready(home, services), services.streams)
    life.server, server.should_exit = server, life.over
    await server.serve([listener])


def _ready(home: Path, services: Services) -> None:
    daemons.record_self(home, "server", services.url)
    log.info("server_listens", url=services.url, epoch=services.control.epoch)


async def _kept(work: Coroutine[Any, Any, None], life: _Life) -> None:
    """A part that ends before its time is a bug, however it ends: without it the server would look well and do nothing."""
    try:
        await work
    except asyncio.CancelledError:
        if not life.over:
            life.crash(Bug(f"{work} was cancelled while the server serves"))
        raise
    except Exception as error:  # noqa: BLE001 (whatever ends a part that must not end is told, and ends the process)
        life.crash(error)
    else:
        life.crash(Bug(f"{work} ended by itself"))


def _measured(series: SeriesStore, attempt: AttemptId) -> Measured:
    return series.steps(attempt), series.metrics(attempt)


def _processes(home: Path, links: Mapping[NodeId, NodeLink], children: Mapping[str, int | None]) -> dict[str, int]:
    """Pids by name. The agent counts once it is connected."""
    agent = daemons.alive(home, "agent") if links else None
    pids = {"server": os.getpid(), **children, "agent": agent.pid if agent else None}
    return {name: pid for name, pid in pids.items() if pid is not None}
