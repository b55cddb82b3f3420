"""What the training loop tells of its way: where it is, and that a step is done. The plain one tells nobody."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.job.train.setup import Training

HELD_OUT_MARK = 100
"""Marks of a step's own phases are below; those of held-out batches count from here."""


class Watch:
    """Of a gang that does not recover inside."""

    def moved(self, step: int, mark: int) -> None:
        """The main thread is in `step`, at that mark of it."""

    def waiting(self) -> None:
        """The main thread waits for checkpoints; called again and again. Raises where it shall not go on to."""

    def completed(self, training: "Training", step: int, val_loss_first: float, checkpoint: str) -> None:
        """The update of `step` is made, and saved where that was due; its record is not written yet. checkpoint: digest of the last
        manifest."""

    def replaced(self) -> None:
        """Weights and moments were put back: they may lie elsewhere in memory than before."""

    def recorded(self, training: "Training", step: int) -> None:
        """The record of `step` is written."""
