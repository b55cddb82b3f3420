"""How fast a decoder trains on two GPUs of one host, against torchtitan and against the card's own matrix product.

Usage: python benchmarks/train_gpu.py [--only ID] [--quick] [--tiny] [--ranks N] [--search ours|peer] [--profile]
[--ours NAME=VALUE ...] [--peer NAME=VALUE ...] [--folder DIR]. The last line is one JSON object; the exit code is 1 when a claim
does not hold. Without CUDA GPUs the same roles are played by a tiny model on the CPU, as with --tiny, and nothing is claimed.

Ours is the trainer's own step: model, loss, FSDP2, clipping, AdamW, the timer of each rank, the collector of circles; what a run
has beside it (heartbeats, records, snapshots) is not here. The peer is torchtitan from PyPI with its own trainer, compiled, at the
best of its own options that a search found. Both sides train the same model on the same samples of text (sources of Python and
torch, two bytes a token) in one call, each in its own gang of processes. Five repeats of ten steps follow eight that warm up; the
median counts, and all are told.

MFU is model FLOPs over the card's dense bf16 peak, recomputation not counted: 6 x (parameters - embedding) + 12 x layers x width x
sequence for a token, as torchtitan counts (full), and half of the second term where it is said (causal). What one 8192^3 bf16
product reaches on the card is told beside it: nothing here can be faster than that.

--ours and --peer change one option for all cases of a side (`batch=4`, `activation_checkpointing=selective`,
`activation_checkpoint.mode=full`); --search tries a side's options for one claim in turn and claims nothing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parts.train_case import (  # type: ignore[import-not-found]  # beside this file
    SIZES,
    TEXT_BYTES_MAX,
    Answer,
    Case,
    Size,
    run_gang,
    tiny,
    write_text,
)

from phalanx.fabric.catalogue import lookup

RANKS = 2
TEXT_BYTES_TINY = 2**20
GANG_S_MAX = 580.0
"""A gang that takes longer is ended: a call on a lent machine lasts ten minutes."""
FAST: dict[str, Any] = {"deterministic": False, "recompute_every": 0}
"""Of ours. torchtitan's defaults make no two runs alike either; and cuDNN's attention is not to be had otherwise."""
FOURTH: dict[str, Any] = {"activation_checkpointing": "selective", "activation_budget": 0.35, "activation_blocks": 4}
LOSS_STEPS = 200
LOSS_LAST = 10
"""Steps whose mean is compared at the end."""

OURS: dict[str, Case] = {
    "dense_1b": Case(size=SIZES["dense_1b"], batch=8, options={**FAST, "reshard_after_forward": False}),
    "dense_7b": Case(size=SIZES["dense_7b"], batch=2, options={**FAST, **FOURTH}, warm=5, steps=5),
    "fp8_7b": Case(size=SIZES["fp8_7b"], batch=2, options={**FAST, **FOURTH, "dtype": "fp8"}, warm=5, steps=5),
}
PEER: dict[str, Case] = {
    "dense_1b": Case(size=SIZES["dense_1b"], batch=2),
    "dense_7b": Case(size=SIZES["dense_7b"], batch=1, options={"activation_checkpoint.mode": "full"}, warm=5, steps=5),
    "fp8_7b": Case(
        size=SIZES["fp8_7b"], batch=1,
        options={
            "activation_checkpoint.mode": "full", "model.converters": ["quantize.linear.float8"],
            "quantize.linear.float8.filter_fqns": ["output"], "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
            "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": True,
        }, warm=5, steps=5,
    ),
}  # fmt: skip
_KEPT = {"reshard_after_forward": False}
_SECOND_BLOCK, _THIRD_BLOCK = {**FOURTH, "activation_blocks": 2}, {**FOURTH, "activation_blocks": 3}
OURS_SEARCH: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "dense_1b": [
        (8, _KEPT), (4, _KEPT), (8, {}), (8, {**_KEPT, "prefetch_blocks": 1}), (8, {**_KEPT, "reduce_dtype": "bf16"}),
        (4, {**_KEPT, "fused_loss": False}), (8, {**_KEPT, "deterministic": True}), (12, _KEPT),
    ],
    "dense_7b": [
        (2, FOURTH), (1, {}), (2, {**FOURTH, "prefetch_blocks": 1}), (2, {**FOURTH, "reduce_dtype": "bf16"}),
        (3, _SECOND_BLOCK), (2, {**FOURTH, "activation_checkpointing": "full"}), (1, _KEPT), (2, {}),
    ],
    "fp8_7b": [
        (2, {**FOURTH, "dtype": "fp8"}), (1, {"dtype": "fp8"}), (2, {**FOURTH, "dtype": "fp8_rowwise"}),
        (2, {**_THIRD_BLOCK, "dtype": "fp8"}), (3, {**_SECOND_BLOCK, "dtype": "fp8"}), (2, {"dtype": "fp8"}),
    ],
}  # fmt: skip
_NEVER = {"parallelism.fsdp_reshard_after_forward": "never"}
_OPS = {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"}
_SECOND = {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "2"}
PEER_SEARCH: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "dense_1b": [(2, {}), (2, _NEVER), (4, {}), (4, _NEVER), (4, _OPS), (8, _OPS)],
    "dense_7b": [(1, {"activation_checkpoint.mode": "full"}), (1, {}), (1, _OPS), (2, _OPS), (2, _SECOND)],
    "fp8_7b": [
        (number, {**PEER["fp8_7b"].options, **more})
        for number, more in ((1, {}), (1, {"activation_checkpoint.mode": "none"}), (2, _OPS), (2, _SECOND))
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """One call. is_tiny: a CPU plays the part, in seconds."""

    options: argparse.Namespace
    folder: Path
    is_tiny: bool

    def ours(self, *cases: Case) -> list[Answer]:
        return self._gang("ours", cases, self.options.ours)

    def peer(self, case: Case) -> Answer:
        if self.is_tiny or find_spec("torchtitan") is None:
            return {"failed": "torchtitan is not here: the machine needs what `make gpu-bundle` makes" * (not self.is_tiny)}
        return self._gang("titan", [case], self.options.peer)[0]

    def _gang(self, side: str, cases: Sequence[Case], changes: dict[str, Any]) -> list[Answer]:
        made = [self._fitted(changed(case, changes)) for case in cases]
        vocab = made[0].size.vocab
        if not (self.folder / "vocab").is_file() or (self.folder / "vocab").read_text() != str(vocab):
            tell(f"text of {write_text(self.folder, vocab, TEXT_BYTES_TINY if self.is_tiny else TEXT_BYTES_MAX):,} tokens")
            (self.folder / "vocab").write_text(str(vocab))
        answers = run_gang(side, made, self.options.ranks, self.folder, GANG_S_MAX, quiet=bool(self.options.search))
        for case, answer in zip(made, answers, strict=True):
            tell(f"{side}, {case.size.name}, {case.words()}: {shown(answer, case)}")
            for line in answer.get("profile", ()):
                tell(f"  {line}")
        return [{**answer, "case": case} for case, answer in zip(made, answers, strict=True)]

    def _fitted(self, case: Case) -> Case:
        """As the call wants it: tiny, or quick."""
        if self.is_tiny:
            plays = {**case.options, "compile": False}
            case = replace(
                case, size=tiny(case.size), batch=1, options=plays, warm=1, steps=1, repeats=2, losses=min(case.losses, 6)
            )
        return replace(case, profiled=self.options.profile, **({"repeats": 2} if self.options.quick else {}))


def changed(case: Case, changes: dict[str, Any]) -> Case:
    batch = changes.get("batch", case.batch)
    return replace(case, batch=batch, options={**case.options, **{k: v for k, v in changes.items() if k != "batch"}})


# The claims: each a list of what it says, from its own gangs. What other axes claim (experts, long sequences, tensor and pipeline
# parallel) gets its cases in OURS and PEER and its function in CLAIMS.


def dense(bench: Bench, name: str, ratio_min: float, mfu_min: float) -> list[Answer]:
    (ours,) = bench.ours(OURS[name])
    peer = bench.peer(PEER[name])
    ratio = rate(ours) / rate(peer) if rate(peer) else None
    return [{
        "id": name, "ours": round(rate(ours)), "peer": round(rate(peer)), "ratio": ratio and round(ratio, 4),
        "unit": "tokens/s a GPU", **facts(ours, "ours"), **facts(peer, "peer"),
        "target": f"ratio >= {ratio_min}, MFU (full) >= {mfu_min}",
        "holds": ratio is not None and ratio >= ratio_min and mfu(ours, "full") >= mfu_min,
    }]  # fmt: skip


def fp8(bench: Bench) -> list[Answer]:
    """Speed alone: of ours in bf16, ours in 8 bits, and the peer's in 8 bits."""
    if bench.is_tiny and find_spec("torchao") is None:
        return []
    plain, ours = bench.ours(OURS["dense_7b"], OURS["fp8_7b"])
    peer = bench.peer(PEER["fp8_7b"])
    over_plain = rate(ours) / rate(plain) if rate(plain) else None
    over_peer = rate(ours) / rate(peer) if rate(peer) else None
    return [{
        "id": "fp8_7b", "ours": round(rate(ours)), "bf16": round(rate(plain)), "peer": round(rate(peer)),
        "ratio": over_plain and round(over_plain, 4), "ratio_to_peer": over_peer and round(over_peer, 4),
        "unit": "tokens/s a GPU", **facts(ours, "ours"), **facts(plain, "bf16"), **facts(peer, "peer"),
        "target": "ratio to our bf16 >= 1.3, ratio to peer >= 1",
        "holds": over_plain is not None and over_plain >= 1.3 and over_peer is not None and over_peer >= 1.0,
    }]  # fmt: skip


def fp8_loss(bench: Bench) -> list[Answer]:
    """The losses of 200 steps in bf16 and in 8 bits, same samples; of few samples a step, so that both fit into a call."""
    if bench.is_tiny and find_spec("torchao") is None:
        return []
    short = [replace(OURS[name], batch=1, losses=LOSS_STEPS) for name in ("dense_7b", "fp8_7b")]
    answers = bench.ours(*short)
    failed = {f"{side}_failed": one["failed"] for side, one in zip(("bf16", "ours"), answers, strict=True) if "failed" in one}
    if failed:
        return [{"id": "fp8_7b_loss", **failed, "target": "off by <= 1 %", "holds": False}]
    plain, ours = (statistics.mean(one["losses"][-LOSS_LAST:]) for one in answers)
    off = 100 * abs(ours / plain - 1)
    return [{
        "id": "fp8_7b_loss", "ours": round(ours, 5), "bf16": round(plain, 5), "ratio": None, "off_percent": round(off, 4),
        "unit": f"loss, mean of {LOSS_LAST} steps to step {LOSS_STEPS}", "losses_bf16": thinned(answers[0]),
        "losses_fp8": thinned(answers[1]), "target": "off by <= 1 %", "holds": off <= 1.0,
    }]  # fmt: skip


CLAIMS: dict[str, Callable[[Bench], list[Answer]]] = {
    "dense_1b": lambda bench: dense(bench, "dense_1b", 1.10, 0.62),
    "dense_7b": lambda bench: dense(bench, "dense_7b", 1.05, 0.58),
    "fp8_7b": fp8,
    "fp8_7b_loss": fp8_loss,
}


def search(bench: Bench, name: str, side: str) -> list[Answer]:
    """All of a side's candidates, shortly; those that do not fit are told."""
    if side == "ours":
        base = replace(OURS[name], options=dict(FAST), repeats=2, steps=4, warm=4)
        answers = bench.ours(*(candidate(base, *one) for one in OURS_SEARCH[name]))
    else:
        base = replace(PEER[name], options={}, repeats=2, steps=4, warm=4)
        answers = [bench.peer(candidate(base, *one)) for one in PEER_SEARCH[name]]
    best = max(answers, key=rate)
    tell(f"best: {best['case'].words()}" if "case" in best else "none ran")
    return [
        {"id": name, "side": side, "options": one["case"].words() if "case" in one else "", "tokens_per_s": round(rate(one)),
         **facts(one, side)}
        for one in answers
    ]  # fmt: skip


def candidate(base: Case, batch: int, options: dict[str, Any]) -> Case:
    options = {**base.options, **options}
    return replace(base, batch=batch, options={**options, "recompute_every": 0} if "deterministic" in options else options)


# Numbers of an answer


def rate(answer: Answer) -> float:
    """Tokens a second of one GPU; 0 of what failed."""
    found = answer.get("repeats_s")
    return answer["case"].batch * answer["case"].size.sequence / statistics.median(found) if found else 0.0


def flops_per_token(size: Size, parameters: int, kind: str) -> int:
    attention = (12 if kind == "full" else 6) * size.layers * size.dim * size.sequence
    return int(6 * (parameters - size.vocab * size.dim) + attention)


def mfu(answer: Answer, kind: str) -> float:
    model = lookup(answer.get("card", ""))
    peak = (model.peak_bf16_flops or 0.0) if model else 0.0
    if not peak or "parameters" not in answer:
        return 0.0
    return rate(answer) * flops_per_token(answer["case"].size, answer["parameters"], kind) / peak


def facts(answer: Answer, side: str) -> Answer:
    if "failed" in answer:
        return {f"{side}_failed": answer["failed"]}
    card = answer if "card" in answer else {**answer, "card": _CARD[0]}
    return {
        f"{side}_mfu_full": round(mfu(card, "full"), 4), f"{side}_mfu_causal": round(mfu(card, "causal"), 4),
        f"{side}_all_s": [round(one, 4) for one in answer["repeats_s"]], f"{side}_options": answer["case"].words(),
        f"{side}_gib": answer["gib"] and round(answer["gib"], 1), f"{side}_parameters": answer["parameters"],
        **{f"{side}_{name}": answer[name] for name in ("attention", "phases_s", "profile") if answer.get(name)},
        **({"product_tflops": round(answer["product_flops"] / 1e12, 1)} if "product_flops" in answer else {}),
    }  # fmt: skip


_CARD = [""]


def thinned(answer: Answer) -> list[float]:
    return [round(one, 4) for one in answer.get("losses", [])[::10]]


def shown(answer: Answer, case: Case) -> str:
    if "card" in answer:
        _CARD[0] = answer["card"]
    if "failed" in answer:
        return str(answer["failed"])
    found = {**answer, "case": case, "card": answer.get("card", _CARD[0])}
    memory = f", {answer['gib']:.1f} GiB" if answer["gib"] else ""
    product = f", a product {answer['product_flops'] / 1e12:.0f} TFLOP/s" if "product_flops" in answer else ""
    return (
        f"{rate(found):,.0f} tokens/s a GPU, MFU {mfu(found, 'full'):.1%} full, {mfu(found, 'causal'):.1%} causal{memory}{product}"
    )


def tell(words: str) -> None:
    print(f"  {words}", flush=True)


def conditions(bench: Bench) -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {"python": platform.python_version()}
    for name in ("phalanx", "torch", "torchtitan", "torchao"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "from its source" if find_spec(name) else "none"
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "card": _CARD[0],
        "versions": versions, "ranks": bench.options.ranks, "seeds": [0], "tiny": bench.is_tiny,
    }  # fmt: skip


def has_gpus(number: int) -> bool:
    """By the driver's own tool: torch takes seconds to import."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return len(listed.splitlines()) >= number


def given(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is some."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="one claim")
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU; nothing is claimed")
    parser.add_argument(
        "--search", choices=("ours", "peer"), help="try that side's options for the claim of --only, and claim nothing"
    )
    parser.add_argument("--profile", action="store_true", help="tell what the device did in two more steps of ours")
    parser.add_argument("--ranks", type=int, default=RANKS, help="GPUs to train on")
    parser.add_argument("--ours", type=given, action="append", default=[], metavar="NAME=VALUE", help="an option of our side")
    parser.add_argument("--peer", type=given, action="append", default=[], metavar="NAME=VALUE", help="an option of torchtitan")
    parser.add_argument("--folder", help="for text and logs; a temporary folder unless told")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "titan"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ours, options.peer = dict(options.ours), dict(options.peer)
    if options.as_rank:
        from parts import train_ours, train_titan  # type: ignore[import-not-found]  # beside this file; each brings torch

        (train_ours if options.side == "ours" else train_titan).rank_main(Path(options.as_rank))
    if options.search and options.only not in OURS:
        parser.error(f"--search needs --only with one of {', '.join(OURS)}")
    with tempfile.TemporaryDirectory(prefix="phalanx-train-gpu-", dir=options.folder) as folder:
        bench = Bench(options, Path(folder), is_tiny=options.tiny or not has_gpus(options.ranks))
        if options.search:
            claims = search(bench, options.only, options.search)
        else:
            claims = [one for name in ([options.only] if options.only else CLAIMS) for one in CLAIMS[name](bench)]
    claimed = [] if bench.is_tiny or options.search else claims
    if bench.is_tiny:
        print("no such GPUs here: the roles were played by a tiny model, and nothing is claimed")
    more = {"found" if options.search else "played": claims} if not claimed else {}
    print(json.dumps({"benchmark": "train_gpu", "conditions": conditions(bench), "claims": claimed, **more}))
    return 0 if all(one["holds"] for one in claimed) else 1


if __name__ == "__main__":
    sys.exit(main())
