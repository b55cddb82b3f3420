"""A placement as the command line shows it."""

from phalanx.core.experts import ExpertsAsked, ExpertsLayerView, ExpertsView
from phalanx.fabric.experts.layout import ExpertLayout
from phalanx.fabric.experts.placing import balance


def shown(asked: ExpertsAsked) -> ExpertsView:
    """Raises DataError, SpecError."""
    layout = ExpertLayout(asked.num_nodes, asked.gpus_per_node, asked.slots_per_gpu, asked.num_groups)
    placement = balance(asked.loads, layout, asked.even_shares)
    num_experts = len(asked.loads[0])
    figures = zip(
        placement.imbalance(asked.loads).tolist(), placement.between_nodes(asked.loads).tolist(),
        placement.replicas(num_experts).tolist(), placement.experts_LGS.tolist(), placement.shares_LGS.tolist(), strict=True,
    )  # fmt: skip
    layers = tuple(
        ExpertsLayerView(
            imbalance=imbalance, between_nodes=between, replicas=tuple(replicas),
            experts=tuple(map(tuple, experts)), shares=tuple(map(tuple, shares)),
        )
        for imbalance, between, replicas, experts, shares in figures
    )  # fmt: skip
    return ExpertsView(
        num_nodes=layout.num_nodes, gpus_per_node=layout.gpus_per_node, slots_per_gpu=layout.slots_per_gpu,
        num_groups=layout.num_groups, num_experts=num_experts, layers=layers,
    )  # fmt: skip
