"""The expert load balancer beside DeepSeek's published one, on the same loads and in the same call. CPU only.

Usage: python benchmarks/expert_balance.py [--only ID] [--quick]. The last line is one JSON object; the exit code is 1 when a claim
does not hold. --quick: QUICK_LAYERS layers instead of 58, and fewer repeats.

Load sets: the example of DeepSeek's repository (2 layers, 12 experts), with its groups on nodes and without; Zipf loads, 1 / rank
in an order drawn anew for each layer (`numpy.random.default_rng(0).permutation`); and lognormal ones of sigma 1
(`default_rng(0).lognormal`). The last two on four layouts each: 256 experts in 8 groups, 288 replicas on 32 GPUs of 4 nodes, and
320 on 64 GPUs of 8 nodes; 256 experts without groups, 288 on 144 GPUs of 18 nodes; 128 without groups, 144 on 16 GPUs of 2 nodes.

The peer is `benchmarks/parts/eplb.py`, its algorithm from its description, which comes out as published on its own example. A
figure is the largest GPU load over the mean one, a ratio ours over the peer's, of each layer; a set counts as the mean of its
layers. The peer divides an expert's load evenly over its replicas, ours plans the shares. `even`: ours without shares. `peer,
shares`: the peer's placement with our shares. `bound`: no placement is below, be it ever so good: the mean load of the fullest
node, or the heaviest replica when replicas are apportioned as well as can be.

`worst_ratio_to_eplb`: of all layers of all sets. `mean_ratio_to_eplb`: the mean of all sets, with those of the example and Zipf and
of the lognormal ones beside it. `ms_58x256`: CPU time of one call for 58 layers of 256 experts, the median of the repeats, on the
slowest set.

`between_nodes`: the part of tokens that leaves its node, by the model of `ExpertPlacement.between_nodes`, mean over the sets
without groups.

`live`: loads drift from one re-placement to the next, a random walk of the logarithms with steps of 0.3. What 200 steps take by
their fullest GPUs, and the moves before them, of ours over what they take where the peer places everything anew each time, from
its own last placement; both pay alike for what a GPU has to receive.

`beside_owners`: experts stay where their numbers put them, and each GPU has one further slot (`replicas`); the largest mean of six
sets. `before`: without it. `peer`: the published algorithm with as many slots, which places everything anew.
"""

import argparse
import json
import os
import platform as machine
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from parts import eplb  # type: ignore[import-not-found]  # beside this file

from phalanx.fabric.experts import ExpertLayout, ExpertPlacement, MoveCost, balance, gpu_loads, rebalance, replicas
from phalanx.fabric.experts.level import settle
from phalanx.fabric.experts.placing import gpus_of_row, row_loads, splits
from phalanx.fabric.experts.present import rows_of
from phalanx.fabric.experts.replacing import moved_s
from phalanx.fabric.experts.rows import lower_bound
from phalanx.fabric.experts.start import apportioned, merge_doubles

Table = NDArray[np.float64]

LAYERS: Final = 58
QUICK_LAYERS: Final = 8
REPEATS: Final = 9
QUICK_REPEATS: Final = 3
MEAN_TARGET: Final = 0.95
MS_TARGET: Final = 200.0
OWNERS_TARGET: Final = 1.05
ROUNDING: Final = 1e-9

README: Final = np.array(
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]], np.float64
)
LAYOUTS: Final = {
    "32": (256, ExpertLayout(4, 8, 9, 8)),
    "64": (256, ExpertLayout(8, 8, 5, 8)),
    "144": (256, ExpertLayout(18, 8, 2)),
    "16": (128, ExpertLayout(2, 8, 9)),
}
COST: Final = MoveCost(
    expert_bytes=3 * 7168 * 2048,
    token_s=3 * 6 * 7168 * 2048 / 400e12,
    num_steps=200,
    node_bytes_per_s=4e11,
    fabric_bytes_per_s=5e10,
)
"""An expert of DeepSeek-V3 in fp8, on GPUs that come to 400 TFLOP/s; NVLink of 900 GB/s both ways, 400 Gb/s a GPU; less a part."""

TOKENS: Final = 4096 * 8
"""Of each GPU in a step: 4,096 with 8 experts each."""


def zipf(layers: int, experts: int, seed: int = 0) -> Table:
    chance = np.random.default_rng(seed)
    return np.stack([chance.permutation(1 / np.arange(1, experts + 1)) for _ in range(layers)])


def lognormal(layers: int, experts: int, seed: int = 0) -> Table:
    return np.random.default_rng(seed).lognormal(0, 1, (layers, experts))


@dataclass(frozen=True, slots=True)
class LoadSet:
    name: str
    loads: Table
    layout: ExpertLayout


@dataclass(frozen=True, slots=True)
class Found:
    """Largest over mean GPU load, each [L]."""

    name: str
    ours: Table
    peer: Table
    even: Table
    shared: Table
    bound: Table

    @property
    def ratio(self) -> Table:
        return self.ours / self.peer


def sets(layers: int) -> Iterator[LoadSet]:
    yield LoadSet("readme_groups", README, ExpertLayout(2, 4, 2, 4))
    yield LoadSet("readme_anywhere", README, ExpertLayout(2, 4, 2))
    for kind, make in (("zipf", zipf), ("lognormal", lognormal)):
        for name, (experts, layout) in LAYOUTS.items():
            yield LoadSet(f"{kind}_{name}", make(layers, experts), layout)


def placed_by_peer(loads: Table, layout: ExpertLayout) -> NDArray[np.int64]:
    groups, nodes = (layout.num_groups, layout.num_nodes) if layout.num_groups else (1, 1)
    return np.asarray(eplb.placed(loads, layout.num_gpus * layout.slots_per_gpu, groups, nodes, layout.num_gpus), np.int64)


def bound(loads: Table, layout: ExpertLayout) -> Table:
    anywhere = np.tile(np.arange(loads.shape[1]), (len(loads), 1))
    of_rows, exists = row_loads(loads, splits(loads, layout)[1] if layout.num_groups else anywhere)
    gpus = gpus_of_row(layout)
    copies = apportioned(of_rows, exists, gpus * layout.slots_per_gpu, gpus)
    least = lower_bound(of_rows, copies, gpus).reshape(len(loads), -1).max(1)
    return np.asarray(least / (loads.sum(1) / layout.num_gpus))


def measured(one: LoadSet) -> Found:
    peer = placed_by_peer(one.loads, one.layout)
    ours, even = balance(one.loads, one.layout), balance(one.loads, one.layout, even_shares=True)
    least, theirs = bound(one.loads, one.layout), eplb.imbalance(one.loads, peer)
    with_shares, without = ours.imbalance(one.loads), even.imbalance(one.loads)
    found = Found(one.name, with_shares, theirs, without, with_our_shares(one, peer), least)
    figures = (found.ours, found.peer, found.even, found.shared, found.bound)
    shown = "".join(f"{figure.mean():>13.4f}" for figure in figures)
    print(f"{found.name:<18}{shown}{found.ratio.mean():>9.4f}{found.ratio.max():>9.4f}", flush=True)
    return found


def with_our_shares(one: LoadSet, experts: NDArray[np.int64]) -> Table:
    rows, members = rows_of(ExpertPlacement(one.layout, *merged(experts)), one.loads)
    merge_doubles(rows, members >= 0)
    settle(rows)
    return np.asarray(rows.largest().reshape(len(one.loads), -1).max(1) / (one.loads.sum(1) / one.layout.num_gpus))


def merged(experts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Table]:
    """The peer's placement with even shares by slot."""
    flat = experts.reshape(len(experts), -1)
    count = np.array([np.bincount(layer, minlength=int(flat.max()) + 1)[layer] for layer in flat])
    return experts, (1 / count).reshape(experts.shape)


class Trial:
    """All sets, each measured once."""

    def __init__(self, quick: bool) -> None:
        self.layers, self.repeats = (QUICK_LAYERS, QUICK_REPEATS) if quick else (LAYERS, REPEATS)
        self.sets = list(sets(self.layers))
        self._found: list[Found] = []

    def found(self) -> list[Found]:
        if not self._found:
            head = "".join(f"{word:>13}" for word in ("ours", "peer", "even", "peer, shares", "bound"))
            print(f"{'max / mean load':<18}{head}{'ratio':>9}{'worst':>9}")
            self._found = [measured(one) for one in self.sets]
        return self._found


def worst(trial: Trial) -> dict[str, Any]:
    ours = max(float(found.ratio.max()) for found in trial.found())
    means = {found.name: round(float(found.ratio.mean()), 4) for found in trial.found()}
    more = {"of_each": means, "even": round(max(float((found.even / found.peer).max()) for found in trial.found()), 4)}
    return {**claim("worst_ratio_to_eplb", ours, 1.0, "ours / peer", ours <= 1 + ROUNDING), **more}


def mean(trial: Trial) -> dict[str, Any]:
    kinds = {
        "lognormal": [found for found in trial.found() if found.name.startswith("lognormal")],
        "example_and_zipf": [found for found in trial.found() if not found.name.startswith("lognormal")],
    }
    ours = fmean(float(found.ratio.mean()) for found in trial.found())
    least = fmean(float((found.bound / found.peer).mean()) for found in trial.found())
    of_each = {name: round(fmean(float(found.ratio.mean()) for found in chosen), 4) for name, chosen in kinds.items()}
    more = {"bound": round(least, 4), **of_each}
    return {**claim("mean_ratio_to_eplb", ours, MEAN_TARGET, "ours / peer", ours < MEAN_TARGET), **more}


def between_nodes(trial: Trial) -> dict[str, Any]:
    """The part of tokens that leaves its node, on the sets without groups: with them it is the same, 1 - 1 / nodes."""
    of_each = dict[str, tuple[float, float]]()
    for one in trial.sets:
        if not one.layout.num_groups:
            theirs = ExpertPlacement(one.layout, *merged(placed_by_peer(one.loads, one.layout)))
            pair = (balance(one.loads, one.layout), theirs)
            ours, peer = (float(placement.between_nodes(one.loads).mean()) for placement in pair)
            of_each[one.name] = (round(ours, 4), round(peer, 4))
    ratio = fmean(ours / peer for ours, peer in of_each.values())
    worst_ratio = max(ours / peer for ours, peer in of_each.values())
    return {**claim("between_nodes", ratio, 1.0, "ours / peer", worst_ratio <= 1), "of_each": of_each}


def speed(trial: Trial) -> dict[str, Any]:
    """One call of `balance`; of each set the median."""
    of_each = dict[str, float]()
    for one in trial.sets:
        if one.loads.shape[1] == 256:
            of_each[one.name] = median(timed_ms(lambda: balance(one.loads, one.layout)) for _ in range(trial.repeats))  # noqa: B023
    slowest = max(of_each.values())
    more = {"layers": trial.layers, "of_each": {name: round(value, 1) for name, value in of_each.items()}}
    return {**claim("ms_58x256", slowest, MS_TARGET, "ms", slowest <= MS_TARGET), **more}


def timed_ms(act: Callable[[], object]) -> float:
    """CPU time: one thread does it all, and other processes do not count."""
    begin_s = time.process_time()
    act()
    return (time.process_time() - begin_s) * 1000


def live(trial: Trial) -> dict[str, Any]:
    """Over the layouts of 256 experts: seconds of ours and of the peer after five drifts."""
    ours_s = peer_s = moved = bytes_moved = 0.0
    calls_ms = list[float]()
    for name in ("32", "64", "144"):
        experts, layout = LAYOUTS[name]
        chance, loads = np.random.default_rng(1), lognormal(trial.layers, experts)
        ours, theirs = balance(loads, layout), placed_by_peer(loads, layout)
        for _ in range(5):
            loads = loads * chance.lognormal(0, 0.3, loads.shape)
            tokens = loads / loads.sum(1, keepdims=True) * TOKENS * layout.num_gpus
            begin_s = time.process_time()
            found = rebalance(ours, tokens, COST)
            calls_ms.append((time.process_time() - begin_s) * 1000)
            ours, moved, bytes_moved = (
                found.placement,
                moved + len(found.moves),
                bytes_moved + found.node_bytes + found.fabric_bytes,
            )
            ours_s += float(found.cost_s.sum()) + steps_s(ours, tokens)
            before, theirs = theirs, placed_by_peer(tokens, layout)
            peer_s += float(moved_s(before, theirs, layout, COST, experts).sum())
            peer_s += steps_s(ExpertPlacement(layout, *merged(theirs)), tokens)
    more = {"moves": int(moved), "gigabytes": round(bytes_moved / 1e9, 1), "median_ms": round(median(calls_ms), 1)}
    return {**claim("live", ours_s / peer_s, 1.0, "ours / peer", ours_s < peer_s), "ours_s": ours_s, "peer_s": peer_s, **more}


def steps_s(placement: ExpertPlacement, tokens: Table) -> float:
    return float(placement.gpu_loads(tokens).max(1).sum()) * COST.token_s * COST.num_steps


def beside_owners(trial: Trial) -> dict[str, Any]:
    of_each, worst_layer = dict[str, dict[str, float]](), 0.0
    for kind in (zipf, lognormal):
        for experts, gpus in ((128, 16), (256, 32), (256, 64)):
            loads = np.rint(kind(trial.layers, experts) * 1e6).astype(np.int64)
            means = loads.sum(1) / gpus
            before = [max(gpu_loads(load, gpus)) for load in loads.tolist()] / means
            after = [max(gpu_loads(load, gpus, replicas(load, gpus, spare=1))) for load in loads.tolist()] / means
            peer = eplb.imbalance(loads, np.asarray(eplb.placed(loads, experts + gpus, 1, 1, gpus), np.int64))
            figures = {"before": before.mean(), "ours": after.mean(), "peer": peer.mean()}
            of_each[f"{kind.__name__}_{experts}_{gpus}"] = {name: round(float(one), 4) for name, one in figures.items()}
            worst_layer = max(worst_layer, float(after.max()))
    largest = max(one["ours"] for one in of_each.values())
    more = {"of_each": of_each, "worst_layer": round(worst_layer, 4)}
    return {**claim("beside_owners", largest, OWNERS_TARGET, "max / mean", largest <= OWNERS_TARGET), **more}


CLAIMS: Final[dict[str, Callable[[Trial], dict[str, Any]]]] = {
    "worst_ratio_to_eplb": worst,
    "mean_ratio_to_eplb": mean,
    "between_nodes": between_nodes,
    "ms_58x256": speed,
    "live": live,
    "beside_owners": beside_owners,
}


def claim(identity: str, ours: float, target: float, unit: str, holds: bool) -> dict[str, Any]:
    print(f"{identity:<24}{ours:>10.4f} {unit}, target {target}: {'holds' if holds else 'DOES NOT HOLD'}", flush=True)
    return {"id": identity, "ours": round(ours, 4), "peer": None, "unit": unit, "target": target, "holds": bool(holds)}


def conditions(layers: int) -> dict[str, Any]:
    """What the numbers depend on. `load`: runnable processes before the start."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else machine.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "load": round(os.getloadavg()[0], 2), "versions": {"python": machine.python_version(), "numpy": np.__version__},
        "layers": layers, "seed": 0,
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LAYERS} layers, {QUICK_REPEATS} repeats")
    options = parser.parse_args()
    trial = Trial(options.quick)
    around = conditions(trial.layers)
    claims = [CLAIMS[name](trial) for name in ([options.only] if options.only else CLAIMS)]
    print(json.dumps({"benchmark": "expert_balance", "conditions": around, "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
