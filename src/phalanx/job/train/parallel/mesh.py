"""The mesh of a gang: which layout its ranks have, and PyTorch's device mesh with the same axes."""

from collections.abc import Mapping
from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec_layout import PLAIN
from phalanx.fabric.layouts import Layout, RankFacts, facts_of, laid_out, problems
from phalanx.job.sdk.session import Session
from phalanx.job.train.device import Rank

SHARD = "dp_shard"
REPLICATE = "dp_replicate"


def placed(rank: Rank, session: Session, recipe: LlamaRecipe) -> Rank:
    """The rank with its layout. Raises SpecError, on every rank, for one that this gang cannot have, whoever started it."""
    asked = session.layout
    if asked == PLAIN:
        return rank
    # Whether tensor-parallel ranks really have NVLink between them is for who placed them to say: here any of them may.
    ranks = RankFacts(world_size=rank.world_size, per_domain=rank.world_size)
    for field, value, fix in problems(asked, facts_of(recipe), ranks):
        raise SpecError(f"layout.{field}", value, fix)
    return replace(rank, layout=laid_out(asked, rank.world_size))


def of_rank(rank: Rank) -> Layout:
    """All ranks share everything where nothing else was asked for."""
    return rank.layout or Layout(dp_shard=rank.world_size)


def layout_of(rank: Rank) -> Mapping[str, int]:
    """Mesh axis to its size, outermost first. Axes of one rank are left out, since each costs groups; but for the one over which
    FSDP wraps every model."""
    return {axis: size for axis, size in of_rank(rank).sizes.items() if size > 1 or axis == SHARD}


def make_mesh(rank: Rank) -> DeviceMesh:
    """A collective of all ranks."""
    sizes = layout_of(rank)
    return init_device_mesh(rank.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Its part over which gradients are averaged."""
    names = tuple(name for name in (REPLICATE, SHARD) if name in (mesh.mesh_dim_names or ()))
    return mesh[names] if len(names) < mesh.ndim else mesh
