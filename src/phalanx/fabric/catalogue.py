"""Known device types with their memory, arithmetic peak and a default price. Figures are the vendor's, for the SXM form where
there are two, without structured sparsity; prices are a typical on-demand list price per device in 2025, in US dollars: they move
by half within a year, so a policy's own price goes before them."""

import re
from dataclasses import dataclass
from typing import Final

from phalanx.core.devices import CPU_SLOT

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One device type. `peak_bf16_flops`: dense bf16 FLOP/s, None where no peak is known. `price_per_hour`: US dollars."""

    type: str
    memory_bytes: int
    peak_bf16_flops: float | None
    price_per_hour: float


CATALOGUE: Final = {
    model.type: model
    for model in (
        # A stand-in for devices: one slot of a CPU machine. About a vCPU pair of a general-purpose cloud machine: 0.05 an hour.
        GpuModel(CPU_SLOT, 0, None, 0.05),
        # NVIDIA Tesla P100 data sheet (SXM2): 21.2 TFLOP/s fp16; Pascal has neither tensor cores nor bf16. Google Compute Engine's
        # GPU price list: 1.46 for the GPU alone, its machine comes on top.
        GpuModel("P100", 16 * GIB, 21.2e12, 1.46),
        # NVIDIA Tesla V100 data sheet (SXM2): 125 TFLOP/s fp16 tensor cores (PCIe: 112); Volta has no bf16, so this is fp16's. The
        # 32 GB form has the same name: here it counts as the smaller one. AWS p3.2xlarge, us-east-1, with its machine: 3.06.
        GpuModel("V100", 16 * GIB, 125e12, 3.06),
        # NVIDIA T4 data sheet: 65 TFLOP/s fp16 tensor cores; Turing has no bf16, so this is fp16's. AWS g4dn.xlarge: 0.526.
        GpuModel("T4", 16 * GIB, 65e12, 0.526),
        # NVIDIA A10 data sheet: 125; the A10G that AWS sells is commonly given as 70 dense. AWS g5.xlarge: 1.006.
        GpuModel("A10G", 24 * GIB, 70e12, 1.006),
        # NVIDIA L4 data sheet: 242 with sparsity, so 121 dense. AWS g6.xlarge: 0.805.
        GpuModel("L4", 24 * GIB, 121e12, 0.805),
        # NVIDIA A100 data sheet: 312 dense bf16 for both memory sizes. Lambda's list of 2025, machines of 8: 1.29 and 1.79.
        GpuModel("A100-40", 40 * GIB, 312e12, 1.29),
        GpuModel("A100-80", 80 * GIB, 312e12, 1.79),
        # NVIDIA H100 SXM data sheet: 1,979 with sparsity, so 989.4 dense. Lambda's list of 2025, machines of 8: 2.99.
        GpuModel("H100", 80 * GIB, 989.4e12, 2.99),
        # NVIDIA H200 SXM data sheet: the H100's arithmetic with 141 GB (decimal) of HBM3e. A typical price, of no one list.
        GpuModel("H200", 141 * 10**9, 989.4e12, 3.79),
        # NVIDIA HGX B200 data sheet: 4.5 PFLOP/s with sparsity a GPU, 2.25 dense; 180 GB usable. A typical price, of no one list.
        GpuModel("B200", 180 * 10**9, 2250e12, 4.99),
    )
}

_WITHOUT_SIZE: Final = {"A100": "A100-80"}
_WORDS: Final = re.compile(r"[a-z0-9]+")
_SIZE: Final = re.compile(r"([0-9]{2,3})gi?b?")


def lookup(name: str) -> GpuModel | None:
    """The model of a type as users write it or a driver reports it: 'H100', 'a100', 'A100-80GB', 'NVIDIA H100 80GB HBM3'.

    An A100 that does not say its memory counts as the larger. None for an unknown type.
    """
    words = _WORDS.findall(name.lower())
    sizes = {matched[1] for word in words if (matched := _SIZE.fullmatch(word))} | {word for word in words if word.isdigit()}
    for known, model in CATALOGUE.items():
        product, _, size = known.lower().partition("-")
        if product in words and (not size or size in sizes):
            return model
    family = next((word for word in words if word.upper() in _WITHOUT_SIZE), None)
    return CATALOGUE[_WITHOUT_SIZE[family.upper()]] if family else None
