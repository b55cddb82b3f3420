"""Where the experts of a mixture-of-experts lie, and what moves when their loads have changed. Needs no GPU: python place.py"""

import numpy as np

from phalanx.fabric.experts import ExpertLayout, MoveCost, balance, rebalance


def main() -> None:
    """12 experts in 4 groups on 2 nodes of 4 GPUs with 2 slots each, two layers; the loads are those of DeepSeek's own example."""
    loads = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
    layout = ExpertLayout(num_nodes=2, gpus_per_node=4, slots_per_gpu=2, num_groups=4)
    placement = balance(loads, layout)
    for layer, imbalance in enumerate(placement.imbalance(loads)):
        print(f"layer {layer}: the fullest GPU has {imbalance:.3f} times the mean load")
        for gpu, (experts, shares) in enumerate(zip(placement.experts_LGS[layer], placement.shares_LGS[layer], strict=True)):
            held = ", ".join(f"{share:4.0%} of expert {expert}" for expert, share in zip(experts, shares, strict=True))
            print(f"  node {gpu // layout.gpus_per_node}, GPU {gpu}: {held}")

    later = np.roll(np.array(loads), 1, axis=1) * 1000  # tokens of a step, after the experts' work has changed
    cost = MoveCost(expert_bytes=44_040_192, token_s=6.6e-7, num_steps=200, node_bytes_per_s=4e11, fabric_bytes_per_s=5e10)
    found = rebalance(placement, later, cost)
    before, after = placement.imbalance(later).max(), found.placement.imbalance(later).max()
    moved_bytes = found.node_bytes + found.fabric_bytes
    print(f"later: {before:.3f} as it was, {after:.3f} after {len(found.moves)} moves of {moved_bytes:,} bytes")
    print(f"the moves take {found.cost_s.sum() * 1000:.1f} ms and save {found.gain_s.sum():.1f} s over {cost.num_steps} steps")


if __name__ == "__main__":
    main()
