"""Where the records of a run end, and where they have to: a log that has lost its tail looks like that of a shorter run. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.data_audit import Reached
from phalanx.job.data.legs import Gang, Stretch, wrong

_UNKNOWN: Final = "not known: no checkpoint lies beside the records, and no job was named"


@dataclass(frozen=True, slots=True)
class End:
    """step: all ranks must have recorded so many. by: what says so. known: there is evidence besides the records."""

    step: int
    by: str
    known: bool

    @property
    def says(self) -> str:
        return f"{self.by} step {self.step}" if self.step else self.by or _UNKNOWN


def end_of(gangs: Sequence[Gang], reached: Sequence[Reached], global_batch: int) -> End:
    """By what is newest: a gang that began before an older one's checkpoint has made its steps again."""
    newest = max(((gang.attempt, gang.generation) for gang in gangs if gang.steps), default=(-1, -1))
    marks = [
        (max(one.steps, -(-one.samples // global_batch)), one.by)
        for one in reached
        if (one.attempt, one.generation) >= newest
    ]  # fmt: skip
    if gangs and not gangs[-1].steps:
        marks.append((gangs[-1].start, f"attempt {gangs[-1].attempt} went on after"))
    step, by = max(marks, default=(0, ""))
    return End(step, by, bool(reached))


def check_end(gangs: Sequence[Gang], stretches: Sequence[Stretch], end: End) -> None:
    """Raises Wrong where all ranks stop before the end."""
    made = stretches[-1].stop if stretches else 0
    if made < end.step:
        gang = stretches[-1].gang if stretches else gangs[-1] if gangs else Gang(0, 0, 1, 0, {})
        rank = gang.reaches.index(min(gang.reaches))
        raise wrong("missing", gang, rank, made, f"recorded nothing, nor of any step after it; {end.says}")


def ragged(gangs: Sequence[Gang], stretches: Sequence[Stretch]) -> Iterator[str]:
    """What a kill leaves, and what is seen of a run that goes on; in the newest gangs, behind the steps that count."""
    if stretches:
        gang, made = stretches[-1].gang, stretches[-1].stop
        reaches = gang.reaches
        if max(reaches) > made:
            short, long = reaches.index(min(reaches)), reaches.index(max(reaches))
            yield f"rank {short} recorded nothing of step {made + 1}, and rank {long} goes to step {reaches[long]}"
    newest = max((at for at, gang in enumerate(gangs) if gang.steps), default=0)
    for gang in gangs[newest:]:
        for rank, log in sorted(gang.logs.items()):
            if log.lost:
                yield f"rank {rank} could not record {log.lost} of its batches in attempt {gang.attempt}"
            if log.torn_bytes:
                yield f"the record of rank {rank} in attempt {gang.attempt} ends in half a batch, of {log.torn_bytes} bytes"
