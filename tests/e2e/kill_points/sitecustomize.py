"""Every Python of a platform under test loads this when it starts: it ends a daemon by SIGKILL at one of its commit points.

KILL_AT is 'DAEMON MOMENT POINT', such as 'server after commit:attempt_placed'. KILL_NEXT is a file that holds such a line while a
daemon that runs already shall die. KILL_POINTS is a file that gets a line for each point met, so that a test notices points nobody
kills at. Without any of them nothing is changed.
"""

import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

Name = Callable[..., Iterable[str]]


def meet(daemon: str, moment: str, points: Iterable[str]) -> None:
    for point in points:
        if path := os.environ.get("KILL_POINTS"):
            with open(path, "a") as seen:  # noqa: PTH123 (this runs at the start of every Python: as little as can be)
                seen.write(f"{daemon} {point}\n")
        if f"{daemon} {moment} {point}" in (os.environ.get("KILL_AT"), asked()):
            os.kill(os.getpid(), signal.SIGKILL)


def asked() -> str:
    try:
        with open(os.environ.get("KILL_NEXT", "")) as opened:  # noqa: PTH123 (as above)
            return opened.read()
    except OSError:
        return ""


def watch(daemon: str, where: str, name: str, points: Name) -> None:
    """Puts a call of `meet` around the function `name` of a module or class."""
    module, _, kind = where.partition(":")
    owner: Any = importlib.import_module(module)
    owner = getattr(owner, kind) if kind else owner
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def watched(*args: Any, **kwargs: Any) -> Any:
        named = list(points(*args, **kwargs))
        meet(daemon, "before", named)
        result = inner(*args, **kwargs)
        meet(daemon, "after", named)
        return result

    setattr(owner, name, watched)


def watch_all(daemon: str) -> None:
    # First of all: others bind it by name when they are imported.
    watch(daemon, "phalanx.storage.atomic", "write_atomic", lambda path, *_, **__: [f"file:{path.name}"])
    if daemon == "server":
        store = "phalanx.operate.control.store:Store"
        watch(daemon, store, "claim_lead", lambda *_: ["lead"])
        watch(daemon, store, "set_tokens", lambda *_: ["tokens"])
        watch(daemon, store, "outbox_done", lambda *_: ["outbox_done"])
        watch(daemon, store, "commit", lambda _, __, commit: {f"commit:{event.body.kind}" for event in commit.events})
        watch(daemon, "phalanx.record.telemetry.journal:Journal", "write", lambda _, stream, *__: [f"journal:{stream}"])
        watch(daemon, "phalanx.storage.blobs:BlobStore", "put_checked", lambda *_: ["blob"])
    else:
        watch(daemon, "phalanx.operate.agent.attempts", "accept", lambda *_: ["accept"])
        watch(daemon, "phalanx.operate.agent.attempts", "discard", lambda *_: ["discard"])


if os.environ.get("KILL_AT") or os.environ.get("KILL_POINTS"):
    words = sys.orig_argv
    for daemon in ("server", "agent"):
        if "phalanx.app" in words and daemon in words:
            watch_all(daemon)
