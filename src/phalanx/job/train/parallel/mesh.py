"""The mesh of a gang: which layout its ranks have, and PyTorch's device mesh with the same axes."""

from collections.abc import Mapping
from dataclasses import replace

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from phalanx.core.errors import SpecError
from phalanx.core.recipe import AnyRecipe, LlamaRecipe
from phalanx.core.spec_layout import PLAIN
from phalanx.fabric.layouts import Layout, RankFacts, facts_of, laid_out, named, problems, recipe_problems
from phalanx.fabric.pipeline.layout import SPLITS_BACKWARD
from phalanx.job.sdk.session import Session
from phalanx.job.train.device import Rank

SHARD = "dp_shard"
REPLICATE = "dp_replicate"
CONTEXT = "cp"
PIPELINE = "pp"
TENSORS = "tp"
_ROWS = "dp_rows"


def placed(rank: Rank, session: Session, recipe: AnyRecipe) -> Rank:
    """The rank with its layout. Raises SpecError, on every rank, for one that this gang cannot have, whoever started it."""
    asked = session.layout
    # Whether tensor-parallel ranks really have NVLink between them is for who placed them to say: here any of them may.
    ranks = RankFacts(world_size=rank.world_size, per_domain=rank.world_size)
    of_layout = problems(asked, facts_of(recipe), ranks) if asked != PLAIN else []
    for field, value, fix in (*recipe_problems(asked, recipe), *of_layout):
        raise SpecError(named(field), value, fix)
    if asked == PLAIN:
        return rank
    return replace(rank, layout=laid_out(asked, rank.world_size))


def of_rank(rank: Rank) -> Layout:
    """All ranks share everything where nothing else was asked for."""
    return rank.layout or Layout(dp_shard=rank.world_size)


def layout_of(rank: Rank) -> Mapping[str, int]:
    """Mesh axis to its size, outermost first. Axes of one rank are left out, since each costs groups; but for the one over which
    FSDP wraps every model."""
    return {axis: size for axis, size in of_rank(rank).sizes.items() if size > 1 or axis == SHARD}


def make_mesh(rank: Rank) -> DeviceMesh:
    """The layout's axes but `cp`: its ranks have the same weights and tokens of their own, as data-parallel ranks have. So they are
    a part of the axis whose ranks share the state, or of that of replicas where none do. A collective of all ranks."""
    layout = of_rank(rank)
    axis = _axis_of_rows(layout)
    sizes = {one: size * (layout.cp if one == axis else 1) for one, size in layout.sizes.items() if one != CONTEXT}
    sizes = {one: size for one, size in sizes.items() if size > 1 or one == SHARD}
    return init_device_mesh(rank.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def context_mesh(rank: Rank, mesh: DeviceMesh) -> DeviceMesh | None:
    """The ranks that share rows with this one; None where each has its own. A collective of all ranks."""
    layout = of_rank(rank)
    if layout.cp == 1:
        return None
    axis = _axis_of_rows(layout)
    return parted(mesh, axis, (mesh[axis].size() // layout.cp, layout.cp), (_ROWS, CONTEXT))[CONTEXT]


def parted(mesh: DeviceMesh, axis: str, sizes: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """The same ranks, with several axes instead of one. A collective of all ranks."""
    # By its number: of an axis by its name torch 2.11 says that there is none, of all those that there are.
    return mesh._unflatten((mesh.mesh_dim_names or ()).index(axis), sizes, names)


def stage_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The ranks with the same stages as this one; all without a pipeline."""
    names = tuple(name for name in mesh.mesh_dim_names or () if name != PIPELINE)
    return mesh[names] if len(names) < mesh.ndim else mesh


def _axis_of_rows(layout: Layout) -> str:
    """Of which the ranks that share rows are neighbours."""
    return REPLICATE if layout.zero == 0 else SHARD


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Its part over which gradients are averaged."""
    names = tuple(name for name in (REPLICATE, SHARD) if name in (mesh.mesh_dim_names or ()))
    return mesh[names] if len(names) < mesh.ndim else mesh


def uncompiled(recipe: LlamaRecipe, layout: Layout) -> LlamaRecipe:
    """Without compiled blocks where these are no one graph: a block that hands tokens on, since how many come is known only when
    it runs (see `compiles_parts`); and one that is computed again although it waits for others in between, which torch then does
    not compile at all. Nor where the schedule parts the backward pass. Nor where tensor-parallel ranks have experts: these are
    gathered within a block, and what a card's compiler makes of that nobody has measured."""
    computed_again = layout.cp > 1 and recipe.activation_checkpointing != "none"
    gathers_within = layout.tp > 1 and recipe.experts > 0
    parts_backward = layout.pp > 1 and layout.schedule in SPLITS_BACKWARD
    return replace(recipe, compile=False) if layout.ep > 1 or computed_again or gathers_within or parts_backward else recipe


def compiles_parts(layout: Layout) -> bool:
    """Whether of blocks that are no one graph the parts are compiled (`parts_run_compiled`): those that hand tokens on, where
    nothing else is cut, with which it was never measured."""
    return layout.ep > 1 and layout.cp == layout.tp == 1
