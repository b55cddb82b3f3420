"""A run under Hugging Face's Trainer: `Trainer(callbacks=[RunCallback(run)])` tells each step and leaves when the job shall.

The Trainer keeps its own checkpoints; one that is stopped saves once more, from which the next attempt goes on as ever.
"""

from typing import Any

from transformers import TrainerCallback

from phalanx.job.train.library.curves import curves_of
from phalanx.job.train.library.run import Run


class RunCallback(TrainerCallback):
    """The Trainer says a loss every `logging_steps`: steps between have the last one. tokens: of a step's whole batch."""

    def __init__(self, run: Run, tokens: int = 0) -> None:
        self._run, self._tokens = run, tokens
        self._done = 0
        self._told = 0
        self._said: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._done = self._told = state.global_step
        self._run.begin(self._told)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tell()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._done = state.global_step
        if self._run.should_stop():
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Comes after the end of the step that it is about."""
        if self._done > self._told:
            self._said |= {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.alive()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tell()

    def _tell(self) -> None:
        if self._done > self._told:
            self._told = self._done
            said = {_NAMES.get(name, name): value for name, value in self._said.items()}
            self._said = {name: value for name, value in self._said.items() if name in _NAMES}
            self._run.log(self._told, tokens=self._tokens, **curves_of(said))


_NAMES = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr"}
"""What the Trainer calls the numbers of a step."""
