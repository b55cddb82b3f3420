"""The tracking process: outbox entries in on stdin, answers out on stdout, one JSON line each, until stdin ends.

    {"seq": 7, "entry": {...}}  ->  {"done": 7}                      the tracker has it, or
                                    {"done": 7, "refused": "..."}    it will never take it, or
                                    {"retry": 7, "error": "..."}     not now: send it again later
    {"seq": 7, "entry": null}   ->  {"done": 7}                      the tracker is there, or {"retry": 7, "error": "..."}

What fails while the tracker is there is refused after TRIES_MAX times, so that no entry holds up those behind it for ever.

A process of its own, so that MLflow's seconds of import and its locks never touch the server; MLflow is imported at the first
entry. What libraries print goes to stderr. A home has one at a time: that of a killed server ends its line first.
"""

import contextlib
import fcntl
import json
import os
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.errors import PhalanxError, StoreUnavailable, WorldError
from phalanx.record.tracking.entries import Entry
from phalanx.record.tracking.mlflow_store import EntryRefused, MlflowStore

Apply = Callable[[Entry], None]
TRIES_MAX: Final = 3
LOCK_POLL_MS: Final = 50
_FORM: Final = 'send {"seq": number, "entry": {...}}'


def main(home: Path) -> None:
    """Serve until stdin ends, or nobody hears the answers any more."""
    _wait_for_turn(home)
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        for answer in serve(sys.stdin, lambda: MlflowStore(home).apply):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _wait_for_turn(home: Path) -> None:
    """Waits until no other tracking process of this home is left, and ends this one when nobody hears its answers any more: each
    server that was killed left one behind, and together they would take minutes to import and migrate the same."""
    (home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(home / "run" / "tracking.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # held until the process ends
    stdin, taken = select.poll(), False
    stdin.register(0, 0)
    while not taken:
        taken = _taken(handle)
        if not taken and any(events & select.POLLHUP for _, events in stdin.poll(LOCK_POLL_MS)):
            raise SystemExit


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def serve(lines: Iterable[str], open_store: Callable[[], Apply]) -> Iterator[Mapping[str, Any]]:
    """An answer for each line. The store is opened at the first entry, and anew for the next one while that fails."""
    apply: Apply | None = None
    failed: Counter[int | None] = Counter()
    for line in lines:
        if not line.strip():
            continue
        seq = None
        try:
            request = json.loads(line)
            seq = _seq(request)
            entry = _entry(request)
            apply = apply or _opened(open_store)
            if entry is not None:
                apply(entry)
            yield {"done": seq}
        except EntryRefused as refused:
            yield {"done": seq, "refused": str(refused)}
        except WorldError as error:
            yield {"retry": seq, "error": f"{type(error).__name__}: {error}"}
        except (PhalanxError, ValueError) as error:
            failed[seq] += 1
            gave_up = seq is not None and failed[seq] >= TRIES_MAX
            words = f"{type(error).__name__}: {error}"
            yield {"done": seq, "refused": f"failed {failed[seq]} times: {words}"} if gave_up else {"retry": seq, "error": words}


def _entry(request: Mapping[str, Any]) -> Entry | None:
    """None only asks whether the tracker is there. Raises ValueError."""
    if "entry" not in request:
        raise ValueError(_FORM)
    given = request["entry"]
    entry: Entry | None = wire.build(Entry, given) if given is not None else None
    return entry


def _opened(open_store: Callable[[], Apply]) -> Apply:
    """A store that cannot be opened is no entry's fault."""
    try:
        return open_store()
    except (PhalanxError, OSError) as error:
        raise StoreUnavailable(str(error)) from error


def _seq(request: object) -> int:
    """Raises ValueError for what is no request."""
    if not isinstance(request, dict) or not isinstance(request.get("seq"), int):
        raise ValueError(_FORM)
    return int(request["seq"])
