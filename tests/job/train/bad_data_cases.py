"""A run that meets a damaged block, for `test_bad_data_run.py`: run by `python -m` in one process, answers as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from phalanx.core import wire
from phalanx.core.data_asked import AuditAsked
from phalanx.core.data_audit import DataAudit
from phalanx.core.training_data import DataSource
from phalanx.job.checkpoint import manifest
from phalanx.job.train.audited import audited
from phalanx.job.train.device import gang
from phalanx.job.train.resumed import CURSOR
from tests.job.train.mixed_cases import STOP, folder, leg


def cursor_of(job: Path) -> dict[str, Any]:
    places = dict(manifest.committed(job / "checkpoints"))
    found: dict[str, Any] = json.loads(str(manifest.read(places[max(places)])[0].extra[CURSOR]))
    return found


def main(out: Path, data: str) -> None:
    asked = DataSource(path=data, on_bad_data="quarantine", bad_data_max=0.5)
    with gang() as rank:
        whole = leg(folder(out, "whole"), asked, rank, attempt="lm-1.1")
        job = folder(out, "legs")
        legs = [leg(job, asked, rank, STOP, attempt="lm-1.1")]
        saved = cursor_of(job)
        legs.append(leg(job, asked, rank, attempt="lm-1.2"))
        answer = {
            "whole": whole, "legs": legs, "saved": saved, "last": cursor_of(job),
            "audit": wire.plain(DataAudit, audited(AuditAsked(folder=job))),
        }  # fmt: skip
    (out / "answer.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
