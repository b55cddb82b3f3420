"""The catalogue knows the common types under the names that users and drivers give them."""

import pytest

from phalanx.core.devices import CPU_SLOT
from phalanx.fabric.catalogue import CATALOGUE, lookup


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("cpu", "cpu"),
        ("Tesla T4", "T4"),
        ("V100", "V100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA A10G", "A10G"),
        ("l4", "L4"),
        ("A100", "A100-80"),
        ("A100-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("H100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("B200", "B200"),
    ],
)
def test_names(written: str, known: str) -> None:
    model = lookup(written)
    assert model is not None
    assert model.type == known


@pytest.mark.parametrize("written", ["", "L40S", "GB200", "RTX 4090", "H1000", "100", "40GB"])
def test_an_unknown_type_is_not_guessed(written: str) -> None:
    assert lookup(written) is None


def test_a_cpu_slot_has_a_price_and_no_peak() -> None:
    slot = lookup(CPU_SLOT)
    assert slot is not None
    assert slot.peak_bf16_flops is None
    assert slot.price_per_hour > 0


def test_every_device_is_plausible() -> None:
    assert all(lookup(name) == model and model.price_per_hour > 0 for name, model in CATALOGUE.items())
    gpus = [model for model in CATALOGUE.values() if model.type != CPU_SLOT]
    assert all(model.memory_bytes >= 16 * 2**30 and 2e13 < (model.peak_bf16_flops or 0) < 1e16 for model in gpus)
