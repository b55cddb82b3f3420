"""What a node says of itself is believed within bounds: it becomes capacity, ports, and an event of the log for ever."""

from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.devices import Device, NodeShape
from phalanx.core.ids import NodeId
from phalanx.core.isolation import Isolation
from phalanx.operate.control.shape import BYTES_MAX, DEVICES_MAX, WORDS_MAX, check_shape

SHAPE = NodeShape(
    NodeId("rack-a"), "10.0.0.7", (Device(0, "H100", "NVIDIA H100"),), 8.0, 2**30, (30_000, 30_100), ("lease",),
    Isolation("uid", ("users",), {"scopes": "no Landlock"}),
)  # fmt: skip


def test_an_honest_one_is_believed() -> None:
    check_shape(SHAPE)
    check_shape(replace(SHAPE, features=(), isolation=None, devices=()))
    check_shape(replace(SHAPE, features=tuple(f"f{number}" for number in range(WORDS_MAX))))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"node": "../x"}, "name"),
        ({"node": "a\n"}, "name"),
        ({"node": "$(reboot)"}, "name"),
        ({"node": "--all"}, "name"),
        ({"node": "a" * 300}, "name"),
        ({"address": ""}, "address"),
        ({"address": "x" * 256}, "address"),
        ({"address": "\ud800"}, "half a character"),
        ({"ports": (0, 10)}, "ports"),
        ({"ports": (10, 2**20)}, "ports"),
        ({"cpus": float("nan")}, "cpus"),
        ({"cpus": float("inf")}, "cpus"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": BYTES_MAX + 1}, "memory_bytes"),
        ({"devices": tuple(Device(number, "H100", "x") for number in range(DEVICES_MAX + 1))}, "devices"),
        ({"devices": (Device(0, "H100", "x"), Device(0, "H100", "y"))}, "one index"),
        ({"devices": (Device(-1, "H100", "x"),)}, "cannot be"),
        ({"devices": (Device(0, "H100", "x" * 201),)}, "over 200 characters"),
        ({"features": tuple(map(str, range(WORDS_MAX + 1)))}, "features"),
        ({"features": ("x" * 10**6,)}, "features"),
        ({"isolation": Isolation("uid", ("x" * 10**6,))}, "isolation"),
        ({"isolation": Isolation("uid", (), {"x" * 10**6: ""})}, "lacks"),
        ({"isolation": Isolation("uid", (), {"scopes": "x" * 10**6})}, "a reason over"),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        check_shape(replace(SHAPE, **change))
    assert str(refused.value).startswith("hello: ") and len(str(refused.value)) < 200
