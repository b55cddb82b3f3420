"""Which device nodes an attempt needs: those of its GPUs, as the driver numbers them, and what all GPUs share."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from phalanx.core.devices import CPU_SLOT, Device
from phalanx.core.errors import SetupError
from phalanx.operate.agent.devices import SLICE

ALWAYS: Final = ("null", "zero", "full", "random", "urandom", "tty")
OF_ALL_GPUS: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""Which open none by themselves."""
OF_NETWORKS: Final = ("infiniband", "gdrdrv")
"""What gangs over several machines speak through, where there is such a thing."""


def device_nodes(granted: Iterable[Device], several: bool, proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> list[str]:
    """Names in /dev. `several`: the gang has other nodes. Raises SetupError for a GPU whose node is not found."""
    gpus = [device for device in granted if device.type != CPU_SLOT]
    if not gpus:
        return list(ALWAYS)
    minors = _minors(proc / "driver" / "nvidia" / "gpus")
    found = [_node_of(gpu, minors, dev) for gpu in gpus]
    shared = [name for name in (*OF_ALL_GPUS, *(OF_NETWORKS if several else ())) if (dev / name).exists()]
    return [*ALWAYS, *dict.fromkeys(found), *shared]


def _node_of(gpu: Device, minors: Mapping[str, str], dev: Path) -> str:
    name = f"nvidia{minors.get(gpu.uuid, '')}"
    if gpu.uuid not in minors or not (dev / name).exists():
        what = (
            "a MIG slice is not given to jobs that are kept apart yet"
            if gpu.uuid.startswith(SLICE)
            else "its device node is not found"
        )
        raise SetupError("device", gpu.uuid or gpu.index, f"{what}, so it cannot be given to one job alone")
    return name


def _minors(folder: Path) -> dict[str, str]:
    """UUID -> number of its node, as the driver tells them: not the order in which it counts GPUs."""
    found = {}
    for file in folder.glob("*/information"):
        facts = dict(line.split(":", 1) for line in file.read_text(errors="replace").splitlines() if ":" in line)
        uuid, minor = facts.get("GPU UUID", "").strip(), facts.get("Device Minor", "").strip()
        if uuid and minor.isdigit():
            found[uuid] = minor
    return found
