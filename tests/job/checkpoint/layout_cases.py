"""A gang of any size that saves its state, or loads another's, in a layout; `test_layouts.py` runs it with `python -m`.

Arguments: a folder, then `save:NAME:LAYOUT`, `load:...`, `dcp:...` or `keep:...` in order. What a gang saves
it also writes as whole tensors to NAME.full; whoever loads compares, element by element. What it keeps are snapshots in memory.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint.commit import Saved
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.owners import DTYPES
from phalanx.job.checkpoint.reader import PartReader
from phalanx.job.checkpoint.restore import find, load
from phalanx.job.checkpoint.save import Identity, SavePolicy, save
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.whole import open_checkpoint
from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.snapshots import Snapshots

SHAPE = LlamaShape(vocab=97, dim=16, layers=2, heads=2, ffn_dim=22)  # 97 and 22: not divisible by 2 or 4
RECIPE = LlamaRecipe(dim=16, layers=2, heads=2, ffn_dim=22)
SIZES = {"dp": lambda ranks: {"dp": ranks}, "dp-tp": lambda ranks: {"dp": ranks // 2, "tp": 2}}
STEP = 3


def mesh_of(layout: str, rank: Rank) -> DeviceMesh:
    sizes = SIZES[layout](rank.world_size)
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def sharded(mesh: DeviceMesh, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of DTensors with moments that differ everywhere. With `tp`, the feed-forward and the vocabulary are cut along it, in
    both dimensions, and everything along `dp`."""
    model = Llama(SHAPE)
    for name, part in model.named_children():
        initialise(part, name, seed, RECIPE.init_std)
    if "tp" in (mesh.mesh_dim_names or ()):
        tensor_parallel(model, mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = make_adamw(model, replace(RECIPE, seed=seed))
    for group in optimizer.param_groups:
        group["fused"] = False
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = parameter.detach() * (number + 1) + seed
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    parallelize_module(model, mesh, {"embedding": RowwiseParallel(), "output": ColwiseParallel()})
    for block in model.blocks:
        plan = {"feed.gate": ColwiseParallel(), "feed.up": ColwiseParallel(), "feed.down": RowwiseParallel()}
        assert isinstance(block, nn.Module)
        parallelize_module(block, mesh, plan)


def whole(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.full_tensor() if isinstance(one, DTensor) else one.clone() for name, one in state.items()}


def write(folder: Path, name: str, layout: str, rank: Rank) -> None:
    mesh = mesh_of(layout, rank)
    state = training_state(*sharded(mesh, seed=rank.world_size))
    identity = Identity(origin=origin(layout, rank), dtype="fp32", device=rank.device, mesh=mesh)
    saved = save(SavePolicy(root=folder / name, every=1), identity, STEP, state, {})
    assert isinstance(saved, Saved), saved
    keep = whole(state)
    if rank.rank == 0:
        save_file(keep, folder / f"{name}.full")


def origin(layout: str, rank: Rank) -> Origin:
    return Origin(config="c", data="d", world_size=rank.world_size, layout=SIZES[layout](rank.world_size))


def read(folder: Path, name: str, layout: str, rank: Rank) -> None:
    """With the drawn numbers told: ranks of a gang of another size draw differently, and the same at each such resume."""
    model, optimizer = sharded(mesh_of(layout, rank), seed=99)
    found = find(folder / name, origin(layout, rank))
    assert found is not None and not found.skipped
    drawn = []
    for _ in range(2):
        load(found, origin(layout, rank), model, optimizer, rank.device)
        drawn.append(torch.rand(4).tolist())
    assert drawn[0] == drawn[1]
    told: list[list[float] | None] = [None] * rank.world_size
    dist.all_gather_object(told, drawn[0])
    assert all(one not in told[:index] for index, one in enumerate(told)), told
    compare(folder, name, training_state(model, optimizer))


def read_by_dcp(folder: Path, name: str, layout: str, rank: Rank) -> None:
    """As a script may: torch's own load, with our reader."""
    state = training_state(*sharded(mesh_of(layout, rank), seed=99))
    dcp_load(state, storage_reader=PartReader(open_checkpoint(folder / name / f"step-{STEP:08d}")))
    compare(folder, name, state)


def keep(folder: Path, name: str, layout: str, rank: Rank) -> None:
    """A snapshot of each rank: all of them together are every tensor, and each alone is all that its rank had."""
    places = [Place(folder=folder / name / "keepers", slot=slot) for slot in range(rank.world_size)]
    model, optimizer = sharded(mesh_of(layout, rank), seed=1)
    wanted = whole(training_state(model, optimizer))
    local = {key: local_of(one).clone() for key, one in training_state(model, optimizer).items()}
    snapshots = Snapshots(places[rank.rank])
    assert snapshots.take(model, optimizer, rank, STEP, {"samples": 7})
    dist.barrier()
    if rank.rank == 0:
        got = pasted([Sealed.at(place) for place in places], rank.world_size)
        assert wanted.keys() == got.keys()
        assert not [key for key, one in wanted.items() if not torch.equal(one, got[key])]
    changed, its_optimizer = sharded(mesh_of(layout, rank), seed=2)
    snapshots.new_model()
    snapshots.restore(changed, its_optimizer, rank, STEP)
    again = training_state(changed, its_optimizer)
    assert not [key for key, one in again.items() if not torch.equal(local_of(one), local[key])]
    dist.barrier()
    snapshots.close()


def pasted(places: list[Sealed], world_size: int) -> dict[str, torch.Tensor]:
    """Whole tensors of every place's parts; where two hold the same, they are alike."""
    found: dict[str, torch.Tensor] = {}
    for place in places:
        assert place.steps() == (STEP,) and '"samples": 7' in place.seal_of(STEP).note
        parts = place.parts(STEP)
        assert sum(part.name.startswith("rng.") for part, _ in parts) == 1
        for part, data in parts:
            if part.name.startswith("rng."):
                continue
            tensor = found.setdefault(part.name, torch.full(part.shape, torch.nan, dtype=DTYPES[part.dtype]))
            box = tensor[tuple(slice(at, at + size) for at, size in zip(part.start, part.size, strict=True))]
            piece = torch.frombuffer(bytearray(data), dtype=box.dtype).reshape(part.size) if part.num_bytes else box.clone()
            assert bool(torch.isnan(box).all()) or torch.equal(box, piece)
            box.copy_(piece)
    return found


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def compare(folder: Path, name: str, state: dict[str, torch.Tensor]) -> None:
    wanted, got = load_file(folder / f"{name}.full"), whole(state)
    assert wanted.keys() == got.keys() and len(got) > 40
    differ = [key for key, one in wanted.items() if not torch.equal(one, got[key])]
    assert not differ, differ


def main(folder: Path, actions: list[str]) -> None:
    with gang() as rank:
        for action in actions:
            what, name, layout = action.split(":")
            {"save": write, "load": read, "dcp": read_by_dcp, "keep": keep}[what](folder, name, layout, rank)
            dist.barrier()
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
