"""`python -m phalanx.job.train.fabric_test`: one rank of the test, with torchrun's environment. Rank 0 writes the report into the
job's artifacts, and how far it is into its log."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.core import wire
from phalanx.core.errors import PhalanxError, SpecError
from phalanx.core.fabric_test import REPORT, FabricAsked, FabricReport, checked, progress_line
from phalanx.core.imports import long_imports

with long_imports():  # torch's
    import torch.distributed as dist

    from phalanx.job.sdk import Session, attach
    from phalanx.job.train.device import Rank, backend_of, prepare_device, this_rank
    from phalanx.job.train.fabric_test.timing import together
    from phalanx.job.train.fabric_test.whole import tested
    from phalanx.storage.atomic import write_atomic


def main() -> int:
    """The rank's exit code. Errors that somebody can act on are one line on stderr."""
    try:
        session = attach()
        asked = asked_of(session)
        with joined() as rank:
            report = tested(asked, rank, session.job, said, time.perf_counter, time.time_ns() // 1_000_000)
            if report is not None:
                write_atomic(Path(session.artifacts_dir) / REPORT, wire.dumps(FabricReport, report).encode())
    except PhalanxError as error:
        sys.stderr.write(f"Error: {error.sentence()}\n")
        return int(error.exit_code)
    return 0


def asked_of(session: Session) -> FabricAsked:
    """Raises SpecError."""
    if session.world_size < 2:
        raise SpecError("world_size", session.world_size, "a fabric is tested by two ranks or more; ask for as many devices")
    text = str(session.hyperparameters.get("asked", "{}"))
    try:
        asked: FabricAsked = wire.loads(FabricAsked, text)
    except ValueError as error:
        raise SpecError("hyperparameters.asked", text, f"submit it by `phalanx fabric test` ({error})") from error
    return checked(asked)


@contextmanager
def joined() -> Iterator[Rank]:
    """The process group by torchrun's environment, left on a clean end. It is bound to no device: groups of one that is bound are
    split off by all ranks together, and here only a group's members make it."""
    device = prepare_device()
    dist.init_process_group(backend_of(device))
    yield this_rank(device)
    together(device)
    dist.destroy_process_group()


def said(done: int, total: int, what: str) -> None:
    sys.stdout.write(progress_line(done, total, what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the interpreter's teardown beside torch's threads aborted a finished rank now and then
