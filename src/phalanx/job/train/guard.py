"""One run's watch over its loss: remembers, and asks the pure rule in `spikes` once a step."""

from collections.abc import Mapping
from typing import Final

from phalanx.core.recipe import AnyRecipe
from phalanx.job.train import spikes
from phalanx.job.train.spikes import Curve, Judged, Rule

NUMBER: Final = "losses"
"""Its name among the numbers of a checkpoint."""


class Guard:
    """curve: what it remembers. judged: the newest step's judgement, None before the first."""

    def __init__(self, recipe: AnyRecipe) -> None:
        self.curve = Curve()
        self.judged: Judged | None = None
        self._rule = Rule(on_spike=recipe.on_spike, budget=recipe.spike_budget)

    def accepts(self, step: int, loss: float, grad_norm: float) -> bool:
        """Whether update `step` shall be made. Of each step once, with the same numbers on every rank."""
        self.judged = spikes.judge(self.curve, self._rule, step, loss, grad_norm)
        self.curve = self.judged.after
        return self.judged.action == "train"

    def numbers(self) -> Mapping[str, str]:
        """For a checkpoint."""
        return {NUMBER: spikes.dump(self.curve)}

    def restore(self, numbers: Mapping[str, object]) -> None:
        """From a checkpoint that a run resumes from. Raises KeyError or ValueError when they are not there."""
        self.curve = spikes.load(str(numbers[NUMBER]))

    def roll_back(self, numbers: Mapping[str, object]) -> None:
        """From a checkpoint whose weights a run goes on with. Raises KeyError or ValueError when they are not there."""
        self.curve = spikes.rolled_back(self.curve, spikes.load(str(numbers[NUMBER])))
