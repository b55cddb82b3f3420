"""How long 1,024 ranks on 128 nodes take to find each other: our gang's coordinator and store beside torch's. CPU only.

Usage: python benchmarks/startup.py [--only ID] [--quick] [--ranks N] [--profile]. The last line is one JSON object; the exit code
is 1 when a claim does not hold. --quick: one repeat.

What is simulated is that nodes are machines: their shims' parts in a gang and their ranks are threads of a few processes, and speak
over loopback. What they run is the real thing: node 0's `Leading` in a process of its own, as it is in its shim; a `Relay` for each
other node, over TCP with numbered frames; for each rank a `Gang` with its two threads and signs of life, and a `GangStore` behind
torch's `PrefixStore`. Threads of ranks are there before the clock starts: what their imports cost is no matter of meeting.

`rendezvous_1024_s`: from the word that all may start, until the last rank has its place in the gang, has put its address into the
store, has read rank 0's (as NCCL's unique id is), has come through torch's barrier over the store (as `init_process_group` ends)
and has told its coordinator that it can train; the median of the repeats. `last_through_s`: when the last rank was through with
each part. All processes share this machine's cores, which 128 nodes would not.

Peers, in the same call and in as many processes: `tcp_store_s`, the same steps over torch's `TCPStore`, whose clients all ranks are
(which rank is where is known before). `torchrun_c10d_s`: torchrun's c10d rendezvous of the agents of these nodes, one thread a
node, at the end of which each knows its ranks. torchrun does one after the other, so `peer` is the sum of both. Peers' connections
are there before the clock starts: torch holds the interpreter while it makes one, so that those of a process would come one after
another, as those of 1,024 processes do not.
"""

import argparse
import cProfile
import json
import os
import platform as machine
import selectors
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from parts.crowd import DEADLINE_S, OPEN, Crowd  # type: ignore[import-not-found]  # beside this file
from parts.gang import free_port  # type: ignore[import-not-found]
from torch.distributed.distributed_c10d import PrefixStore, _store_based_barrier
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from phalanx.core.timeouts import as_dict, timeouts
from phalanx.job.sdk.gang import Gang
from phalanx.job.sdk.gang_link import GangGone
from phalanx.job.train.gang_store import GangStore
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.lead import Lead
from phalanx.operate.agent.gang.leading import Leading
from phalanx.operate.agent.gang.relay import Relay

RANKS: Final = 1024
PER_NODE: Final = 8
WORKERS: Final = 4
REPEATS: Final = 3
TARGET_S: Final = 10.0
TIMES: Final = timeouts(600_000)
WAIT: Final = timedelta(seconds=DEADLINE_S)
STEPS: Final = ("placed", "told", "read", "together", "settled")

TCPStore: Final[Any] = dist.TCPStore  # type: ignore[attr-defined]  # torch exports it without saying so to mypy
BARRIER: Final[Any] = _store_based_barrier
"""Its name of a group is a type of its own in some versions of torch."""

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """ranks: a multiple of PER_NODE."""

    ranks: int

    @property
    def nodes(self) -> int:
        return self.ranks // PER_NODE

    def of_node(self, node: int) -> range:
        return range(node * PER_NODE, (node + 1) * PER_NODE)

    def of_worker(self, worker: int) -> range:
        """Nodes."""
        return range(worker, self.nodes, WORKERS)

    @property
    def of_workers(self) -> tuple[tuple[int, ...], ...]:
        """Ranks."""
        return tuple(tuple(rank for node in self.of_worker(one) for rank in self.of_node(node)) for one in range(WORKERS))


# Ours


class Hands:
    """Of a shim whose ranks nobody starts, ends or replaces."""

    def start_spare(self, member: int, node: int) -> bool:
        return True

    def kill(self, member: int, why: str) -> None:
        raise SystemExit(f"process {member} was to be killed: {why}")

    def place(self, member: int, slot: int) -> Mapping[str, Any]:
        return {}

    def dismiss(self, members: Sequence[int]) -> None: ...

    def end_gang(self, why: str, interrupted: bool, grace_ms: int) -> None:
        if interrupted or "finished" not in why:
            sys.stderr.write(f"the gang was to be ended: {why}\n")

    def gang_stands(self, without: Sequence[int], awaits: Sequence[int]) -> None: ...

    def note(self, line: str) -> None: ...


def order(size: Size, node: int, folder: Path, port: int) -> dict[str, Any]:
    """As an agent gives it to its shim."""
    return {
        "nodes": [rank // PER_NODE for rank in range(size.ranks)], "node": node, "token": "t" * 64, "node_token": "n" * 64,
        "spares": 0, "timeouts": as_dict(TIMES), "sizes": [], "socket": str(folder / f"{node}"), "grace_ms": 1_000,
        "host": "127.0.0.1", "port": port,
    }  # fmt: skip


def lead(size: Size, node: int, folder: Path, port: int, over: threading.Event, there: Callable[[], None] = lambda: None) -> None:
    """What a shim's thread does for its part of the gang, until `over`."""
    with selectors.DefaultSelector() as selector:
        kind: Callable[..., Lead] = Leading if node == 0 else Relay
        part = kind(selector, order(size, node, folder, port), TIMES, Hands())
        part.start()
        there()
        while not over.is_set():
            moment = part.next_moment()
            patience_s = 0.5 if moment is None else min(0.5, max(0.0, (moment - boottime.now_ms()) / 1000))
            for key, _ in selector.select(patience_s):
                key.data()
            part.turn(boottime.now_ms())
        part.stop()


def our_rank(folder: Path, rank: int) -> tuple[float, ...]:
    """One rank from its first word to its coordinator, and when it was through with each step. Its connections stay open."""
    gang = joined(f"unix:{folder}/{rank // PER_NODE}", rank)
    OPEN.append(gang)
    place = gang.take_part()
    placed_s = time.monotonic()
    store = GangStore(gang.store(), WAIT)
    met = meet(PrefixStore(place.prefix, store), place.rank, place.world_size)
    gang.settled()
    return (placed_s, *met, time.monotonic())


def joined(address: str, rank: int) -> Gang:
    """A shim starts its ranks once it listens; here both begin at once."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return Gang(address, "t" * 64, rank, TIMES)
        except GangGone:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.001)


def meet(store: Any, rank: int, world_size: int) -> tuple[float, ...]:
    """What each rank does with the store before its first collective."""
    store.set(f"address/{rank}", f"127.0.0.1:{40_000 + rank}")
    told_s = time.monotonic()
    assert store.get("address/0") == b"127.0.0.1:40000"
    read_s = time.monotonic()
    BARRIER(rank, store, "default", world_size, WAIT)
    return told_s, read_s, time.monotonic()


def ours(size: Size, profile: bool) -> list[tuple[float, ...]]:
    """Of each rank when it was through with each of STEPS."""
    folder = Path(tempfile.mkdtemp(prefix="phx-"))
    port = free_port()

    def coordinate(there: Callable[[], None], over: threading.Event) -> None:
        if not profile:
            lead(size, 0, folder, port, over, there)
            return
        with cProfile.Profile() as seen:
            lead(size, 0, folder, port, over, there)
        seen.dump_stats("startup.prof")

    def relays(worker: int) -> list[Callable[[threading.Event], None]]:
        return [partial(lead, size, node, folder, port) for node in size.of_worker(worker) if node]

    try:
        return list(Crowd(coordinate, size.of_workers, lambda rank: partial(our_rank, folder, rank), relays).met().values())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# The peers


def serve_store(port: int, there: Callable[[], None], over: threading.Event) -> None:
    """torch's own, until the crowd has met."""
    server = TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False, timeout=WAIT)
    there()
    over.wait()
    del server


def tcp_store(size: Size) -> float:
    """Ranks that know their numbers meet over torch's store, which a process of its own serves."""
    port = free_port()

    def rank_of(rank: int) -> Callable[[], tuple[float, ...]]:
        store = TCPStore("127.0.0.1", port, None, is_master=False, wait_for_workers=False, timeout=WAIT)
        OPEN.append(store)
        return lambda: (*meet(PrefixStore("0", store), rank, size.ranks), time.monotonic())

    return last(Crowd(partial(serve_store, port), size.of_workers, rank_of).met().values())


def torchrun(size: Size) -> float:
    """Agents of all nodes meet by torchrun's own rendezvous; each is a thread, as in no torchrun."""
    port = free_port()

    def agent(rank: int) -> Callable[[], tuple[float, ...]]:
        if rank % PER_NODE:
            return lambda: ()
        given = RendezvousParameters(
            "c10d", f"127.0.0.1:{port}", "bench", size.nodes, size.nodes, "127.0.0.1", is_host=False,
            read_timeout=120, join_timeout=DEADLINE_S,
        )  # fmt: skip
        backend, store = create_backend(given)
        handler = create_handler(store, backend, given)
        OPEN.append(handler)

        def met() -> tuple[float, ...]:
            handler.next_rendezvous()
            return (time.monotonic(),)

        return met

    return last(Crowd(partial(serve_store, port), size.of_workers, agent).met().values())


def last(instants: Iterable[tuple[float, ...]]) -> float:
    return max(one[-1] for one in instants if one)


# The claim


def rendezvous(options: argparse.Namespace) -> Answer:
    """Ours and both peers in turns."""
    size, repeats = Size(options.ranks), 1 if options.quick else REPEATS
    seconds, stores, agents, steps = list[float](), list[float](), list[float](), list[list[float]]()
    for _ in range(repeats):
        instants = ours(size, options.profile)
        seconds.append(last(instants))
        steps.append([max(one[step] for one in instants) for step in range(len(STEPS))])
        stores.append(tcp_store(size))
        agents.append(torchrun(size))
        print(f"ours {seconds[-1]:.2f} s, TCPStore {stores[-1]:.2f} s, c10d rendezvous of nodes {agents[-1]:.2f} s", flush=True)
    found, peer = statistics.median(seconds), statistics.median(stores) + statistics.median(agents)
    through = {name: round(statistics.median(each), 3) for name, each in zip(STEPS, zip(*steps, strict=True), strict=True)}
    print(f"{size.ranks} ranks on {size.nodes} nodes: {found:.2f} s, peer {peer:.2f} s; {through}")
    return {
        "id": f"rendezvous_{size.ranks}_s", "ours": round(found, 3), "peer": round(peer, 3), "ratio": round(found / peer, 3),
        "unit": "s", "target": f"ours <= {TARGET_S:g}", "all_s": rounded(seconds), "tcp_store_s": rounded(stores),
        "torchrun_c10d_s": rounded(agents), "last_through_s": through, "ranks": size.ranks, "nodes": size.nodes,
        "holds": found <= TARGET_S,
    }  # fmt: skip


def rounded(seconds: Sequence[float]) -> list[float]:
    return [round(one, 3) for one in seconds]


def conditions() -> Answer:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else machine.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "load": round(os.getloadavg()[0], 2), "processes": WORKERS + 1,
        "versions": {"python": machine.python_version(), "torch": torch.__version__},
    }  # fmt: skip


def main() -> int:
    """Run the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["rendezvous_1024_s"], help="run one claim")
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"a multiple of {PER_NODE}, {2 * PER_NODE} or more")
    parser.add_argument("--profile", action="store_true", help="write startup.prof of the coordinator's thread, which it slows")
    options = parser.parse_args()
    if options.ranks % PER_NODE or options.ranks < 2 * PER_NODE:
        parser.error(f"--ranks {options.ranks}: write a multiple of {PER_NODE}, {2 * PER_NODE} or more")
    around = conditions()
    claims = [rendezvous(options)]
    print(json.dumps({"benchmark": "startup", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
