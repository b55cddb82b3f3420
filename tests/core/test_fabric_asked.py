"""What ranks of a test of the fabric are handed: places of nodes, as long as they fit."""

import json
from typing import Any

import pytest

from phalanx.core.errors import SpecError
from phalanx.core.fabric_test import SENT_BYTES_MAX, FabricAsked, checked, hyperparameters, placed

LABELS = ("domain", "rack", "block")
LINUX_BYTES_MAX = 131_072


def rules(count: int, name: str = "r") -> list[dict[str, Any]]:
    labels = {"domain": f"{name}-d", "rack": name, "block": "b", "price": "1"}
    return [{"match": f"node-{number:05}-*", "labels": labels} for number in range(count)]


@pytest.mark.parametrize("name", ["r", "ράφι", '"\\'])
def test_places_go_along_as_long_as_the_environment_takes_them(name: str) -> None:
    def sent(count: int) -> tuple[int, int]:
        asked = placed(FabricAsked(), rules(count, name), LABELS)
        assert asked.unplaced == (not asked.places)
        return len(f"PHALANX_HYPERPARAMETERS={json.dumps(hyperparameters(asked))}".encode()) + 1, len(asked.places)

    low, high = 1, 3_000
    assert sent(low)[1] == 1 and sent(high)[1] == 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sent(middle)[1] else (low, middle)
    assert sent(low)[1] == low and SENT_BYTES_MAX - 500 < sent(low)[0] <= LINUX_BYTES_MAX


def test_a_policy_without_places_leaves_nothing_out() -> None:
    assert placed(FabricAsked(), [{"match": "*", "labels": {"price": "1"}}, {"match": "*", "spot": True}], LABELS) == FabricAsked()


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (FabricAsked(sizes=(2,)), "sizes"),
        (FabricAsked(sizes=(4,) * 33), "sizes"),
        (FabricAsked(collectives=()), "collectives"),
        (FabricAsked(collectives=("gossip",)), "collectives"),
        (FabricAsked(seconds=0), "seconds"),
    ],
)
def test_what_cannot_be_measured_is_named_by_its_field(asked: FabricAsked, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        checked(asked)
    assert refused.value.field == field
