"""torch's AdamW on what each rank has of weights and moments."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from phalanx.job.checkpoint.local import local_of

MOMENTS: Final = ("exp_avg", "exp_avg_sq")


class LocalAdamW(torch.optim.AdamW):
    """torch's, of what each rank has of its weights: an update is each number's own, so nobody need know how tensors are cut. torch
    asks for that of every tensor in each step, which takes the host as long as a GPU needs for the update of a billion weights."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """As torch's, with its fused kernel."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update_all()
        return loss

    def _update_all(self) -> None:
        for group in self.param_groups:
            due = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state[parameter] for parameter in due]
            means, squares = ([local_of(state[kind]) for state in states] for kind in MOMENTS)
            steps: list[Tensor] = [state["step"] for state in states]
            weights, gradients = [local_of(parameter) for parameter in due], [local_of(parameter.grad) for parameter in due]
            update(group, weights, gradients, means, squares, steps)


def update(
    group: Mapping[str, Any],
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
) -> None:
    """torch's fused one, with the options of the group; each of `steps` is counted up."""
    adamw(
        weights, gradients, means, squares, [], steps, fused=True, amsgrad=group["amsgrad"], maximize=group["maximize"],
        beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
    )  # fmt: skip
