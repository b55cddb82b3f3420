"""Any PyTorch script made resumable, measured and watched in a few lines: `with phalanx.run() as run:`, see docs/library.md.

The same script runs by `python`, by `torchrun` and by `phalanx submit`. Each part of a run is of use alone; nobody has to hand the
training loop over.
"""

from phalanx.job.train.library.reading import RunLoader
from phalanx.job.train.library.run import Run, run

__all__ = ["Run", "RunLoader", "run"]
