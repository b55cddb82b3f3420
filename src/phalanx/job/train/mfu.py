"""Model FLOPs utilisation: the share of the devices' arithmetic peak that goes into the model."""

from phalanx.fabric.catalogue import lookup


def peak_flops(device_name: str) -> float:
    """Dense bf16 peak of a device as its driver names it; 0.0 where the catalogue knows none."""
    model = lookup(device_name)
    return model.peak_bf16_flops or 0.0 if model else 0.0


def mfu(tokens_per_s: float, flops_per_token: float, peak_flops_total: float) -> float:
    """Between 0 and 1; 0.0 when no peak is known."""
    return tokens_per_s * flops_per_token / peak_flops_total if peak_flops_total else 0.0
