"""What a process does before it takes part in a gang that recovers: one step of a tiny model, alone, so that all that torch loads
late is loaded."""

import torch
import torch.distributed as dist

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.models.llama import LlamaShape
from phalanx.job.train.device import alone, this_rank
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.step import train_step


def warm_up() -> None:
    """On the CPU, whatever device the rank will have: a spare holds no device memory. The process has no group before or after."""
    device = torch.device("cpu")
    torch.set_num_threads(1)
    alone(device)
    try:
        recipe = LlamaRecipe(dim=8, layers=1, heads=1, ffn_dim=8, sequence=4, batch_per_rank=1, steps=2, warmup_steps=0)
        shape = LlamaShape(vocab=8, dim=8, layers=1, heads=1, ffn_dim=8)
        rank = this_rank(device)
        model = sharded_llama(shape, recipe, rank, make_mesh(rank), "fp32")
        optimizer = make_adamw(model, recipe)
        samples = torch.zeros(1, 1, 5, dtype=torch.int64)
        train_step(model, optimizer, lambda _: samples, recipe, 1, lambda: 0.0)
        set_training_state(model, optimizer, training_state(model, optimizer))
    finally:
        dist.destroy_process_group()
