"""`python -m phalanx.job.checkpoint.keeper FOLDER SLOT ATTEMPT IDLE_S`: leaves its parent at once and keeps.

Next to nothing is imported before the fork, so whoever starts a keeper waits for no more than the start of an interpreter.
"""

import os
import sys

from phalanx.job.checkpoint.keeper.only import is_the_only_one


def main(arguments: list[str]) -> None:
    folder, slot, attempt, idle_s = arguments
    if not is_the_only_one(folder, int(slot)) or os.fork():
        os._exit(0)
    import signal
    from pathlib import Path

    from phalanx.job.checkpoint.keeper.place import Place
    from phalanx.job.checkpoint.keeper.process import Keeper

    keeper = Keeper(Place(folder=Path(folder), slot=int(slot), attempt=attempt), float(idle_s))
    signal.signal(signal.SIGTERM, lambda *_: keeper.dismiss())
    os.nice(10)  # training first: what a keeper does can wait for a while; its start cannot, a rank waits for it
    keeper.run()


if __name__ == "__main__":
    main(sys.argv[1:])
