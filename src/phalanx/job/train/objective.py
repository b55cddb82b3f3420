"""What a model's losses are, by what it is trained for. A model without an `objective` of its own predicts the next token."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from phalanx.job.train import loss


@runtime_checkable
class Objective(Protocol):
    """Of one kind of model. samples: as its data gives them."""

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        """Mean over the samples, which training follows. Float32."""

    def losses(self, model: nn.Module, samples: Tensor) -> Tensor:
        """As `loss`, of each sample alone: float32 (b,)."""

    def scores(self, model: nn.Module, samples: Tensor) -> Mapping[str, Tensor]:
        """Means over samples that are held out, the `loss` first."""


class NextToken:
    """See `loss`."""

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        return loss.token_loss(model, samples)

    def losses(self, model: nn.Module, samples: Tensor) -> Tensor:
        return loss.sample_losses(model, samples)

    def scores(self, model: nn.Module, samples: Tensor) -> Mapping[str, Tensor]:
        return {"loss": loss.token_loss(model, samples)}


NEXT_TOKEN = NextToken()


def objective_of(model: nn.Module) -> Objective:
    own = getattr(model, "objective", NEXT_TOKEN)
    assert isinstance(own, Objective)
    return own


def batch_loss(model: nn.Module, samples: Tensor) -> Tensor:
    """See `Objective.loss`."""
    return objective_of(model).loss(model, samples)


def sample_losses(model: nn.Module, samples: Tensor) -> Tensor:
    """See `Objective.losses`."""
    return objective_of(model).losses(model, samples)
