"""What a rank knows of where it lies: its node, its GPU's NVLinks by the driver, its node's network adapters by the kernel."""

import importlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from phalanx.fabric.links.rates import port_bytes_per_s
from phalanx.job.train.device import Rank

_NVLINKS_MAX: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one rank. node: its number in the gang. name: as the platform knows the node, else its host. nics: bytes a second of all
    its adapters with a link together, None where none says so. nvlinks: active ones of its GPU, None without a driver."""

    node: int
    local_rank: int
    name: str
    host: str
    device: str
    nics: float | None
    nvlinks: int | None


def facts(rank: Rank, environ: Mapping[str, str] = os.environ) -> Facts:
    host = socket.gethostname()
    return Facts(
        node=int(environ.get("GROUP_RANK", "0")),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        name=environ.get("PHALANX_NODE", "") or host,
        host=host,
        device=rank.device_name,
        nics=nics_bytes_per_s(Path("/sys/class")),
        nvlinks=active_nvlinks(rank.device) if rank.device.type == "cuda" else None,
    )


def nics_bytes_per_s(classes: Path) -> float | None:
    """The InfiniBand and RoCE ports that are up together; where there are none, the fastest of the plain adapters."""
    ports = [port.parent for port in classes.glob("infiniband/*/ports/*/rate") if "ACTIVE" in _text(port.parent / "state")]
    if rates := [rate for port in ports if (rate := port_bytes_per_s(_text(port / "rate")))]:
        return sum(rates)
    plain = [device.parent for device in classes.glob("net/*/device") if _text(device.parent / "operstate").strip() == "up"]
    return max((rate for device in plain if (rate := port_bytes_per_s(_text(device / "speed")))), default=None)


def active_nvlinks(device: torch.device) -> int | None:
    try:
        nvml: Any = importlib.import_module("pynvml")  # a library without types, of machines with GPUs alone
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except Exception:  # noqa: BLE001 (no library, no driver, an old torch: then nobody counts)
        return None
    return sum(_is_active(nvml, handle, link) for link in range(_NVLINKS_MAX))


def _is_active(nvml: Any, handle: object, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
    except Exception:  # noqa: BLE001 (a card with fewer links has no such number)
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):  # an adapter that is down gives EINVAL for its speed
        return ""
