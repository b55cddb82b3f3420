"""What may be said of a fault that somebody asks for."""

from typing import Any

import pytest

from phalanx.core.chaos import EVERY, KINDS, Asked, planned
from phalanx.core.errors import SpecError


def test_what_nobody_says_is_usual() -> None:
    assert [planned(Asked(fault=kind), 7).sentence() for kind in KINDS] == [
        "kill-rank of rank 0 at its next step",
        "hang-rank of rank 0 at its next step",
        "slow-rank of rank 0 at its next step, each forward pass by 100 ms for 30 s",
        "flip-bit of rank 0 at its next step, in its weights",
        "kill-agent of rank 0 at its next step",
        "kill-node of rank 0 at its next step",
        "fill-disk of each rank at its next step for 30 s",
        "drop-store of each rank at its next step for 30 s",
    ]
    assert planned(Asked(fault="drop-store"), 7).rank == EVERY


def test_what_is_said_is_kept() -> None:
    found = planned(Asked(fault="slow-rank", rank=1, step=40, for_ms=1_500, slow_ms=7), 3)
    assert found.sentence() == "slow-rank of rank 1 at step 40, each forward pass by 7 ms for 1.5 s"
    gradient = planned(Asked(fault="flip-bit", flip="gradient", for_ms=2_000), 1)
    assert gradient.sentence() == "flip-bit of rank 0 at its next step, in each backward pass for 2 s"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"fault": "kill-rank", "rank": -1}, "rank"),
        ({"fault": "kill-rank", "step": 0}, "step"),
        ({"fault": "kill-rank", "for_ms": 5}, "for"),
        ({"fault": "hang-rank", "for_ms": 3_600_001}, "for"),
        ({"fault": "hang-rank", "for_ms": 0}, "for"),
        ({"fault": "slow-rank", "slow_ms": 60_001}, "slow_ms"),
        ({"fault": "hang-rank", "slow_ms": 5}, "slow_ms"),
        ({"fault": "slow-rank", "flip": "weights"}, "flip"),
        ({"fault": "flip-bit", "for_ms": 5}, "for"),
    ],
)
def test_what_cannot_be_names_its_field(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        planned(Asked(**asked), 1)
    assert refused.value.field == field and refused.value.fix


def test_a_duration_is_said_as_it_is_written() -> None:
    with pytest.raises(SpecError, match="for: '3s': kill-rank has none"):
        planned(Asked(fault="kill-rank", for_ms=3_000), 1)
