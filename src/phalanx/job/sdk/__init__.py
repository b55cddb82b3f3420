"""What a rank says and is told: `attach()` gives its Session. Torch-free, never blocks; imports only core."""

from phalanx.job.sdk.session import Session, attach

__all__ = ["Session", "attach"]
