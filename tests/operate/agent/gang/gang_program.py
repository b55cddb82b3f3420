"""A rank without torch: takes its places, keeps moving, meets one planned fault, and leaves after generation LAST.

Started by test_gang_shim; FAULT is `sigkill`, `sigstop`, `exit` or `hang`, of rank FAULT_RANK (0) in generation 1,
which has HEAVY_BYTES of memory mapped.
"""

import mmap
import os
import signal
import sys
import time

from phalanx.job.sdk import gang as gangs

last, fault = int(os.environ["LAST"]), os.environ.get("FAULT", "")
fault_rank = int(os.environ.get("FAULT_RANK", "0"))
gang = gangs.attach()
assert gang is not None
step = 0
while True:
    place = gang.take_part()
    who = f"rank {os.environ['RANK']} of {place.world_size}, pid {os.getpid()}"
    sys.stdout.write(f"generation {place.generation} as {who}, {place.why!r}\n")
    sys.stdout.flush()
    gang.store().ask({"do": "add", "keys": [f"{place.prefix}/in"], "amount": 1})
    gang.settled()
    if place.generation == last:
        gang.store().ask({"do": "add", "keys": ["out"], "amount": 1})
        while int(gang.store().ask({"do": "add", "keys": ["out"], "amount": 0}).head["is"]) < place.world_size:
            time.sleep(0.01)
        sys.exit(0)
    if place.rank == fault_rank and place.generation == 1 and "HEAVY_BYTES" in os.environ:
        size = int(os.environ["HEAVY_BYTES"])  # which the kernel has to take apart when this process ends
        heavy = os.memfd_create("heavy")
        os.posix_fallocate(heavy, 0, size)
        mapped = mmap.mmap(heavy, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    while not gang.is_over(0.02):
        step += 1
        gang.moved(step, 0)
        if place.rank == fault_rank and place.generation == 1 and step == 3 and fault:
            if fault in ("sigkill", "sigstop"):
                os.kill(os.getpid(), signal.SIGKILL if fault == "sigkill" else signal.SIGSTOP)
            if fault == "exit":
                os._exit(3)
            time.sleep(600)
        if place.rank != fault_rank and fault in ("sigstop", "hang") and step == 4:
            gang.is_over(600)  # as in a collective with the one that hangs
