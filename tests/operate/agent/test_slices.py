"""MIG slices, on answers laid out as NVML's reference has them. None was recorded: no machine with slices was at hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.core.devices import Device, parse_devices
from phalanx.core.errors import SpecError
from phalanx.operate.agent.devices import discover, refuse_slices, seen_at

WHOLE = ("NVIDIA H100 80GB HBM3", 85_520_809_984, "GPU-1")
SLICES = {
    0: ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10_200_547_328, "MIG-a"),
    2: ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 42_949_672_960, "MIG-b"),
}


class Nvml:
    """Two GPUs of which the second is sliced as `mode` says; None where the model knows no slices."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    def __init__(self, mode: Sequence[int] | None) -> None:
        self._mode = mode

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return (WHOLE[0], WHOLE[1], f"GPU-{index}")

    def nvmlDeviceGetName(self, handle: Any) -> str:  # noqa: N802
        return str(handle[0])

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(total=handle[1])

    def nvmlDeviceGetUUID(self, handle: Any) -> str:  # noqa: N802
        return str(handle[2])

    def nvmlDeviceGetMigMode(self, handle: Any) -> Sequence[int]:  # noqa: N802
        if self._mode is None:
            raise self.NVMLError
        return self._mode if handle[2] == "GPU-1" else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: int) -> Any:  # noqa: N802
        if place not in SLICES:
            raise self.NVMLError_NotFound
        return SLICES[place]


def devices(mode: Sequence[int] | None) -> tuple[Device, ...]:
    found = [gpu for index in (0, 1) for gpu in seen_at(Nvml(mode), index)]
    return discover(lambda: tuple(found), None)


def test_a_sliced_gpu_is_its_slices_each_of_a_type_that_can_be_asked_for() -> None:
    found = devices((1, 1))
    assert [(device.type, device.uuid) for device in found] == [
        ("H100", "GPU-0"),
        ("H100-1g.10gb", "MIG-a"),
        ("H100-3g.40gb", "MIG-b"),
    ]
    assert [device.memory_bytes for device in found] == [WHOLE[1], SLICES[0][1], SLICES[2][1]]
    assert all(parse_devices(f"{device.type}:1").types == (device.type,) for device in found)


@pytest.mark.parametrize("mode", [None, (0, 0), (0, 1)])
def test_one_that_is_not_sliced_yet_or_never_is_whole(mode: Sequence[int] | None) -> None:
    assert [device.uuid for device in devices(mode)] == ["GPU-0", "GPU-1"]


def test_no_rank_is_given_a_slice_beside_another_device() -> None:
    whole, one, other = devices((1, 1))
    refuse_slices([one])
    refuse_slices([whole, whole])
    for several in ([one, other], [whole, one]):
        with pytest.raises(SpecError, match="one MIG slice"):
            refuse_slices(several)
