"""A rank that snapshots and then waits to be killed: `python -m tests.job.checkpoint.snapshot_rank FOLDER ACT`.

Says `ready PID-OF-KEEPER` when it stands where ACT says: `sealed` after steps 1 and 2, `copying` in the middle of step 3.
"""

import sys
import time
from pathlib import Path

from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from tests.job.checkpoint.snapshot_parts import PARTS, filled


def main(folder: Path, act: str) -> None:
    memory = Memory.attach(Place(folder=folder, slot=0, attempt="lm-1.1"), PARTS, buffers=2)
    for step in (1, 2):
        draft = memory.begin(step, generation=step)
        assert draft is not None
        for part in PARTS:
            draft.put(part, filled(part, step))
        draft.seal(note=f"of step {step}")
    if act == "copying":
        draft = memory.begin(3)
        assert draft is not None
        draft.put(PARTS[0], filled(PARTS[0], 3))
    sys.stdout.write(f"ready {memory.keeper_pid}\n")
    sys.stdout.flush()
    time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
