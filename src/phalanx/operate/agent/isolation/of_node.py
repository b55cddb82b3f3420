"""How this agent keeps jobs apart: what its home asks for, held against what its machine allows."""

from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import SetupError
from phalanx.core.isolation import Isolation
from phalanx.operate.agent.isolation import cgroups
from phalanx.operate.agent.isolation.cgroups import Cgroups
from phalanx.operate.agent.isolation.found import found
from phalanx.operate.home import isolation_of


@dataclass(frozen=True, slots=True)
class Apartness:
    """told: to the control plane. groups: where attempts get control groups."""

    told: Isolation
    groups: Cgroups


def apartness(home: Path) -> Apartness:
    """Tries all there is. Raises SetupError where the home asks for what the machine does not allow."""
    mode, groups = isolation_of(home), cgroups.find()
    tried = found()
    lacks = {name: why for name, why in tried.items() if why} | dict(groups.lacks or {})
    can = [*(name for name, why in tried.items() if not why), *groups.can()]
    isolation = Isolation(mode, tuple(can), lacks)
    refuse_unkept(isolation)
    return Apartness(isolation, groups)


def refuse_unkept(isolation: Isolation) -> None:
    """Raises SetupError where what is promised could not be kept: an agent that seems to keep jobs apart is worse than none."""
    if isolation.mode == "uid" and (why := isolation.why_not()):
        fix = f"this machine allows {why}; run the agent as root, or say `--isolation none`"
        raise SetupError("isolation", isolation.mode, fix)
