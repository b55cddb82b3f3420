"""The tracking process: outbox entries in on stdin, answers out on stdout, one JSON line each, until stdin ends.

    {"seq": 7, "entry": {...}}  ->  {"done": 7}                      the tracker has it, or
                                    {"done": 7, "refused": "..."}    it will never take it, or
                                    {"retry": 7, "error": "..."}     not now: send it again later

A process of its own, so that MLflow's seconds of import and its locks never touch the server; MLflow is imported at the first
entry. What libraries print goes to stderr.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.core import wire
from phalanx.core.errors import PhalanxError
from phalanx.record.tracking.entries import Entry
from phalanx.record.tracking.mlflow_store import EntryRefused, MlflowStore

Apply = Callable[[Entry], None]


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
    for line in lines:
        if not line.strip():
            continue
        seq = None
        try:
            request = json.loads(line)
            seq = _seq(request)
            entry = wire.build(Entry, request.get("entry"))
            apply = apply or open_store()
            apply(entry)
            yield {"done": seq}
        except EntryRefused as refused:
            yield {"done": seq, "refused": str(refused)}
        except (PhalanxError, ValueError) as error:
            yield {"retry": seq, "error": f"{type(error).__name__}: {error}"}


def _seq(request: object) -> int:
    """Raises ValueError for what is no request."""
    if not isinstance(request, dict) or not isinstance(request.get("seq"), int):
        raise ValueError('send {"seq": number, "entry": {...}}')
    return int(request["seq"])
