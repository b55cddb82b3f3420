"""How long a rank computes by itself: between the hooks of its blocks, and none of it outside a step."""

import pytest
import torch
from torch import nn

from phalanx.fabric.layouts import Layout
from phalanx.job.sdk.fault import Fault
from phalanx.job.train.device import Rank
from phalanx.job.train.local_time import LocalTimer, local_timer
from phalanx.job.train.planted import slowed

CPU = torch.device("cpu")


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Slow(nn.Module):
    """Takes `us` by the clock."""

    def __init__(self, clock: Clock, us: int) -> None:
        super().__init__()
        self._clock, self._us = clock, us

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._clock.ns += self._us * 1000
        return x


def test_only_the_blocks_of_a_step_count() -> None:
    clock = Clock()
    blocks, rest = [Slow(clock, 300), Slow(clock, 40)], Slow(clock, 5000)
    timer, model = LocalTimer(blocks, CPU, clock), nn.Sequential(blocks[0], rest, blocks[1])
    model(torch.zeros(1))  # a held-out loss, say
    timer.start()
    model(torch.zeros(1))
    model(torch.zeros(1))  # two microbatches
    timer.stop()
    model(torch.zeros(1))  # and what is done about a spike
    assert timer.last_us == 680


def test_what_waits_around_a_block_is_none_of_its_time() -> None:
    """FSDP's hooks are there first: the one before gathers, the one after lets go."""
    clock, block = Clock(), None

    def wait(*_: object) -> None:
        clock.ns += 7_000_000

    block = Slow(clock, 300)
    block.register_forward_pre_hook(wait, prepend=True)
    block.register_forward_hook(wait)
    timer = LocalTimer([block], CPU, clock)
    timer.start()
    block(torch.zeros(1))
    timer.stop()
    assert timer.last_us == 300


@pytest.mark.parametrize(
    ("layout", "measured"),
    [(None, True), (Layout(dp_replicate=2, dp_shard=2), True), (Layout(tp=2), False), (Layout(cp=2), False),
     (Layout(dp_shard=2, ep=2), False), (Layout(pp=2), False)],
)  # fmt: skip
def test_ranks_that_wait_for_others_inside_a_block_or_have_other_layers_measure_nothing(
    layout: Layout | None, measured: bool
) -> None:
    block = nn.Linear(8, 8)
    timer = local_timer([block], Rank(rank=0, world_size=4, device=CPU, device_name="cpu", layout=layout))
    timer.start()
    for _ in range(50):  # some microseconds in all
        block(torch.zeros(8, 8))
    timer.stop()
    assert (timer.last_us > 0) == measured


@pytest.mark.parametrize(("step", "slept"), [(4, []), (5, [0.03]), (6, [0.03])])
def test_a_planned_slowness_begins_with_its_step(step: int, slept: list[float]) -> None:
    block, heard = nn.Identity(), list[float]()
    fetch = slowed(Fault(0, 5, 1, "slow", 30), block, torch.tensor, heard.append)
    assert int(fetch(step)) == step
    block(torch.zeros(1))
    assert heard == slept


def test_without_a_fault_nothing_is_touched() -> None:
    block = nn.Identity()

    def fetch(step: int) -> torch.Tensor:
        return torch.tensor(step)

    assert slowed(None, block, fetch) is fetch and not block._forward_pre_hooks
