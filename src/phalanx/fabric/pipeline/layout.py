"""What a pipeline is made of, what each schedule asks of it, and which stages a rank holds."""

from dataclasses import dataclass
from typing import Final, get_args

from phalanx.core.errors import SpecError
from phalanx.core.spec import ScheduleName

SCHEDULES: Final[tuple[ScheduleName, ...]] = get_args(ScheduleName)
V_SHAPED: Final = ("zbv", "dualpipev")
"""Stages go down the ranks and up again: the first rank has the first stage and the last one."""
LOOPED: Final = ("bfs", "interleaved", "zb1p")
"""Stages go round the ranks as often as a rank has stages."""
SPLITS_BACKWARD: Final = ("zb1p", "zbv", "dualpipev")
"""The gradient of weights is a pass of its own."""
IN_ROUNDS: Final = ("interleaved", "zb1p")
"""Microbatches go in rounds of equal size, of at least as many as there are ranks, where there are that many."""
ACTIONS_MAX: Final = 2**20
"""Forward and backward passes of one stage on one microbatch, in a step: what simulates a schedule holds them all."""

Problem = tuple[str, object, str]
"""(field, value, what may stand there)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """A pipeline and its schedule.

    schedule: the order of a rank's forward and backward passes; one of SCHEDULES. num_ranks: over which the layers are cut.
    num_microbatches: of one step. stages_per_rank: parts of the model that each rank holds.
    """

    schedule: ScheduleName
    num_ranks: int
    num_microbatches: int
    stages_per_rank: int = 1

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        if self.schedule in V_SHAPED and (stage // self.num_ranks) % 2:
            return self.num_ranks - 1 - stage % self.num_ranks
        return stage % self.num_ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """In the order in which a microbatch passes them."""
        return tuple(stage for stage in range(self.num_stages) if self.rank_of(stage) == rank)

    def check(self, num_layers: int | None = None) -> None:
        """Raises SpecError where `problems` finds one."""
        for problem in self.problems(num_layers):
            raise SpecError(*problem)

    def problems(self, num_layers: int | None = None) -> list[Problem]:
        """What makes this impossible, also for a model of so many layers; empty where nothing does."""
        if self.schedule not in SCHEDULES:
            return [("schedule", self.schedule, f"write one of {', '.join(SCHEDULES)}")]
        found: list[Problem] = []
        if self.num_ranks < 2:
            found.append(("num_ranks", self.num_ranks, "write 2 or more; one rank needs no pipeline"))
        if self.num_microbatches < 1:
            found.append(("num_microbatches", self.num_microbatches, "write 1 or more"))
        found += self._stage_problems()
        if found:
            return found
        return self._size_problems() or self._microbatch_problems() + self._layer_problems(num_layers)

    def _stage_problems(self) -> list[Problem]:
        allowed = _allowed_stages(self.schedule)
        fits = self.stages_per_rank >= allowed[0] and (len(allowed) > 1 or self.stages_per_rank == allowed[0])
        if fits:
            return []
        words = f"{allowed[0]}" if len(allowed) == 1 else f"{allowed[0]} or more"
        return [("stages_per_rank", self.stages_per_rank, f"write {words} with schedule {self.schedule}")]

    def _size_problems(self) -> list[Problem]:
        actions = self.num_stages * self.num_microbatches
        if actions <= ACTIONS_MAX:
            return []
        fix = f"{self.num_stages} stages x {self.num_microbatches} microbatches are more than {ACTIONS_MAX:,}; write less"
        return [("num_microbatches", self.num_microbatches, fix)]

    def _microbatch_problems(self) -> list[Problem]:
        if self._fits(self.num_microbatches):
            return []
        least = _least_microbatches(self)
        if self.num_microbatches < least:
            fix = f"write {least} or more with schedule {self.schedule} over {self.num_ranks} ranks"
        else:
            below = next(number for number in range(self.num_microbatches, 0, -1) if self._fits(number))
            above = next(number for number in range(self.num_microbatches, 2 * self.num_microbatches) if self._fits(number))
            fix = f"write {below}, {above} or another multiple of {self.num_ranks} with schedule {self.schedule}"
        return [("num_microbatches", self.num_microbatches, fix)]

    def _fits(self, num_microbatches: int) -> bool:
        if self.schedule in IN_ROUNDS:
            return num_microbatches % num_rounds(num_microbatches, self.num_ranks) == 0
        return num_microbatches >= _least_microbatches(self)

    def _layer_problems(self, num_layers: int | None) -> list[Problem]:
        if num_layers is None or num_layers >= self.num_stages:
            return []
        most = num_layers // self.num_ranks
        if most >= _allowed_stages(self.schedule)[0]:
            fix = f"the model has {num_layers} layers for {self.num_ranks} ranks; write {most} or less"
            return [("stages_per_rank", self.stages_per_rank, fix)]
        fix = f"the model has {num_layers} layers and a stage has one at least; write {num_layers // self.stages_per_rank} or less"
        return [("num_ranks", self.num_ranks, fix)]


def fewest_stages(schedule: ScheduleName) -> int:
    """That a rank may have."""
    return _allowed_stages(schedule)[0]


def num_rounds(num_microbatches: int, num_ranks: int) -> int:
    return max(1, num_microbatches // num_ranks)


def _allowed_stages(schedule: ScheduleName) -> tuple[int, ...]:
    """The one number of stages that a rank may have, or the least one and what is above it."""
    if schedule in V_SHAPED:
        return (2,)
    if schedule == "zb1p":
        return (1, 2)
    return (2, 3) if schedule in LOOPED else (1,)


def _least_microbatches(layout: PipelineLayout) -> int:
    """Below it the schedule has no steady part to run."""
    if layout.schedule == "1f1b":
        return layout.num_ranks
    return layout.num_stages if layout.schedule == "dualpipev" else 1
