"""A rank's connection to its keeper, which it starts when there is none."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from errno import ENOENT
from pathlib import Path
from typing import BinaryIO, Final

from phalanx.core import wire
from phalanx.core.errors import NotFound, SetupError, StoreUnavailable, UserError
from phalanx.job.checkpoint.keeper import frames
from phalanx.job.checkpoint.keeper.messages import (
    Adopt,
    Answer,
    Asked,
    Fetch,
    Hello,
    Holding,
    Listen,
    Listening,
    Look,
    Make,
    News,
    Refused,
    Request,
    Stock,
    Told,
)
from phalanx.job.checkpoint.keeper.place import IDLE_S, Place
from phalanx.job.checkpoint.keeper.segments import TOO_LITTLE

PATIENCE_S: Final = 30.0
"""A keeper answers within a second."""
FETCH_S: Final = 900.0
"""Hundreds of gigabytes over a slow network."""
TAKING_S: Final = 900.0
"""Hundreds of gigabytes of memory, which the keepers of a node take one after the other, each clearing some gigabytes a second."""
_REFUSALS: Final[dict[str, type[UserError]]] = {TOO_LITTLE: SetupError, "host": SetupError, "replica": NotFound}
_POLL_S: Final = 0.005
_START_AGAIN_S: Final = 0.5
_TRIES: Final = 100
_LOG_LINES: Final = 3


class KeeperGone(StoreUnavailable):
    """The keeper has ended, or does not answer. What it held is still mapped by its rank."""


class Link:
    """One connection. Not for two threads at a time."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(PATIENCE_S)
        self._channel = channel
        self._received = frames.Received()
        self._answer: Answer | None = None
        self._unread: list[News] = []

    def ask(self, message: Hello | Make | Adopt | Fetch, descriptors: Sequence[int] = ()) -> tuple[Holding, list[int]]:
        """The answer, and the segments' descriptors, which are the caller's now. Raises KeeperGone, or what the keeper refused."""
        answer = self._asked(message, descriptors)
        if not isinstance(answer, Holding):
            raise KeeperGone("the snapshot keeper answers out of turn")
        return answer, self._received.take(answer.buffers + answer.former_buffers)

    def listen(self, host: str, secret: str, port: int = 0) -> tuple[str, int]:
        """Host and port where other keepers reach this one: `port` where that is free. Raises KeeperGone, or SetupError when it
        cannot listen there."""
        answer = self._asked(Listen(host=host, secret=secret, port=port))
        if not isinstance(answer, Listening):
            raise KeeperGone("the snapshot keeper answers out of turn")
        return answer.host, answer.port

    def stock(self) -> Stock:
        """What the keeper holds. Raises KeeperGone."""
        answer = self._asked(Look())
        if not isinstance(answer, Stock):
            raise KeeperGone("the snapshot keeper answers out of turn")
        return answer

    def _asked(self, message: Request, descriptors: Sequence[int] = ()) -> Holding | Listening | Stock:
        self._channel.settimeout(_patience_s(message))
        self.say(message, descriptors)
        answer = self._next()
        if isinstance(answer, Refused):
            raise _REFUSALS.get(answer.field, UserError)(answer.field, answer.value, answer.fix)
        return answer

    def say(self, message: Request, descriptors: Sequence[int] = ()) -> None:
        """Raises KeeperGone."""
        try:
            frames.send(self._channel, wire.dumps(Asked, message).encode(), descriptors)
        except OSError as error:
            raise KeeperGone(f"the snapshot keeper is gone ({error})") from error

    def close(self) -> None:
        self._received.close()
        self._channel.close()

    def news(self, wait_s: float = 0.0) -> list[News]:
        """What the keeper said of its own accord; waits up to `wait_s` for the first of it. Raises KeeperGone."""
        if self._channel.fileno() < 0:
            raise KeeperGone("the connection to the snapshot keeper was closed")
        if not self._unread and self._is_readable(wait_s):
            self._hear()
        told, self._unread = self._unread, []
        return told

    def _next(self) -> Answer:
        while self._answer is None:
            self._hear()
        answer, self._answer = self._answer, None
        return answer

    def _hear(self) -> None:
        """Waits for something. Raises KeeperGone."""
        try:
            if not self._received.read(self._channel):
                raise KeeperGone("the snapshot keeper has ended")
            for frame in self._received.frames():
                told: Answer | News = wire.loads(Told, frame)
                if isinstance(told, Answer):
                    self._answer = told
                else:
                    self._unread.append(told)
        except (OSError, ValueError) as error:
            raise KeeperGone(f"the snapshot keeper does not answer ({error})") from error

    def has_ended(self) -> bool:
        """Whether the other side is known to be gone, or this one was closed; waits for nothing."""
        if self._channel.fileno() < 0:
            return True
        if not self._is_readable(0.0):
            return False
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return True

    def _is_readable(self, wait_s: float) -> bool:
        poll = select.poll()  # select() takes no descriptor beyond 1,023
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))


def _patience_s(message: Request) -> float:
    match message:
        case Fetch():
            return FETCH_S + TAKING_S
        case Make():
            return TAKING_S
        case _:
            return PATIENCE_S


def reach(place: Place, idle_s: float = IDLE_S) -> tuple[Link, Holding, list[int]]:
    """Greets the place's keeper and starts one when there is none; what it holds.

    Raises SetupError when none can be started, UserError when the place is another attempt's.
    """
    until_s = time.monotonic() + PATIENCE_S
    start_at_s = 0.0
    while True:
        with contextlib.suppress(KeeperGone):  # one that was just about to end
            if (channel := _connected(place)) is not None:
                return _greeted(Link(channel), place)
        now_s = time.monotonic()
        if now_s >= until_s:
            fix = f"it did not start within {PATIENCE_S:g} s; its last words: {_last_words(place)}"
            raise SetupError("snapshot keeper", str(place.folder), fix)
        if now_s >= start_at_s:
            _start(place, idle_s)  # one too many ends by itself
            start_at_s = time.monotonic() + _START_AGAIN_S
        time.sleep(_POLL_S)


def look(place: Place) -> tuple[Link, Holding, list[int]]:
    """What the place's keeper holds, to be read only; starts none.

    Raises NotFound when there is none, KeeperGone when it has just ended, UserError when the place is another attempt's.
    """
    channel = _connected(place)
    if channel is None:
        raise NotFound("snapshot keeper", str(place.folder), f"there is none in slot {place.slot}")
    return _greeted(Link(channel), place, reads=True)


def _log_of(place: Place) -> BinaryIO:
    """Made with its folder, once more where a keeper that has just ended took that along in between."""
    for _ in range(_TRIES):
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return (place.folder / place.log_name).open("ab")
    raise FileNotFoundError(ENOENT, "another keeper's end removes it again and again", str(place.folder))


def _greeted(link: Link, place: Place, reads: bool = False) -> tuple[Link, Holding, list[int]]:
    try:
        return (link, *link.ask(Hello(attempt=place.attempt, reads=reads)))
    except BaseException:
        link.close()
        raise


def _connected(place: Place) -> socket.socket | None:
    try:
        folder = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        channel.connect(f"/proc/self/fd/{folder}/{place.socket_name}")
    except OSError:
        channel.close()
        return None
    finally:
        os.close(folder)
    return channel


def _start(place: Place, idle_s: float) -> None:
    """Not in the rank's process group, which is killed as a whole; in its session, so that niceness counts between the two. Not on
    its standard error either: whoever reads a script's output to the end would wait for the keeper."""
    root = str(Path(__file__).parents[4])  # that `phalanx` is imported from
    path = os.pathsep.join([root, *(os.environ.get("PYTHONPATH") or "").split(os.pathsep)]).rstrip(os.pathsep)
    words = [str(place.folder), str(place.slot), place.attempt, str(idle_s)]
    try:
        with _log_of(place) as log:
            subprocess.run(
                [sys.executable, "-P", "-m", "phalanx.job.checkpoint.keeper", *words],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, check=True, timeout=PATIENCE_S,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError("snapshot keeper", str(place.folder), f"cannot be started: {error}") from error


def _last_words(place: Place) -> str:
    with contextlib.suppress(OSError):
        return " | ".join((place.folder / place.log_name).read_text(errors="replace").splitlines()[-_LOG_LINES:]) or "none"
    return "none"
