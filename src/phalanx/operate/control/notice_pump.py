"""Delivers notices to webhooks, beside the ticks. Nothing waits for it, and no receiver for another.

A notice that is not accepted (2xx) is sent again, ever more rarely, for a day; then it is given up with a line in the log. Each
receiver has a lane of its own with one POST at a time; what else is due in a lane that failed waits as long as the one that did.
A lane ends after some notices, so that no number of slow receivers keeps the lanes from others; who waited longest for one is next.
A delivery that was accepted in the moment of a crash comes twice, under the same id.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from phalanx.core.errors import Bug, PhalanxError, SetupError, WorldError
from phalanx.operate.control import notices, webhook
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.notices import Ended, Notice
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.store import Store

POLL_S: Final = 1.0
ROWS: Final = 64
"""How many a lane delivers before it ends."""

LANES_MAX: Final = 64
WAITING_MAX: Final = 10_000
"""For one receiver; of more the oldest are given up."""

GIVE_UP_MS: Final = 24 * 3_600_000
BACKOFF_MS: Final = (5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000)
"""Waits after the first, second, ... failure of a notice; the last one is kept."""

_ABOUT_DELIVERY: Final = ("webhook", "secret", "team")
log = structlog.get_logger(__name__)


class NoticePump:
    """`url` is the control plane's, from which receivers are told where the job is. strangers: whether there are teams that do not
    trust each other; may read the database."""

    def __init__(
        self,
        control: ControlThread,
        store: Store,
        secrets: Secrets,
        url: str,
        now_ms: Callable[[], int],
        resolve: webhook.Resolve = webhook.resolve,
        strangers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._control = control
        self._store = store
        self._secrets = secrets
        self._url = url
        self._now_ms = now_ms
        self._resolve = resolve
        self._strangers = strangers
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._served: dict[str, int] = {}  # receivers with something due to the number of the round that opened their last lane
        self._rounds = 0
        self._over: dict[int, _Why] = {}  # accepted or given up, and still waiting as the database has it

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    await self._round()
                except Exception as error:  # noqa: BLE001 (webhooks have no say over the platform: whatever fails is tried again)
                    log.warning("notices_put_off", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(POLL_S)
        finally:
            for lane in self._lanes.values():
                lane.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)

    async def _round(self) -> None:
        """Opens a lane for each receiver that has something due and none yet, those served longest ago first."""
        self._lanes = {to: lane for to, lane in self._lanes.items() if not lane.done()}
        due = await asyncio.to_thread(notices.receivers, self._store, self._now_ms())
        self._rounds += 1
        self._served = {to: self._served.get(to, 0) for to in due}
        for to in sorted(due, key=self._served.__getitem__):
            if to not in self._lanes and len(self._lanes) < LANES_MAX:
                self._served[to] = self._rounds
                self._lanes[to] = asyncio.create_task(self._drain(to))

    async def _drain(self, to: str) -> None:
        """One receiver's, those tried least often first, until one is not accepted."""
        try:
            await self._keep_newest(to)
            for notice in await asyncio.to_thread(notices.due, self._store, to, self._now_ms(), ROWS):
                if not await self._settled(notice):
                    return
        except Exception as error:  # noqa: BLE001 (likewise)
            log.warning("notices_put_off", error=f"{type(error).__name__}: {error}")

    async def _keep_newest(self, to: str) -> None:
        if await asyncio.to_thread(notices.num_waiting, self._store, to) <= WAITING_MAX:
            return
        num = await self._control.call(lambda controller: notices.keep_newest(self._store, controller.epoch, to, WAITING_MAX))
        log.error("notices_given_up", host=urlsplit(to).hostname, count=num, why=f"more than {WAITING_MAX} wait for it")

    async def _settled(self, notice: Notice) -> bool:
        """Whether it is off the list: accepted, or given up."""
        why, for_good = self._over.get(notice.seq, _ACCEPTED), notice.seq in self._over
        if not for_good:
            try:
                why = _Why.of(await self._send(notice))
            except Bug:
                raise
            except Exception as error:  # noqa: BLE001 (whatever a hostile URL or receiver brings about is a failure of that one)
                why, for_good = _why(error), isinstance(error, webhook.Refused)
        now_ms = self._now_ms()
        if why.logged and not for_good and now_ms - int(notice.entry["at_ms"]) < GIVE_UP_MS:
            pause_ms = BACKOFF_MS[min(notice.tries, len(BACKOFF_MS) - 1)]
            tried = {"why": why.logged, "tries": notice.tries + 1}
            log.warning("notice_put_off", **_named(notice), **tried, again_in_s=pause_ms // 1000)
            await self._control.call(lambda controller: notices.put_off(self._store, controller.epoch, notice, now_ms + pause_ms))
            return False
        if why.logged and notice.seq not in self._over:
            log.error("notice_given_up", **_named(notice), why=why.logged, tries=notice.tries + 1)
        self._over[notice.seq] = why
        sent = replace(notice, tries=notice.tries + 1)
        ended = Ended(sent, now_ms, "given_up" if why.logged else "accepted", why.shown)
        await self._control.call(lambda controller: notices.done(self._store, controller.epoch, ended))
        del self._over[notice.seq]
        return True

    async def _send(self, notice: Notice) -> str:
        """Why it was not accepted; '' when it was. Raises Refused, OSError, PhalanxError."""
        loopback = not notice.entry.get("team") or not await asyncio.to_thread(self._strangers)
        target = await self._target(notice.webhook, loopback)
        body = json.dumps(self._told(notice)).encode()
        timestamp_s = self._now_ms() // 1000
        headers = {webhook.TIMESTAMP_HEADER: str(timestamp_s), webhook.ID_HEADER: str(notice.entry["id"]), "User-Agent": "phalanx"}
        if name := str(notice.entry["secret"]):
            headers[webhook.SIGNATURE_HEADER] = webhook.signed(
                body, timestamp_s, await self._key(name, str(notice.entry.get("team", "")))
            )
        status = await webhook.post(target, body, headers)
        return "" if 200 <= status < 300 else f"it answered {status}"

    async def _target(self, url: str, loopback: bool) -> webhook.Target:
        try:
            async with asyncio.timeout(webhook.TIMEOUT_S):
                return await webhook.target_of(url, self._resolve, loopback)
        except TimeoutError as error:
            raise WorldError("its name was not resolved in time") from error
        except UnicodeError as error:  # a label over 63 bytes, or an empty one
            raise webhook.Refused("its host is no name") from error

    async def _key(self, name: str, team: str) -> str:
        values = await asyncio.to_thread(self._secrets.values, [name], team)
        if name not in values:
            raise SetupError("notify.secret", name, f"is not stored any more; `phalanx secret set {name}`")
        return values[name]

    def _told(self, notice: Notice) -> Mapping[str, Any]:
        told = {name: value for name, value in notice.entry.items() if name not in _ABOUT_DELIVERY}
        return {**told, "url": f"{self._url}/api/v1/jobs/{notice.entry['job']}"}


@dataclass(frozen=True, slots=True)
class _Why:
    """Why it was not accepted, '' when it was: in the server's log, and to people, who are shown nothing of the machine, its
    files and the addresses that its resolver knows."""

    logged: str
    shown: str

    @classmethod
    def of(cls, text: str) -> "_Why":
        return cls(text, text)


_ACCEPTED: Final = _Why("", "")


def _why(error: Exception) -> _Why:
    match error:
        case webhook.Refused():
            return _Why(str(error), "nothing is told to its address; docs/notify.md says where webhooks may lead")
        case SetupError(field="notify.secret"):
            return _Why(str(error), "the secret that signs it is not stored any more")
        case PhalanxError() | OSError():
            return _Why(str(error), str(error) if type(error) is WorldError else type(error).__name__)
        case _:
            return _Why.of(type(error).__name__)


def _named(notice: Notice) -> dict[str, Any]:
    """For a log line. Of the webhook its host alone: paths of many services are their password."""
    return {"job": notice.entry["job"], "event_seq": notice.entry["id"], "host": urlsplit(notice.webhook).hostname}
