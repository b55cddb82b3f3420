"""What links carry by their makers, in one direction, in bytes a second."""

import re
from dataclasses import dataclass
from typing import Final

GB: Final = 1e9
_RATE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]+)")
_BITS: Final = {"gb/sec": 1e9, "gbit/s": 1e9, "gb/s": 1e9, "mb/s": 1e6}


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """Of a GPU to those beside it. nvlinks: 0 where there are none and PCIe is all."""

    nvlinks: int
    bytes_per_s: float
    source: str


_PCIE_3: Final = GpuLinks(0, 15.75 * GB, "PCIe 3.0 x16")
_PCIE_4: Final = GpuLinks(0, 31.5 * GB, "PCIe 4.0 x16")

LINKS: Final = {
    # NVIDIA gives the sum of both directions: P100 160 GB/s over 4 NVLinks, V100 300 over 6, A100 600 over 12, H100 and H200 900
    # over 18, B200 1,800 over 18 (the data sheets of each, SXM form). T4, A10G and L4 have PCIe alone: 16 lanes of 8 and 16 GT/s
    # (PCI-SIG), which is 15.75 and 31.5 GB/s after the 128b/130b encoding.
    "P100": GpuLinks(4, 80 * GB, "4 NVLinks of 20 GB/s"),
    "V100": GpuLinks(6, 150 * GB, "6 NVLinks of 25 GB/s"),
    "A100-40": GpuLinks(12, 300 * GB, "12 NVLinks of 25 GB/s"),
    "A100-80": GpuLinks(12, 300 * GB, "12 NVLinks of 25 GB/s"),
    "H100": GpuLinks(18, 450 * GB, "18 NVLinks of 25 GB/s"),
    "H200": GpuLinks(18, 450 * GB, "18 NVLinks of 25 GB/s"),
    "B200": GpuLinks(18, 900 * GB, "18 NVLinks of 50 GB/s"),
    "T4": _PCIE_3,
    "A10G": _PCIE_4,
    "L4": _PCIE_4,
}


def with_links(known: GpuLinks, active: int | None) -> GpuLinks | None:
    """As the driver counts them. None for a card without any of a type that has NVLinks: its PCIe form, whose rate is not here."""
    if active == 0 and known.nvlinks:
        return None
    if active is None or known.nvlinks in (0, active):
        return known
    return GpuLinks(active, known.bytes_per_s * active / known.nvlinks, f"{active} of {known.nvlinks} NVLinks")


def port_bytes_per_s(text: str) -> float | None:
    """Of an adapter's port as Linux has it: '400 Gb/sec (4X NDR)' of /sys/class/infiniband, or megabits of /sys/class/net.

    None for a port without a link, and what is no rate.
    """
    if text.strip().isdecimal():
        return int(text) * 1e6 / 8 or None
    matched = _RATE.match(text)
    unit = _BITS.get(matched[2].lower()) if matched else None
    return float(matched[1]) * unit / 8 if matched and unit else None
