"""The server process: the controller on its thread, the API on the event loop, the scheduler and the tracker as children."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import uvicorn

from phalanx.core.errors import Bug, Exit, SetupError
from phalanx.core.ids import AttemptId, NodeId
from phalanx.operate import daemons
from phalanx.operate.control import auth, blob_home, joining, server_log
from phalanx.operate.control.agent_socket import FRAME_BYTES_MAX, AgentDesk
from phalanx.operate.control.api.application import create_app
from phalanx.operate.control.api.guards import LOOPBACK
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
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.notice_pump import NoticePump
from phalanx.operate.control.outbox_pump import OutboxPump
from phalanx.operate.control.ports import NodeLink
from phalanx.operate.control.sealing import Sealing
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.store import Store
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


def run_server(home: Path, command: Command, host: str = "127.0.0.1", port: int = daemons.DEFAULT_PORT, store: str = "") -> int:
    """Serves `home` until SIGTERM or SIGINT; returns the exit code. `port` 0 takes any free one; `store` is where its blobs shall
    be from now on, '' where they are.

    Raises SetupError for a home or port that cannot be had, and when another server has this home.
    """
    if host not in LOOPBACK:
        raise SetupError("host", host, "listen on 127.0.0.1: without TLS the token would travel readable")
    open_home(home)
    with (
        daemons.only_one(home, "server", "another server runs on it; stop that one with `phalanx down`"),
        daemons.listen(host, port) as listener,
    ):
        server_log.write_to(home / "run" / "server.log")
        return asyncio.run(_serve(home, listener, command, store))


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
        notices = NoticePump(services.control, services.store, services.secrets, services.url, services.clock.now_ms)
        return [ticks, pump.run(), notices.run(), Sealing(services.control, services.series).run()]

    async def close(self) -> None:
        await self.services.collector.close()
        await self.scheduler.close()
        await self.tracker.close()
        self.services.control.close()
        self.services.series.close()
        self.services.store.close()


async def _serve(home: Path, listener: socket.socket, command: Command, store: str) -> int:
    life = _Life()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, life.end)  # uvicorn takes them while it serves, and sends what it took here afterwards
    blobs = blob_home.open_blobs(home, store, partial(daemons.note_progress, home, "server"))
    parts = _build(home, _url(listener), command, blobs, life)
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


def _build(home: Path, url: str, command: Command, blobs: BlobStore, life: _Life) -> _Parts:
    store, clock, links = Store(home / "phalanx.db"), MachineClock(), dict[NodeId, NodeLink]()
    tokens = auth.open_tokens(home, store, clock.now_ms(), joining.credentials(store))
    settings = Settings(home=home, lineage=lineage_of, outbox_for=outbox_entries, gang_key=gang_key(home))
    control = ControlThread(Controller(store, clock, links, settings), life.crash)
    getting_on = partial(daemons.note_progress, home, "server")
    journal, series = Journal(home / "journal"), SeriesStore(home / "series", getting_on)
    rebuild(series, journal, control.world.attempts, daemons.boot_id(), getting_on)
    ingest = Ingest(control, journal, series)
    secrets = Secrets(home, store, clock.now_ms)
    words = LastWords(lambda: control.world, journal, lambda names: secrets.values(names).values())
    scheduler = LineProcess("scheduler", command("scheduler"), ANSWER_S_MAX)
    tracker = LineProcess("tracking", command("tracking"), TRACK_S_MAX)
    services = Services(
        home=home,
        url=url,
        control=control,
        store=store,
        clock=clock,
        tokens=tokens,
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
