"""What the platform says of one job may name others. Of those that its reader may not know only that they are another team's is
told. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.health import QUARANTINE
from phalanx.core.ids import NAME, JobId
from phalanx.core.people import PLATFORM
from phalanx.core.spec import JobSpec
from phalanx.operate.control.world import World

ANOTHERS: Final = "another team's job"
_JOB: Final = re.compile(rf"(?<![a-z0-9-])({NAME.pattern}-[0-9]{{1,12}})(\.[0-9]{{1,9}})?(?![a-z0-9-])")
_MADE_ROOM: Final = re.compile(r"made room for \S+")
"""All that the platform itself says of others in an attempt's `detail`; what else stands there is the ranks' own."""


@dataclass(frozen=True, slots=True)
class OthersNames:
    """Takes names of jobs out of what is said. sees: whether the reader may know of jobs of that team.

    A name that stands in the job's own spec is its owner's word and stays: else whoever wrote a guess there could see by its
    absence that there is such a job.
    """

    world: World
    sees: Callable[[str], bool]

    def hides(self, job: str) -> bool:
        """Whether there is such a job, and the reader may not know."""
        record = self.world.jobs.get(JobId(job))
        return record is not None and not self.sees(record.spec.team)

    def out_of(self, value: Any, spec: JobSpec) -> Any:
        """Texts, mappings and lists about the job of that spec, without them."""
        match value:
            case str():
                return _JOB.sub(lambda found: self._word(found, spec), value)
            case dict():
                return {key: self.out_of(part, spec) for key, part in value.items()}
            case list() | tuple():
                return type(value)(self.out_of(part, spec) for part in value)
            case _:
                return value

    def out_of_detail(self, detail: str, spec: JobSpec) -> str:
        """How an attempt ended, likewise."""
        told: str = self.out_of(detail, spec) if _MADE_ROOM.fullmatch(detail) else detail
        return told

    def out_of_reason(self, reason: str) -> str:
        """Why a node is drained. What the platform found in another team's job is told as no more than that."""
        told = _JOB.sub(lambda found: ANOTHERS if self.hides(found[1]) else found[0], reason)
        return f"{QUARANTINE}{ANOTHERS}" if told != reason and reason.startswith(QUARANTINE) else told

    def _word(self, found: "re.Match[str]", spec: JobSpec) -> str:
        hidden = self.hides(found[1]) and found[1] not in wire.dumps(JobSpec, spec)
        return ANOTHERS if hidden else found[0]


def for_team(world: World, team: str) -> OthersNames:
    """Of what is told a team; the platform's own jobs are told everything."""
    return OthersNames(world, lambda other: team in (PLATFORM, other))
