"""The tracking process: outbox entries in on stdin, answers out on stdout, one JSON line each, until stdin ends.

    {"seq": 7, "entry": {...}}  ->  {"done": 7}                      the tracker has it, or
                                    {"done": 7, "refused": "..."}    it will never take it, or
                                    {"retry": 7, "error": "..."}     not now: send it again later

What fails while the tracker is there is refused after TRIES_MAX times, so that no entry holds up those behind it for ever.

A process of its own, so that MLflow's seconds of import and its locks never touch the server; MLflow is imported at the first
entry. What libraries print goes to stderr.
"""

import json
import os
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


def main(home: Path) -> None:
    """Serve until stdin ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        for answer in serve(sys.stdin, lambda: MlflowStore(home).apply):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


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
            entry = wire.build(Entry, request.get("entry"))
            apply = apply or _opened(open_store)
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


def _opened(open_store: Callable[[], Apply]) -> Apply:
    """A store that cannot be opened is no entry's fault."""
    try:
        return open_store()
    except PhalanxError as error:
        raise StoreUnavailable(str(error)) from error


def _seq(request: object) -> int:
    """Raises ValueError for what is no request."""
    if not isinstance(request, dict) or not isinstance(request.get("seq"), int):
        raise ValueError('send {"seq": number, "entry": {...}}')
    return int(request["seq"])
