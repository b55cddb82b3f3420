"""What a copy of a training state is made of."""

import torch
from torch import nn

from phalanx.job.checkpoint.live import LiveState


def test_what_is_copied_beside_the_next_forward_has_its_own_copy_of_what_a_forward_changes() -> None:
    linear = nn.Linear(3, 3)
    model = nn.Sequential(linear, nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.rand(4, 3)).sum().backward()
    optimizer.step()
    live = LiveState(model, optimizer)
    own = {part.name: tensor for part, tensor in live.own()}
    name = next(name for name in own if name.endswith("running_mean"))
    assert linear.weight.data_ptr() in {tensor.data_ptr() for tensor in own.values()}, "the rest lies where it is"
    then = own[name].clone()
    model(torch.rand(4, 3) + 5.0)
    assert torch.equal(own[name], then)
    assert not torch.equal({part.name: tensor for part, tensor in live.parts()}[name], then)
