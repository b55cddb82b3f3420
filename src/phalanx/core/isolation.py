"""How far the jobs of a node are kept apart, what its kernel allows for that, and whether a second team may come. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["none", "uid"]
"""none: ranks are the agent's own user. uid: each attempt has a user, namespaces and a view of the machine of its own."""

MODES: Final[tuple[Mode, ...]] = ("none", "uid")

UIDS: Final = "uids"
"""Processes may be given another user."""
MOUNTS: Final = "mounts"
"""A view of the file system of its own."""
PIDS: Final = "pids"
"""Numbers of processes of its own, and no sight of others."""
CALLS: Final = "calls"
"""System calls may be refused (seccomp): no user namespaces, no keyrings."""
DEVICES: Final = "devices"
"""A /dev with the granted nodes alone."""
SCOPES: Final = "scopes"
"""Abstract sockets and signals end at the job (Landlock 6, Linux 6.12)."""
USERS: Final = "users"
"""User namespaces, which nothing here needs."""
MEMORY: Final = "cgroup-memory"
CPU: Final = "cgroup-cpu"
COUNTS: Final = "cgroup-pids"
KILL: Final = "cgroup-kill"
"""What control groups of version 2 can do for this agent: bound memory, weigh CPUs, bound the number of processes, end all."""

TRUSTING: Final = "`phalanx team organisation NAME --trusting`"

NEEDED: Final = (UIDS, MOUNTS, PIDS, CALLS, DEVICES)
"""Without each of these `uid` would promise what it does not keep."""

MEANS: Final[Mapping[str, str]] = {
    UIDS: "users of their own",
    MOUNTS: "mount namespaces",
    PIDS: "PID namespaces",
    CALLS: "filters of system calls",
    DEVICES: "device nodes of their own",
    SCOPES: "abstract sockets of their own",
    USERS: "user namespaces",
    MEMORY: "bounds on memory",
    CPU: "weights of CPUs",
    COUNTS: "bounds on processes",
    KILL: "an end by cgroup",
}
"""What each is called in sentences."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """A node's, as its agent found it by trying. mode: what its agent does. can: names of the above. lacks: why not, by name."""

    mode: Mode = "none"
    can: tuple[str, ...] = ()
    lacks: Mapping[str, str] | None = None

    def why_not(self) -> str:
        """What is missing for `uid`; '' where nothing is."""
        missing = [f"no {MEANS[name]} ({(self.lacks or {}).get(name, 'unknown')})" for name in NEEDED if name not in self.can]
        return ", ".join(missing)


def keeps_apart(isolation: Isolation | None) -> bool:
    """Whether one job there cannot reach into another. None: of an agent that says nothing of it."""
    return isolation is not None and isolation.mode == "uid" and not isolation.why_not()


def exposed(isolation: Isolation | None) -> str:
    """Why a node is given no jobs where teams do not trust each other, and what to change; '' where it keeps jobs apart."""
    if keeps_apart(isolation):
        return ""
    why = f"gets no jobs: teams here do not trust each other, and it {_openness(isolation).partition('; ')[0]}"
    return f"{why}; start its agent with `--isolation uid`, or say that they do: {TRUSTING}"


def trust(nodes: Mapping[str, Isolation | None]) -> str:
    """In words, for `status`: 'single trust domain', with the reason, or that jobs are kept apart."""
    open_nodes = {node: isolation for node, isolation in sorted(nodes.items()) if not keeps_apart(isolation)}
    if not nodes:
        return "single trust domain: no node has joined"
    if not open_nodes:
        return "jobs are kept apart: a user and namespaces of its own for each"
    node, isolation = next(iter(open_nodes.items()))
    others = f", nor {len(open_nodes) - 1} others" if len(open_nodes) > 1 else ""
    return f"single trust domain: {node}{others} {_openness(isolation)}"


def may_host(teams: int, nodes: Mapping[str, Isolation | None]) -> str | None:
    """Why so many teams may not share the platform, and what to change; None where they may. One team may always."""
    if teams < 2 or (nodes and all(keeps_apart(isolation) for isolation in nodes.values())):
        return None
    fix = "start every agent as root with `--isolation uid` (`phalanx up`, `phalanx agent join`), or give each team a platform"
    return f"{teams} teams cannot share this platform, which is a {trust(nodes)}; {fix}"


def _openness(isolation: Isolation | None) -> str:
    if isolation is None:
        return "has an agent that does not say how it keeps jobs apart"
    if why := isolation.why_not():
        return f"cannot keep jobs apart: {why}"
    return "does not keep jobs apart; start its agent with `--isolation uid`"
