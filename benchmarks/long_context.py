"""Attention over one long row that ranks share: our ring and Ulysses beside torch's own ring, in the same call.

Usage: python benchmarks/long_context.py [--only ID] [--quick] [--ranks N] [--tokens N] [--heads N] [--kv-heads N]. The last line is
one JSON object; the exit code is 1 when a claim does not hold. On CUDA GPUs bf16 over NCCL; without them float32 over gloo, and
nothing but that the results are the same is claimed.

The peer is torch's `_templated_ring_attention` and its gradient, with the same kernel and the same shards (its load balancer cuts
as ours does), by the faster of its two ways to pass keys on. Of each repeat all take their turn; seconds are medians, of the
slowest rank. `tflops`: of a rank, causal (half of the square), forwards 2 and backwards 5 products.

`long_ring_same`, `long_ulysses_same`: the largest difference of an output from the peer's, over the largest output.
`long_ring_ratio`: the peer's seconds, forwards and backwards, over our ring's; `long_ulysses_ratio`: over Ulysses'.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from parts.gang import ANSWER, answer_of_ranks  # type: ignore[import-not-found]  # beside this file

WIDTH: Final = 64
CUDA_TOKENS, CPU_TOKENS, QUICK_TOKENS = 65_536, 4_096, 512
REPEATS, QUICK_REPEATS = 5, 2
SAME_MOST: Final = {"bfloat16": 2e-2, "float32": 1e-5}
RATIO_LEAST: Final = 1.0

Answer = dict[str, Any]


# The claims


def same(kind: str) -> Callable[[Answer], Answer]:
    def claim(answer: Answer) -> Answer:
        most = SAME_MOST[answer["dtype"]]
        off = answer["off"][kind]
        return {"ours": off, "peer": None, "unit": "of the largest", "target": f"ours <= {most:g}", "holds": off <= most}

    return claim


def ratio(kind: str) -> Callable[[Answer], Answer]:
    def claim(answer: Answer) -> Answer:
        seconds = {name: statistics.median(found) for name, found in answer["seconds"].items()}
        peer = min(found for name, found in seconds.items() if name.startswith("torch"))
        products = 3.5 * 4 * answer["tokens"] ** 2 / 2 * answer["heads"] * WIDTH / answer["ranks"]
        return {
            "ours": round(seconds[kind], 5), "peer": round(peer, 5), "ratio": round(peer / seconds[kind], 3), "unit": "s",
            "forward_s": {name: round(statistics.median(found), 5) for name, found in answer["forward_s"].items()},
            "tflops": round(products / seconds[kind] / 1e12, 3),
            "target": f"ratio >= {RATIO_LEAST}" if answer["device"] == "cuda" else "none on a CPU",
            "holds": peer / seconds[kind] >= RATIO_LEAST,
        }  # fmt: skip

    return claim


CLAIMS: Final[dict[str, Callable[[Answer], Answer]]] = {
    "long_ring_same": same("ring"),
    "long_ulysses_same": same("ulysses"),
    "long_ring_ratio": ratio("ring"),
    "long_ulysses_ratio": ratio("ulysses"),
}


# A gang of ranks: this file again, with torchrun's environment


def gang(options: argparse.Namespace, folder: str) -> Answer:
    """What rank 0 says."""
    words = [sys.executable, __file__, *sys.argv[1:], "--as-rank", folder]
    answer: Answer = answer_of_ranks(words, options.ranks, Path(folder))
    return answer


def rank_main(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from phalanx.job.train.device import gang as joined

    with joined() as rank:
        torch.use_deterministic_algorithms(False)  # else the fastest kernel of a card is not taken, by us nor by anyone
        answer = Trial(options, rank.device, rank.device_name).measured()
        if rank.rank == 0:
            (Path(options.as_rank) / ANSWER).write_text(json.dumps(answer))
        dist.barrier()
    os._exit(0)


class Trial:
    """One row's queries, keys and values, drawn alike on every rank, and whoever attends to them."""

    def __init__(self, options: argparse.Namespace, device: Any, name: str) -> None:
        import torch
        import torch.distributed as dist

        from phalanx.job.train.context.kernels import kernel_for
        from phalanx.job.train.context.shared import context_of_kind

        assert dist.group.WORLD is not None
        self.group, self.device, self.name, self.options = dist.group.WORLD, device, name, options
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.tokens = options.tokens or (QUICK_TOKENS if options.quick else CUDA_TOKENS if device.type == "cuda" else CPU_TOKENS)
        generator = torch.Generator().manual_seed(0)
        heads = (options.heads, options.kv_heads, options.kv_heads, options.heads)
        drawn = [torch.randn(1, num, self.tokens, WIDTH, generator=generator).to(device, self.dtype) for num in heads]
        self.contexts = {"ring": context_of_kind("ring", self.group), "ulysses": context_of_kind("ulysses", self.group)}
        self.parts = {kind: [one.cut(x, dim=2) for x in drawn] for kind, one in self.contexts.items()}
        self.kernel = kernel_for(drawn[0])

    def measured(self) -> Answer:
        import torch
        import torch.distributed as dist

        runs: dict[str, Callable[[], Any]] = {kind: lambda kind=kind: self.ours(kind) for kind in self.contexts}  # type: ignore[misc]
        runs |= {f"torch, {way}": lambda way=way: self.peer(way) for way in ("allgather", "alltoall")}  # type: ignore[misc]
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        forward_s: dict[str, list[float]] = {name: [] for name in runs}
        outs = {name: run()[0] for name, run in runs.items()}  # and warms up
        for _ in range(QUICK_REPEATS if self.options.quick else REPEATS):
            for name, run in runs.items():
                dist.barrier()
                _, forward, both = run()
                slowest = torch.tensor([forward, both], device=self.device)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                forward_s[name].append(float(slowest[0]))
                seconds[name].append(float(slowest[1]))
        return {
            "off": {kind: self.off(kind, outs[kind], outs["torch, allgather"]) for kind in self.contexts},
            "seconds": seconds, "forward_s": forward_s, "tokens": self.tokens, "heads": self.options.heads,
            "kv_heads": self.options.kv_heads, "ranks": self.group.size(), "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type, "device_name": self.name, "kernel": self.kernel.name, "torch": torch.__version__,
        }  # fmt: skip

    def ours(self, kind: str) -> tuple[Any, float, float]:
        import torch

        context, (*drawn, grad) = self.contexts[kind], self.parts[kind]
        q, k, v = (x.detach().requires_grad_() for x in drawn)
        documents = context.documents(self.tokens, None)
        begin = self.now()
        out = context.attend(q, k, v, documents)
        middle = self.now()
        torch.autograd.grad(out, (q, k, v), grad)
        return out.detach(), middle - begin, self.now() - begin

    def peer(self, way: str) -> tuple[Any, float, float]:
        from torch.distributed.tensor.experimental._context_parallel import _attention

        peer: Any = _attention
        peer.set_rotate_method(way)
        q, k, v, grad = self.parts["ring"]
        begin = self.now()
        out, lse, *rest = peer._templated_ring_attention(self.group, 2, self.forward_of, q, k, v, is_causal=True, dropout_p=0.0)
        middle = self.now()
        peer._templated_ring_attention_backward(
            self.group, 2, self.backward_of, grad, "grad", q, k, v, out, lse, is_causal=True, kept=tuple(rest)
        )
        return out, middle - begin, self.now() - begin

    def forward_of(self, query: Any, key: Any, value: Any, is_causal: bool, **_: Any) -> tuple[Any, ...]:
        out, lse, kept = self.kernel.forward(query, key, value, bool(is_causal))
        return out, lse, *kept

    def backward_of(
        self, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool, grad: Any, kept: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        return self.kernel.backward(grad, query, key, value, out, logsumexp, bool(is_causal), kept)

    def off(self, kind: str, out: Any, peer: Any) -> float:
        """Of two outputs that are cut differently; both are gathered whole."""
        ours, theirs = (self.gathered(name, x) for name, x in ((kind, out), ("ring", peer)))
        return float((ours - theirs).abs().max() / theirs.abs().max())

    def gathered(self, kind: Any, out: Any) -> Any:
        import torch
        import torch.distributed as dist

        from phalanx.fabric.context import ContextCut

        ranks = self.group.size()
        shards = [torch.empty_like(out) for _ in range(ranks)]
        dist.all_gather(shards, out.contiguous())
        whole = torch.empty(1, out.shape[1], self.tokens, WIDTH)
        cut = ContextCut(kind, self.tokens, ranks)
        for rank, shard in enumerate(shards):
            whole[:, :, torch.from_numpy(cut.positions(rank))] = shard.float().cpu()
        return whole

    def now(self) -> float:
        from phalanx.job.train.device import synchronise

        synchronise(self.device)
        return time.perf_counter()


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TOKENS} tokens, {QUICK_REPEATS} repeats")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=0, help=f"0: {CUDA_TOKENS} on CUDA, {CPU_TOKENS} without")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        rank_main(options)
    with tempfile.TemporaryDirectory() as folder:
        answer = gang(options, folder)
    around = {name: answer[name] for name in ("device_name", "torch", "kernel", "dtype", "ranks", "tokens", "heads", "kv_heads")}
    around |= {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
    found = [{"id": name, **CLAIMS[name](answer)} for name in ([options.only] if options.only else CLAIMS)]
    claims = [claim for claim in found if "CPU" not in claim["target"]]
    for claim in found:
        judged = ("holds" if claim["holds"] else "DOES NOT HOLD") if claim in claims else "not claimed"
        print(f"{claim['id']:<22}{claim['ours']:>12} {claim['target']}: {judged}")
    played = [claim for claim in found if claim not in claims]
    print(json.dumps({"benchmark": "long_context", "conditions": around, "claims": claims, "played": played}))
    return 0 if all(claim["holds"] for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
