"""Faults that are asked for while a recipe runs, where they act: in its forward and backward passes and its weights."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from phalanx.core import wire
from phalanx.core.chaos import PLAN, Asked, Plan, planned
from phalanx.job.sdk import attach
from phalanx.job.sdk.chaos import Chaos
from phalanx.job.train.planted import Unplanned, planted


class Clock:
    """Moves by what is slept."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def disturbed(tmp_path: Path, clock: Clock, *asked: Asked) -> tuple[nn.Linear, Unplanned]:
    faults = tuple(planned(one, number) for number, one in enumerate(asked, 1))
    (tmp_path / PLAN).write_text(wire.dumps(Plan, Plan(faults, len(faults))))
    session = replace(attach({"RANK": "0"}), chaos=Chaos(tmp_path))
    block = nn.Linear(4, 4)
    return block, Unplanned(session, block, lambda step: torch.ones(1, 4), clock.sleep, lambda: clock.now_s)


def test_each_forward_pass_is_slower_for_a_while_and_then_no_more(tmp_path: Path) -> None:
    clock = Clock()
    block, fetch = disturbed(tmp_path, clock, Asked(fault="slow-rank", step=2, slow_ms=40, for_ms=100))
    block(fetch(1))
    assert clock.slept == []
    for _ in range(5):
        block(fetch(2))
    assert clock.slept == [0.04, 0.04, 0.04]


def test_one_bit_of_the_weights_is_flipped_once(tmp_path: Path) -> None:
    block, fetch = disturbed(tmp_path, Clock(), Asked(fault="flip-bit", step=3))
    before = block.weight.detach().clone()
    fetch(2)
    assert torch.equal(block.weight, before)
    fetch(3)
    fetch(3)
    differ = block.weight.detach().view(torch.int32) ^ before.view(torch.int32)
    assert [int(word).bit_count() for word in differ.flatten() if word] == [1]


def test_gradients_err_by_a_bit_for_a_while(tmp_path: Path) -> None:
    clock = Clock()
    block, fetch = disturbed(tmp_path, clock, Asked(fault="flip-bit", step=2, flip="gradient", for_ms=1_000))

    def gradient(step: int) -> torch.Tensor:
        block.zero_grad()
        block(fetch(step)).square().sum().backward()
        assert block.weight.grad is not None
        return block.weight.grad.clone()

    right = gradient(1)
    assert not torch.equal(gradient(2), right)
    clock.now_s += 2
    assert torch.equal(gradient(3), right)


def test_a_job_that_allows_none_has_no_hooks(tmp_path: Path) -> None:
    block = nn.Linear(4, 4)

    def fetch(step: int) -> torch.Tensor:
        return torch.ones(step, 4)

    assert planted(attach({"RANK": "0"}), block, fetch) is fetch
    assert not block._forward_hooks and not block._forward_pre_hooks
