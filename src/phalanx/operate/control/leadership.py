"""Who leads: a lease that this process renews on a thread of its own, and without which it stops acting.

The lease's end is on the database's clock for others, and on CLOCK_BOOTTIME here, counted from before each renewal was sent: so a
leader stops before another may begin, however long an answer took. A database that is away lets a lease run out and ends nobody:
where nobody took over meanwhile, the next renewal goes on. One that another took ends this process.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final

import structlog

from phalanx.core import wire
from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.operate import daemons
from phalanx.operate.control.store import Held, Store

LEASE_MS: Final = 3_000
RENEW_MS: Final = 750
LOOK_MS: Final = 200
"""A takeover comes at most lease + look + what a start takes after the last renewal: under 5 s."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One process for ever: its pid in that namespace of pids, and when it began since that boot. nonce: of this lead."""

    host: str
    home: str
    pid: int
    start_ticks: int
    boot: str
    namespace: str
    nonce: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}, of {self.home}"


def this_process(home: Path) -> Holder:
    return Holder(
        host=socket.gethostname(),
        home=str(home),
        pid=os.getpid(),
        start_ticks=daemons.start_ticks(os.getpid()),
        boot=daemons.boot_id(),
        namespace=_namespace(),
        nonce=secrets.token_hex(8),
    )


def holder_of(text: str) -> Holder | None:
    """None for the words of another version."""
    try:
        found: Holder = wire.loads(Holder, text)
    except ValueError:
        return None
    return found


def is_here(holder: Holder | None) -> bool:
    """Whether it is, or was, a process that could be seen from here."""
    return holder is not None and (holder.boot, holder.namespace) == (daemons.boot_id(), _namespace())


def is_gone(text: str) -> bool:
    """Whether whoever holds the lease has certainly ended: then nobody need wait for its end."""
    holder = holder_of(text)
    return holder is not None and is_here(holder) and daemons.start_ticks(holder.pid) != holder.start_ticks


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Leadership:
    """This process's lease over one store. `claim` first; `close` gives it back."""

    def __init__(self, store: Store, holder: Holder, lease_ms: int = LEASE_MS, clock_ms: Callable[[], int] = boottime_ms) -> None:
        self._store = store
        self._holder = wire.dumps(Holder, holder)
        self._lease_ms = lease_ms
        self._clock_ms = clock_ms
        self._ends_ms = 0
        self._over = Event()
        self._thread: Thread | None = None

    def claim(self) -> int | Held:
        """The own epoch, or who leads. Raises StoreUnavailable."""
        sent_ms = self._clock_ms()
        claimed = self._store.claim_lead(self._holder, self._lease_ms, is_gone)
        if isinstance(claimed, int):
            self._ends_ms = sent_ms + self._lease_ms
        return claimed

    def renew(self) -> None:
        """Raises Superseded when another leads, StoreUnavailable."""
        sent_ms = self._clock_ms()
        self._store.renew_lead(self._holder, self._lease_ms)
        self._ends_ms = max(self._ends_ms, sent_ms + self._lease_ms)

    def check(self) -> None:
        """Raises StoreUnavailable while the lease is over, as when the database does not answer or this process was stopped."""
        if self._clock_ms() >= self._ends_ms:
            raise StoreUnavailable("the lease of this control plane is over and not yet renewed, so it decides nothing")

    def keep(self, on_lost: Callable[[BaseException], None]) -> None:
        """Renews until `close`. `on_lost` is told once when another took the lead."""
        self._thread = Thread(target=self._renew_all, args=(on_lost,), name="lease", daemon=True)
        self._thread.start()

    def _renew_all(self, on_lost: Callable[[BaseException], None]) -> None:
        while not self._over.wait(RENEW_MS / 1000):
            try:
                self.renew()
            except StoreUnavailable as error:
                log.warning("lease_not_renewed", error=str(error))
            except Bug as error:
                on_lost(error)
                return

    def close(self) -> None:
        """The lease is free from now on, where the database answers."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._store.release_lead(self._holder)
        except (StoreUnavailable, Bug) as error:
            log.warning("lease_not_released", error=str(error))


def claim(leadership: Leadership, shown: str, sleep: Callable[[float], None] = time.sleep) -> int:
    """The epoch, for a server that must lead or not start: one whose lease nobody renews is waited for. Raises SetupError when
    another one leads, StoreUnavailable."""
    seen: Held | None = None
    for _ in range(2 * LEASE_MS // LOOK_MS):
        claimed = leadership.claim()
        if isinstance(claimed, int):
            return claimed
        seen = seen or claimed
        if claimed.expires_ms != seen.expires_ms:
            break
        sleep(LOOK_MS / 1000)
    assert seen is not None
    fix = "leads it; stop that one with `phalanx down`, or start this one as its standby with --standby"
    raise SetupError("database", shown, f"another control plane ({holder_of(seen.holder) or seen.holder}) {fix}")


def await_lead(
    leadership: Leadership,
    store: Store,
    on_waiting: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """The epoch, for a standby: as soon as nobody leads any more, however long that takes. on_waiting is told once for whom."""
    waits = ""
    while True:
        try:
            claimed = leadership.claim()
            if isinstance(claimed, int):
                return claimed
            if not waits:
                waits = str(holder_of(claimed.holder) or claimed.holder)
                on_waiting(waits)
        except StoreUnavailable as error:
            log.warning("standby_cannot_ask", error=str(error))
            end_stalled(store)
        sleep(LOOK_MS / 1000)


def end_stalled(store: Store) -> None:
    """A leader that is stopped inside of a transaction holds SQLite's file for ever. Where its lease is over and it is a process of
    this machine that does not run, it is killed: the file's lock goes with it. One that runs is let be: it upgrades the schema, or
    its disk is full, and another one could do no more. PostgreSQL ends such a session by itself."""
    try:
        held = store.leader()
    except StoreUnavailable:
        return
    holder = holder_of(held.holder) if held.left_ms <= 0 else None
    if not store.is_file or holder is None or not is_here(holder):
        return
    try:
        handle = os.pidfd_open(holder.pid)
    except OSError:
        return
    try:
        if daemons.start_ticks(holder.pid) == holder.start_ticks and is_stopped(holder.pid):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            log.warning("stalled_leader_killed", pid=holder.pid, lease_over_ms=-held.left_ms)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def is_stopped(pid: int) -> bool:
    """By a signal or a debugger. Field 3 of proc(5); the second, the name, may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False
