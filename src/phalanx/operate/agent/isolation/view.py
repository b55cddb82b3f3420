"""What of the machine an attempt sees: a list of mounts, decided by the agent and made by the first process of its namespace. Pure.

What the platform has is not there, but for what is the attempt's own. All else of the machine is, as far as its modes let any user
see it. A place is a path and what is there: a fresh empty folder, or something of the machine.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

_OF_KERNEL: Final = ("/dev", "/proc", "/sys")
"""Which are made for the attempt."""


@dataclass(frozen=True, slots=True)
class Place:
    """empty: a fresh folder, closed once all is in it. own: of the attempt. read_only: of the platform. theirs: named by the job,
    read with the rights of its user, and not there where it has none. kept: a folder of checkpoints outside of the home, made with
    the rights of its user where it is missing. memory: a small folder in memory, for secrets."""

    at: str
    kind: Literal["empty", "own", "read_only", "theirs", "kept", "memory"]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """hidden: folders of the platform, and of several jobs. own: folders of the attempt, by where they are seen. read: what its
    programs are made of. data: of the job's spec. memory: where the job's secrets lie, kept: its checkpoints outside of the home;
    '' where none do."""

    hidden: tuple[str, ...]
    own: Mapping[str, str]
    read: tuple[str, ...]
    data: tuple[str, ...] = ()
    memory: str = ""
    kept: str = ""


def view(wanted: Wanted, closed: Callable[[str], bool]) -> list[dict[str, Any]]:
    """The places, outer ones first. closed: whether other users may not pass through that folder: then it gets an empty one in its
    place where something inside is needed, and what else it has stays unseen as it was."""
    needed = [*wanted.own.values(), *wanted.own, *wanted.read]
    empties = {*wanted.hidden, *(outer for path in needed if (outer := _closed_above(path, closed)))}
    covered = {*empties, *wanted.own}
    places = [Place(path, "theirs", path) for path in wanted.data if not _is_below(path, _OF_KERNEL) and path not in _OF_KERNEL]
    places += [Place(path, "empty") for path in empties]
    places += [Place(path, "read_only", path) for path in wanted.read if _is_below(path, covered)]
    places += [Place(at, "own", source) for at, source in wanted.own.items()]
    places += [Place(wanted.kept, "kept", wanted.kept)] if wanted.kept else []
    places += [Place(wanted.memory, "memory")] if wanted.memory else []
    unique = {place.at: place for place in places}  # a later one wins: what a job names changes nothing of the platform's
    return [asdict(place) for _, place in sorted(unique.items(), key=lambda item: PurePosixPath(item[0]).parts)]


def _is_below(path: str, others: Iterable[str]) -> bool:
    parents = {str(parent) for parent in PurePosixPath(path).parents}
    return any(other in parents for other in others)


def _closed_above(path: str, closed: Callable[[str], bool]) -> str:
    """The outermost folder above `path` that others may not pass, or ''."""
    return next((str(parent) for parent in reversed(PurePosixPath(path).parents) if closed(str(parent))), "")


def is_closed(folder: str) -> bool:
    """As this machine has it now. What is not there hides nothing."""
    try:
        return not Path(folder).stat().st_mode & 0o001
    except OSError:
        return False


def real(paths: Iterable[str]) -> tuple[str, ...]:
    """Without links, and only what is there; never the root, which is seen as it is."""
    found = {os.path.realpath(path) for path in paths if path}
    return tuple(sorted(path for path in found if path != "/" and Path(path).exists()))
