"""Which nodes a job gets, on files written for these tests in the way of NVIDIA's driver 535: no GPU is asked here."""

from pathlib import Path

import pytest

from phalanx.core.devices import Device
from phalanx.core.errors import SetupError
from phalanx.operate.agent.isolation.gpu_nodes import ALWAYS, device_nodes

INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 18
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.74.00.01
Bus Type: \t PCIe
Bus Location: \t 0000:{bus}:00.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""


def gpu(index: int) -> Device:
    return Device(index, "H100", "NVIDIA H100 80GB HBM3", 2**36, f"GPU-{index}")


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    dev.mkdir()
    for index, minor in enumerate((3, 1, 0)):  # not in the order of their numbers
        folder = proc / "driver" / "nvidia" / "gpus" / f"0000:{index + 16:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(INFORMATION.format(uuid=f"GPU-{index}", bus=f"{index + 16:02x}", minor=minor))
        (dev / f"nvidia{minor}").touch()
    for name in ("nvidiactl", "nvidia-uvm", "infiniband"):
        (dev / name).touch()
    return proc, dev


def test_only_the_granted_ones_are_there_by_the_drivers_numbers(machine: tuple[Path, Path]) -> None:
    assert device_nodes([gpu(0), gpu(2)], False, *machine) == [*ALWAYS, "nvidia3", "nvidia0", "nvidiactl", "nvidia-uvm"]


def test_a_gang_of_several_machines_speaks_through_the_fabric(machine: tuple[Path, Path]) -> None:
    assert device_nodes([gpu(1)], True, *machine)[-1] == "infiniband"


def test_a_job_without_gpus_gets_none_of_theirs(machine: tuple[Path, Path]) -> None:
    assert device_nodes([], True, *machine) == device_nodes([Device(0, "cpu", "CPU slot")], True, *machine) == list(ALWAYS)


def test_a_gpu_whose_node_is_unknown_is_given_to_nobody(machine: tuple[Path, Path]) -> None:
    with pytest.raises(SetupError, match=r"GPU-7.*device node is not found"):
        device_nodes([gpu(7)], False, *machine)
    (machine[1] / "nvidia1").unlink()
    with pytest.raises(SetupError, match="GPU-1"):
        device_nodes([gpu(1)], False, *machine)
