"""Which rows replicas of an expert take, whoever computes them."""

import torch

from phalanx.fabric.experts import Replica
from phalanx.fabric.experts.replicas import PARTS
from phalanx.job.models.moe.replicas import replicas_of
from phalanx.job.models.moe.rows import ordered

CPU = torch.device("cpu")
FOUND = (Replica(0, 2, PARTS // 4), Replica(5, 0, PARTS // 3), Replica(0, 1, PARTS // 2))
"""Of 6 slots on 3 ranks, 2 each, with 2 further places: expert 0 on ranks 0, 1 and 2, and 5 on ranks 2 and 0."""


def test_each_row_is_computed_once_at_a_place_of_its_expert_and_by_the_shares() -> None:
    replicas = replicas_of(FOUND, 6, 3, 0, 2, CPU)
    expert_n = torch.randint(6, (999,), generator=torch.Generator().manual_seed(1))
    order = ordered(expert_n, 6)
    parted = replicas.parted(order)
    assert parted.by_expert.sort().values.equal(torch.arange(999)) and parted.by_expert[parted.place].equal(torch.arange(999))
    expert_of_place = [0, 1, 5, -1, 2, 3, 0, -1, 4, 5, 0, -1]
    at_place_n = torch.arange(12).repeat_interleave(parted.count_e)
    assert torch.tensor(expert_of_place)[at_place_n].equal(expert_n[parted.by_expert])
    count, took = order.count_e.tolist(), parted.count_e.tolist()
    assert took[0] == count[0] // 4 and abs(took[6] - count[0] / 2) <= 1 and took[0] + took[6] + took[10] == count[0]
    assert abs(took[2] - count[5] / 3) <= 1 and took[2] + took[9] == count[5]
    first = parted.by_expert[: took[0]]
    assert first.equal((expert_n == 0).nonzero().flatten()[: took[0]]), "an owner takes the first"


def test_ranks_know_what_they_lend_and_take() -> None:
    every = [replicas_of(FOUND, 6, 3, rank, 2, CPU) for rank in range(3)]
    assert [one.sends for one in every] == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert [one.gets for one in every] == [[0, 0, 1], [1, 0, 0], [1, 0, 0]]
    assert [one.lent for one in every] == [[0, 0], [], [1]]


def test_experts_without_rows_are_at_no_place() -> None:
    replicas = replicas_of(FOUND, 6, 3, 0, 2, CPU)
    assert replicas.parted(ordered(torch.tensor([5, 5, 5]), 6)).count_e.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0]
    assert replicas.parted(ordered(torch.zeros(0, dtype=torch.int64), 6)).count_e.sum() == 0
