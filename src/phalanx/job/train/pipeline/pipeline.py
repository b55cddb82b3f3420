"""A model over the ranks of a pipeline: `pipeline_parallel` builds this rank's stages, and `Pipeline` runs a step of them.

Works with torch 2.11 and 2.13: shapes are told to the stages, since the two infer them differently (2.13 by passes that change
nothing), and the last stage makes the loss itself, since 2.11 hands nothing but targets on to a loss.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class

from phalanx.core.errors import SpecError
from phalanx.core.spec import ScheduleName
from phalanx.fabric.pipeline.balance import LayerCosts, balanced_stages
from phalanx.fabric.pipeline.layout import PipelineLayout
from phalanx.job.models.llama import LlamaShape
from phalanx.job.train.pipeline.forward import relayed
from phalanx.job.train.pipeline.stage import RankPart, Stage
from phalanx.job.train.pipeline.tied import TiedOutput
from phalanx.job.train.pipeline.timed import Recorder, TimedStage
from phalanx.job.train.precision import Dtype

TORCH_NAMES: Final[dict[ScheduleName, str]] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "bfs": "LoopedBFS",
    "interleaved": "Interleaved1F1B",
    "zb1p": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def pipeline_parallel(
    shape: LlamaShape,
    layout: PipelineLayout,
    mesh: DeviceMesh,
    device: torch.device,
    dtype: Dtype,
    prepare: Callable[[Stage], None],
    costs: LayerCosts | None = None,
    sequence_parts: int = 1,
) -> "Pipeline":
    """This rank's stages of a Llama over `mesh`, the pipeline's own axis. A collective of its ranks.

    prepare: gives a stage on the meta device its memory and values, and lays it over the other axes (`sharded_stage` does with
    FSDP2). costs: by which layers go to stages; else all cost the same. sequence_parts: in which a row lies on ranks between
    stages, with tensor or context parallelism. Raises SpecError for what cannot be.
    """
    layout.check(shape.layers)
    if mesh.size() != layout.num_ranks:
        raise SpecError("num_ranks", layout.num_ranks, f"the mesh has {mesh.size()}; write that")
    known = costs or LayerCosts((1,) * shape.layers)
    if len(known.layers) != shape.layers:
        raise SpecError("costs", len(known.layers), f"the model has {shape.layers} layers; write one for each")
    layers = balanced_stages(known, layout.num_stages)
    stages = {}
    for number in layout.stages_of(mesh.get_local_rank()):
        stages[number] = Stage(shape, layers[number])
        prepare(stages[number])
    group = mesh.get_group()
    dist.all_reduce(torch.zeros(1, device=device), group=group)  # its connections, before two ranks alone need them
    return Pipeline(
        layout=layout, layers=layers, stages=stages, group=group, device=device, dtype=dtype, sequence_parts=sequence_parts
    )


@dataclass(slots=True)
class _Built:
    """torch's schedule for microbatches of one shape."""

    shape: tuple[int, ...]
    schedule: PipelineScheduleSingle | PipelineScheduleMulti
    stages: list[TimedStage]


class Pipeline:
    """This rank's stages, and their schedule. part: all of them as one module with the whole model's names, for the optimiser.
    layers: of each stage, on every rank. sequence_parts: see `pipeline_parallel`."""

    def __init__(
        self,
        *,
        layout: PipelineLayout,
        layers: Sequence[range],
        stages: Mapping[int, Stage],
        group: dist.ProcessGroup,
        device: torch.device,
        dtype: Dtype,
        sequence_parts: int = 1,
    ) -> None:
        self.layout, self.layers, self.part = layout, tuple(layers), RankPart(list(stages.values()))
        self.part.passes = self
        self._stages, self._group, self._device = dict(stages), group, device
        self._dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
        self._sequence_parts = sequence_parts
        self._tied = TiedOutput(layout, stages, group) if self.part.shape.tied else None
        self._built: _Built | None = None
        self._losses: list[Tensor] = []

    def gradients(self, microbatches: Tensor, recorder: Recorder | None = None) -> Tensor:
        """Adds the mean gradient over the microbatches, (accumulate, b, *row), to what the stages have; the sum of their losses in
        float64, on every rank. As a step without a pipeline does: each microbatch counts the same, and FSDP takes the mean over
        data-parallel ranks. All ranks of the pipeline are given the same microbatches. A collective of them.

        Raises SpecError for another number of microbatches than the layout's.
        """
        if len(microbatches) != self.layout.num_microbatches:
            fix = f"the schedule is of {self.layout.num_microbatches}; give as many"
            raise SpecError("microbatches", len(microbatches), fix)
        if self._tied is not None:
            self._tied.refresh()
        built = self._schedule_for(tuple(microbatches.shape[1:]))
        for stage in built.stages:
            stage.recorder = recorder
        self._losses.clear()
        if recorder is not None:
            recorder.start()
        samples = microbatches.flatten(0, 1).contiguous()  # torch parts them again, along the first dimension
        first = (samples,) if 0 in self._stages else ()
        built.schedule.step(*first, target=samples, return_outputs=False, samples=samples)
        if self._tied is not None:
            self._tied.add_gradients()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for loss in self._losses:
            total += loss
        self._losses.clear()
        return self._from_last(total)

    @torch.no_grad()
    def sample_losses(self, samples: Tensor) -> Tensor:
        """Of samples (b, *row), the same on all ranks of the pipeline: float32 (b,) on each of them. A collective of them."""
        if self._tied is not None:
            self._tied.refresh()
        found = relayed(self.layout, self._stages, samples, self._hidden(tuple(samples.shape)), self._group)
        return self._from_last(torch.zeros(len(samples), device=self._device) if found is None else found.float())

    def _from_last(self, told: Tensor) -> Tensor:
        """What the rank of the last stage has, on every rank."""
        last = self.layout.rank_of(self.layout.num_stages - 1)
        dist.broadcast(told, dist.get_global_rank(self._group, last), self._group)
        return told

    def _loss(self, loss: Tensor, samples: Tensor) -> Tensor:
        """Of a microbatch, which the last stage gave, its share of the step's mean: the schedule scales nothing."""
        self._losses.append(loss.detach().clone())
        return loss / self.layout.num_microbatches

    def _schedule_for(self, shape: tuple[int, ...]) -> _Built:
        if self._built is None or self._built.shape != shape:
            stages = [self._torch_stage(number, shape) for number in self._stages]
            kind = get_schedule_class(TORCH_NAMES[self.layout.schedule])
            given: Any = stages[0] if issubclass(kind, PipelineScheduleSingle) else stages
            schedule = kind(given, self.layout.num_microbatches, loss_fn=self._loss, scale_grads=False)
            self._built = _Built(shape, schedule, stages)
        return self._built

    def _torch_stage(self, number: int, shape: tuple[int, ...]) -> TimedStage:
        num_stages, hidden = self.layout.num_stages, self._hidden(shape)
        loss = torch.empty((), device="meta", requires_grad=True)
        first = torch.empty(shape, dtype=torch.int64, device="meta")
        return TimedStage(
            self._stages[number], number, num_stages, self._device, input_args=first if number == 0 else hidden,
            output_args=loss if number == num_stages - 1 else hidden, group=self._group,
        )  # fmt: skip

    def _hidden(self, shape: tuple[int, ...]) -> Tensor:
        """What goes between stages, of samples of this shape."""
        sequence = (shape[-1] - 1) // self._sequence_parts
        return torch.empty(shape[0], sequence, self.part.shape.dim, dtype=self._dtype, device="meta", requires_grad=True)
