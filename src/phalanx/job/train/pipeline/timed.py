"""When each pass of a schedule ran: torch's stage with a clock around what a schedule asks of it.

On CUDA the times are the device's own (events), so that what waits for a neighbour's result has not begun. Each rank's clock is
set to 0 behind a barrier, by which clocks of different machines come as near as the barrier lets go.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.profiler import record_function

from phalanx.fabric.pipeline.actions import Action, Kind
from phalanx.fabric.pipeline.timeline import Span, Timeline
from phalanx.job.train.device import synchronise
from phalanx.job.train.traces.timeline import OF_PIPELINE

Mark = float | torch.cuda.Event


class Recorder:
    """Of one rank, for one step. group: of the pipeline, whose ranks all record the same steps."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup, clock_s: Callable[[], float]) -> None:
        self._device, self._group, self._clock_s = device, group, clock_s
        self._zero: Mark = 0.0
        self._marks: list[tuple[Action, Mark, Mark]] = []

    def start(self) -> None:
        """A step begins. A collective of the pipeline's ranks."""
        self._marks.clear()
        synchronise(self._device)
        dist.barrier(self._group)
        self._zero = self._mark()

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        begun = self._mark()
        yield
        self._marks.append((action, begun, self._mark()))

    def timeline(self) -> Timeline:
        """Of all ranks of the pipeline, in seconds. A collective of them."""
        synchronise(self._device)
        mine = [(tuple(action), self._since(begun), self._since(ended)) for action, begun, ended in self._marks]
        told: list[list[tuple[tuple[str, int, int], float, float]]] = [[] for _ in range(dist.get_world_size(self._group))]
        dist.all_gather_object(told, mine, self._group)
        return Timeline(
            tuple(
                tuple(Span(Action(Kind(kind), stage, number), begun, ended) for (kind, stage, number), begun, ended in of_rank)
                for of_rank in told
            )
        )

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return self._clock_s()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since(self, mark: Mark) -> float:
        if isinstance(mark, float):
            return mark - cast(float, self._zero)
        return float(cast(torch.cuda.Event, self._zero).elapsed_time(mark)) / 1000


class TimedStage(PipelineStage):
    """Tells a recorder, while there is one, of what it runs."""

    recorder: Recorder | None = None

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """None: the pipeline's ranks are connected already. torch 2.11 would have a rank that holds neighbours send to itself,
        which gloo cannot; 2.13 does not ask."""
        return []

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._during(Kind.FORWARD, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        with self._during(Kind.BACKWARD if full_backward else Kind.INPUT, bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss=loss, full_backward=full_backward, last_backward=last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        with self._during(Kind.WEIGHT, bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)

    @contextmanager
    def _during(self, kind: Kind, microbatch: int) -> Iterator[None]:
        action = Action(kind, self.stage_index, microbatch)
        recorded = nullcontext() if self.recorder is None else self.recorder.during(action)
        with record_function(f"{OF_PIPELINE}{action}"), recorded:
            yield
