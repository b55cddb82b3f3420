"""A run under Lightning's Trainer: `Trainer(callbacks=[RunCallback(run)])` tells each step and leaves when the job shall.

Lightning keeps its own checkpoints; a trainer that was stopped saves one more, from which the next attempt goes on as ever.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from phalanx.job.train.library.curves import curves_of
from phalanx.job.train.library.run import Run


class RunCallback(Callback):
    """save_at_stop: the file of the checkpoint that is made when the job shall leave; none by default. tokens: of a step's whole
    batch."""

    def __init__(self, run: Run, save_at_stop: Path | str | None = None, tokens: int = 0) -> None:
        self._run, self._save_at_stop, self._tokens = run, save_at_stop, tokens
        self._told = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._told = trainer.global_step
        self._run.begin(self._told)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Of a batch that brought an update: several may make one step."""
        if trainer.global_step <= self._told:
            return
        self._told = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        curves = curves_of({**trainer.logged_metrics, "loss": loss})
        self._run.log(self._told, tokens=self._tokens, **curves)
        if self._run.should_stop() and not trainer.should_stop:
            if self._save_at_stop is not None:
                trainer.save_checkpoint(self._save_at_stop)
            trainer.should_stop = True

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._run.alive()
