"""A job's folder for checkpoints outside of the home: in a store that several teams may share, at a place that a job names."""

import os
import stat
from collections.abc import Container
from pathlib import Path
from typing import Final

from phalanx.core.errors import SpecError
from phalanx.core.ids import split_attempt
from phalanx.core.messages import Launch
from phalanx.operate.agent.isolation.handing import hand_over

_LOST: Final = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys")  # noqa: S108 - each attempt gets its own


def elsewhere(launch: Launch) -> Path | None:
    """The job's folder for checkpoints, where it is one and not in the job's own."""
    if not launch.checkpoints.startswith("/") or launch.checkpoints.startswith(f"{launch.folder}/"):
        return None
    return Path(launch.checkpoints)


def refuse_lost(launch: Launch) -> None:
    """Raises SpecError for checkpoints that would go with the attempt."""
    place = elsewhere(launch)
    if place is not None and any(Path(lost) in (store := Path(os.path.realpath(place.parent)), *store.parents) for lost in _LOST):
        fix = f"lies in {', '.join(_LOST[:-1])} or {_LOST[-1]}, of which each attempt has its own; name a folder that lasts"
        raise SpecError("checkpoint.store", launch.checkpoints, fix)


def take(launch: Launch, uid: int, pool: Container[int]) -> None:
    """What the job's earlier attempts left there becomes the user's, and is closed to all others. Nothing is made: the attempt does
    that with the rights of its own user. Raises SpecError, SetupError, OSError."""
    place = elsewhere(launch)
    if place is None:
        return
    if not place.parent.is_dir():
        raise SpecError("checkpoint.store", str(place.parent), "is no folder of this node; make it on every node, with mode 1733")
    known = _known(place)
    if known is not None and stat.S_ISDIR(known.st_mode) and split_attempt(launch.attempt)[1] > 1:
        hand_over(place, uid, pool, own=False, close=True)
        known = _known(place)
    if known is not None and not (stat.S_ISDIR(known.st_mode) and known.st_uid == uid):
        fix = f"is there, and not of this job's making but of user {known.st_uid}'s; move it away"
        raise SpecError("checkpoint.store", str(place), fix)


def _known(place: Path) -> os.stat_result | None:
    try:
        return place.lstat()
    except FileNotFoundError:
        return None


def kept(launch: Launch) -> str:
    """Where the attempt has it, without links but for the last name, which must be none; '' where it has none."""
    place = elsewhere(launch)
    return "" if place is None else f"{os.path.realpath(place.parent)}/{place.name}"


def hidden(launch: Launch) -> tuple[str, ...]:
    """The stores that the node knows of: what others keep there the attempt does not see."""
    place = elsewhere(launch)
    own = () if place is None else (str(place.parent),)
    policy = launch.store.removeprefix("file://")
    return (*own, *((policy,) if policy.startswith("/") else ()))
