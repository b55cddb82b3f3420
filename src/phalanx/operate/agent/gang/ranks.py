"""The shim's side of a gang that recovers: which process is which member, what a death means, how a spare becomes a rank.

A dead rank has no exit record while the gang goes on without it: records say how an attempt's ranks ended, and this one's rank has
not. They are written once the gang ends, by itself or because it was told to.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from phalanx.core import timeouts
from phalanx.core.gang_wire import MEMBER
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.lead import Lead
from phalanx.operate.agent.gang.leading import HERE, Leading
from phalanx.operate.agent.gang.relay import Relay
from phalanx.operate.agent.processes import fatal_signal

if TYPE_CHECKING:
    from phalanx.operate.agent.shim import Shim

OF_RANK: Final = ("RANK", "LOCAL_RANK", "ROLE_RANK", "PHALANX_RECORDS")
"""What a spare is told only once it has a rank."""

NOT_OF_SPARES: Final = (*OF_RANK, "PHALANX_FAULT")
"""A planned fault is of the processes that the attempt began with."""

POLITE: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Somebody wants the job to end; no accident."""


LOOK_MS: Final = 100
"""Between two looks at whether the kernel is ending a rank."""


class Ranks:
    """Belongs to one shim and its thread."""

    def __init__(self, shim: "Shim") -> None:
        order = {"grace_ms": shim.order["grace_ms"], **shim.order["gang"]}
        order["nodes"] = order["nodes"] or [HERE] * len(shim.order["ranks"])
        self._shim = shim
        self._entries: list[dict[str, Any]] = shim.order["ranks"]
        self._pids: dict[int, int] = {}  # member -> pid, as long as it lives
        self._spares: dict[int, int] = {}  # pid -> member
        self._held: dict[int, int] = {}  # rank -> exit code of the process that it lost and that will be replaced
        self._why_killed: dict[int, str] = {}
        self._falling: dict[int, int] = {}  # pid -> rank: the kernel is ending it, and it was told of
        self._heirs: dict[int, int] = {}  # rank -> member that takes its place once nobody falls there any more
        lead = Leading if order["node"] == HERE else Relay
        self._lead: Lead = lead(shim.selector, order, timeouts.from_dict(order["timeouts"]), self)
        self._lead.start()

    def started(self, index: int, pid: int) -> None:
        """The attempt's own rank `index` of this node has that process."""
        self._pids[self._entries[index]["rank"]] = pid

    def busy(self) -> bool:
        """Whether somebody is left to wait for though no rank has a process."""
        return bool(self._spares or self._held or self._falling) or self._lead.busy()

    def close(self) -> None:
        self._lead.stop()

    def lose(self, node: int) -> None:
        """The control plane gives that node up."""
        self._lead.lose(node)

    def all_started(self) -> None:
        """The control plane says that the shims of all nodes run."""
        self._lead.all_started()

    def next_moment(self) -> int | None:
        moment, looks = self._lead.next_moment(), bool(self._shim.alive) and not self._shim.is_told()
        look_ms = boottime.now_ms() + LOOK_MS
        return min(look_ms, moment or look_ms) if looks else moment

    def turn(self) -> None:
        """After each of the shim's waits. An attempt that was told to end has no more generations."""
        if (grace_ms := self._shim.grace_left_ms()) is not None:
            self._give_up()
            self._lead.told(grace_ms)
        else:
            self._look()
        self._lead.turn(boottime.now_ms())
        if not self._shim.alive and not self._held:
            self.signal_spares(signal.SIGKILL)  # nobody is left whom they could replace
            if not self._spares:
                self._lead.alone()

    def signal_spares(self, number: signal.Signals) -> None:
        for pid in self._spares:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)

    def took(self, pid: int, code: int) -> bool:
        """Whether that death is the gang's own affair; else it is an exit as in any attempt."""
        if pid in self._falling:
            self._fell(self._falling.pop(pid))
            return True
        member = next((number for number, other in self._pids.items() if other == pid), None)
        if member is None:
            return False
        del self._pids[member]
        if self._spares.pop(pid, None) is not None:
            if not self._shim.is_told():
                self._lost(member, code)
            return True
        if self._shim.is_told():
            return False
        if code == 0:
            self._lead.finished(member)
            return False
        self._held[self._shim.alive.pop(pid)] = code  # before: its place may be taken, or given up, at once
        self._lost(member, code)
        return True

    def _look(self) -> None:
        """Ranks that are being ended are told of before they can be collected: survivors come out meanwhile, and a gang that can go
        on without the place does not wait for it."""
        for member, pid in list(self._pids.items()):
            if pid in self._shim.alive and (number := fatal_signal(pid)) is not None:
                del self._pids[member]
                self._falling[pid] = rank = self._shim.alive.pop(pid)
                self._held[rank] = -number
                self._lost(member, -number)

    def _fell(self, rank: int) -> None:
        """Its device and its place in the keepers' memory are free."""
        if rank not in self._falling.values() and rank in self._heirs:
            self._lead.release(self._heirs.pop(rank))

    def start_spare(self, member: int, node: int) -> bool:
        """As `Hands`."""
        first = self._entries[0]
        env = {name: value for name, value in first["env"].items() if name not in NOT_OF_SPARES} | {MEMBER: str(member)}
        entry = {"argv": first["argv"], "env": env, "log": str(self._shim.folder / f"spare-{member}.log")}
        try:
            child = self._shim.spawn(entry)
        except (OSError, subprocess.SubprocessError) as error:
            self.note(f"cannot start a spare: {error}")
            return False
        self._shim.started.append(child)
        self._pids[member] = child.pid
        self._spares[child.pid] = member
        return True

    def kill(self, member: int, why: str) -> None:
        """As `Hands`."""
        self._why_killed[member] = why
        with contextlib.suppress(OSError, KeyError):
            os.killpg(self._pids[member], signal.SIGKILL)

    def place(self, member: int, slot: int) -> Mapping[str, Any]:
        """As `Hands`. Slots are numbered as the ranks of the whole gang. The process may have died since: that is heard of next."""
        if member not in self._pids:
            return {}
        entry = self._entry(slot)
        pid, rank = self._pids[member], entry["rank"]
        self._spares.pop(pid, None)
        self._held.pop(rank, None)
        if rank in self._falling.values():
            self._heirs[rank] = member
            self._lead.hold(member)
        self._shim.alive[pid] = rank
        self._shim.note_ranks()
        return {"env": {name: entry["env"][name] for name in OF_RANK if name in entry["env"]}, "log": entry["log"], "pid": pid}

    def dismiss(self, members: Sequence[int]) -> None:
        """As `Hands`. The others have done the work of the ranks that had no part in the last generation: these ended well too."""
        idle = {pid: member for member, pid in self._pids.items() if member in members and pid in self._shim.alive}
        ranks = [*self._held, *(self._shim.alive.pop(pid) for pid in idle)]
        self._spares |= idle  # killed as those are, once nobody is left whom they could replace
        self._held.clear()
        for rank in sorted(ranks):
            self._write_to_log(rank, "the gang has finished without this rank")
            self._shim.exited(rank, 0)

    def end_gang(self, why: str, interrupted: bool, grace_ms: int) -> None:
        """As `Hands`. The death for which it ends, if there was one, counts as the first."""
        if interrupted:
            self._shim.interrupt(why)
            self._shim.ask_stop(grace_ms)  # before: nobody of this node fell first
        for entry in self._entries:
            self._write_to_log(entry["rank"], f"the gang does not recover: {why}")
        self._give_up()
        self._shim.ask_stop(grace_ms)

    def gang_stands(self, without: Sequence[int], awaits: Sequence[int]) -> None:
        """As `Hands`."""
        self._shim.writing.newest("gang.json", {"without": list(without), "awaits": list(awaits)}, "gang")

    def note(self, line: str) -> None:
        """As `Hands`."""
        self._shim.say(line)

    def _entry(self, rank: int) -> dict[str, Any]:
        return next(entry for entry in self._entries if entry["rank"] == rank)

    def _write_to_log(self, rank: int, line: str) -> None:
        self._shim.writing.line(f"phalanx: {line}", self._entry(rank)["log"])

    def _lost(self, member: int, code: int) -> None:
        how = _how(code) if member not in self._why_killed else f"was killed: {self._why_killed.pop(member)}"
        self._lead.died(member, how, code < 0 and -code not in POLITE)

    def _give_up(self) -> None:
        """Ranks without a process get none any more."""
        held, self._held = self._held, {}
        for rank, code in held.items():
            self._shim.exited(rank, code)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
