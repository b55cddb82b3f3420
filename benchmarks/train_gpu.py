"""How fast a decoder trains on two or four GPUs of one host, against torchtitan and against the card's own matrix product.

Usage: python benchmarks/train_gpu.py [--only ID ...] [--seconds N] [--plan] [--quick] [--tiny] [--ranks N] [--search ours|peer]
[--profile] [--ours NAME=VALUE ...] [--peer NAME=VALUE ...] [--folder DIR]. The last line is one JSON object; the exit code is 1
when a claim does not hold. Without CUDA GPUs the same roles are played by a tiny model on the CPU, as with --tiny, and nothing is
claimed.

Ours is the trainer's own step: model, loss, layout, clipping, AdamW, the timer of each rank, the collector of circles; what a run
has beside it (heartbeats, records, snapshots) is not here. The peer is torchtitan from PyPI with its own trainer, compiled. Both
sides train the same model on the same samples of text (sources of Python and torch, two bytes a token) in one call: one gang of
processes for all claims of a side, whose cases follow each other. Of each claim `parts/train_claims.py` names cases, the
likeliest first: the first that runs is measured in any case, the others while --seconds last, and of each side the best counts.
Cases that a card's memory cannot hold are left out, by a formula. Five repeats of a few steps follow some that warm up; the
median counts, and all are told, each case as soon as it is measured: on the screen, and as a line of DIR/train_gpu.jsonl. A case
that fails, hangs or runs out of memory is told with its last words, and those after it are measured by a new gang.

MFU is model FLOPs over the card's dense bf16 peak, recomputation not counted, of the parameters that a token is computed with: 6
x (parameters - embedding) + 12 x layers x width x sequence for a token, as torchtitan counts (full), and half of the second term
where it is said (causal). What one 8192^3 bf16 product reaches on the card is told beside it: nothing here can be faster than
that.

`dense_1b`, `dense_7b`, `fp8_7b`: FSDP over all GPUs. `long_64k`: a sample of 65,536 tokens over two. `moe_ep2`: 16 experts, of
which a token takes two, half of them on each of two GPUs. `tp2`, `pp2`: the 1.1B model over two GPUs, the same batch on both
sides; where these have no FSDP beside them, torchtitan keeps weights and optimiser in bf16, which is less work than ours has.
`fp8_7b_loss`: 200 steps in bf16 and in 8 bits.

--ours and --peer change one option for all cases of a side (`batch=4`, `activation_checkpointing=selective`,
`activation_checkpoint.mode=full`); --search tries a side's cases and claims nothing; --plan tells which calls measure everything.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parts.train_case import Answer, Asked, Case, Entry, tiny  # type: ignore[import-not-found]  # beside this file
from parts.train_claims import CLAIMS, LOSS_STEPS, Claim  # type: ignore[import-not-found]
from parts.train_figures import FITS, START_S, expected_s, graph_of, memory_gib, mfu, tokens_per_s  # type: ignore[import-not-found]
from parts.train_gang import end_with_parent, run_gang  # type: ignore[import-not-found]
from parts.train_text import TEXT_BYTES_MAX, text_in  # type: ignore[import-not-found]

from phalanx.fabric.catalogue import lookup

RANKS = 2
TEXT_BYTES_TINY = 2**20
CALL_S = 560.0
"""A call on a lent machine lasts ten minutes."""
PLAN_S = 26 * 60.0
CHECKPOINT_S = 120.0
"""`checkpoint_gpu.py --quick`, which the plan ends with; guessed."""
END_S = 5.0
QUIET_S = {False: 120.0, True: 600.0}
"""That a gang may say nothing; longer where it plays its part, maybe beside others on two cores."""
LOSS_LAST = 10
"""Steps whose mean is compared at the end."""
RESULTS = "train_gpu.jsonl"


@dataclass(frozen=True)
class Bench:
    """One call. is_tiny: a CPU plays the part, in seconds. until_s: by the machine's clock. card_gib: of one GPU, None where nobody
    knows. found: by side and slot, what was measured."""

    options: argparse.Namespace
    folder: Path
    is_tiny: bool
    until_s: float
    card_gib: float | None
    found: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return self.options.only or list(CLAIMS)

    @property
    def sides(self) -> tuple[str, ...]:
        if self.options.search:
            return (self.options.search,)
        return ("ours",) if self.is_tiny or not any(CLAIMS[name].peer for name in self.names) else ("ours", "peer")

    def measure(self) -> None:
        """Each side's cases, ours first; what the peer's first cases need is kept for them."""
        entries = {side: self.entries(side) for side in self.sides}
        need_s = {side: START_S + sum(entry.expected_s for entry in firsts(entries[side])) for side in self.sides}
        for number, side in enumerate(self.sides):
            kept_s = sum(need_s[later] for later in self.sides[number + 1 :])
            hard_s = self.until_s - END_S - kept_s
            spare_s = max(0.0, hard_s - time.time() - need_s[side])
            soft_s = hard_s - spare_s * (0.5 if kept_s else 0.0)
            self._gang(side, Asked(entries=tuple(entries[side]), soft_s=soft_s, hard_s=hard_s, quiet_s=QUIET_S[self.is_tiny]))

    def entries(self, side: str) -> list[Entry]:
        """Of all claims that were asked for, in their order; cases that cannot fit are told and left out."""
        given, changes = [], self.options.ours if side == "ours" else self.options.peer
        seen: set[Any] = set()
        for slot, case in cases_of(self.names, side):
            made = self._fitted(changed(case, changes))
            needed = memory_gib(made, self.options.ranks, side)
            if self.card_gib is not None and needed > FITS * self.card_gib:
                tell(f"{side}, {slot}, {made.words()}: left out, it would need {needed:.0f} GiB")
                continue
            is_new = graph_of(made) not in seen
            seen.add(graph_of(made))
            given.append(Entry(claim=slot, case=made, expected_s=expected_s(made, self.options.ranks, side, is_new)))
        return firsts(given) if self.is_tiny and not self.options.search else given

    def best(self, side: str, slot: str) -> Answer:
        """Of what was measured for it; why not, where nothing was."""
        found = self.found.get((side, slot), [])
        return max(found, key=rate, default={"failed": self._why_not(side)})

    def _why_not(self, side: str) -> str:
        if side == "peer" and not self.is_tiny and find_spec("torchtitan") is None:
            return "torchtitan is not here: the machine needs what `make gpu-bundle` makes"
        return "" if self.is_tiny else "no case was measured: no time was left, or none fits"

    def _gang(self, side: str, asked: Asked) -> None:
        if not asked.entries or (side == "peer" and find_spec("torchtitan") is None):
            return
        size = TEXT_BYTES_TINY if self.is_tiny else TEXT_BYTES_MAX
        if written := text_in(self.folder, asked.entries[0].case.size.vocab, size):
            tell(written)

        def each(index: int, answer: Answer) -> None:
            entry = asked.entries[index]
            answer["case"] = entry.case
            self.found.setdefault((side, entry.claim), []).append(answer)
            tell(f"{side}, {entry.claim}, {entry.case.size.name}, {entry.case.words()}: {shown(answer)}")
            for line in answer.get("profile", ()):
                tell(f"  {line}")
            with (self.folder / RESULTS).open("a") as file:
                file.write(json.dumps({"claim": entry.claim, "side": side, **line_of(answer)}) + "\n")

        run_gang("ours" if side == "ours" else "titan", asked, self.options.ranks, self.folder, self.folder / "compiled", each)

    def _fitted(self, case: Case) -> Case:
        """As the call wants it: tiny, or quick."""
        if self.is_tiny:
            plays = {**case.options, "compile": False}
            case = replace(
                case, size=tiny(case.size), batch=case.microbatches, options=plays, warm=1, steps=1,
                repeats=2, losses=min(case.losses, 6),
            )  # fmt: skip
        return replace(case, profiled=self.options.profile, **({"repeats": 2} if self.options.quick else {}))


def changed(case: Case, changes: dict[str, Any]) -> Case:
    batch = changes.get("batch", case.batch)
    return replace(case, batch=batch, options={**case.options, **{k: v for k, v in changes.items() if k != "batch"}})


def cases_of(names: Sequence[str], side: str) -> list[tuple[str, Case]]:
    """With the slot that each is measured for: the claim, or a part of one that needs all of its cases."""
    wanted: dict[str, tuple[Case, ...]] = {}
    for name in names:
        claim = CLAIMS[name]
        if side == "peer":
            wanted[name] = claim.peer
            continue
        if claim.over:
            wanted[claim.over] = CLAIMS[claim.over].ours
        if name == LOSS:
            wanted |= {f"{name} {case.options['dtype']}": (case,) for case in claim.ours}
        else:
            wanted[name] = claim.ours
    return [(slot, case) for slot, cases in wanted.items() for case in cases]


def firsts(entries: Sequence[Entry]) -> list[Entry]:
    """The first of each claim."""
    found: dict[str, Entry] = {}
    for entry in entries:
        found.setdefault(entry.claim, entry)
    return list(found.values())


# The claims


LOSS = "fp8_7b_loss"
SAME_SIZE = 0.01
"""By which numbers of parameters may differ."""


def speed(bench: Bench, name: str, claim: Claim) -> Answer:
    """Ours against the peer, against ours of another claim, and against the card's peak: whatever the claim says."""
    ours, peer = bench.best("ours", name), bench.best("peer", name)
    plain = bench.best("ours", claim.over) if claim.over else {}
    to_peer, over_plain = ratio(ours, peer), ratio(ours, plain)
    holds = [
        least is None or (found is not None and found >= least)
        for found, least in (
            (to_peer, claim.ratio_min), (over_plain, claim.over_min), (mfu_of(ours, claim.mfu), claim.mfu_min),
        )
    ]  # fmt: skip
    holds.append(are_alike(ours, peer))
    return {
        "id": name, "ours": round(rate(ours)), "peer": round(rate(peer)), "ratio": to_peer,
        **({f"ratio_to_{claim.over}": over_plain, **facts(plain, claim.over)} if claim.over else {}),
        "unit": "tokens/s a GPU", **facts(ours, "ours"), **facts(peer, "peer"), "target": claim.target, "holds": all(holds),
    }  # fmt: skip


def are_alike(ours: Answer, peer: Answer) -> bool:
    """The speed of a model of another size is no measure. Of a pipeline the peer's ranks count their own stages alone."""
    if "parameters" not in ours or "parameters" not in peer or "pp" in peer["case"].layout:
        return True
    return bool(abs(peer["parameters"] / ours["parameters"] - 1) < SAME_SIZE)


def fp8_loss(bench: Bench, name: str, claim: Claim) -> Answer:
    """The losses of 200 steps in bf16 and in 8 bits, same samples; of few tokens a step, so that both fit into a call."""
    answers = {dtype: bench.best("ours", f"{name} {dtype}") for dtype in ("bf16", "fp8")}
    failed = {f"{dtype}_failed": one["failed"] for dtype, one in answers.items() if "failed" in one}
    if failed:
        return {"id": name, **failed, "target": claim.target, "holds": False}
    plain, ours = (statistics.mean(one["losses"][-LOSS_LAST:]) for one in answers.values())
    off = 100 * abs(ours / plain - 1)
    return {
        "id": name, "ours": round(ours, 5), "bf16": round(plain, 5), "ratio": None, "off_percent": round(off, 4),
        "unit": f"loss, mean of {LOSS_LAST} steps to step {LOSS_STEPS}", "sequence": claim.ours[0].size.sequence,
        **{f"losses_{dtype}": [round(loss, 4) for loss in one["losses"][::10]] for dtype, one in answers.items()},
        "target": claim.target, "holds": off <= 1.0,
    }  # fmt: skip


JUDGES: dict[str, Callable[[Bench, str, Claim], Answer]] = {LOSS: fp8_loss}


# Numbers of an answer


def rate(answer: Answer) -> float:
    """Tokens a second of one GPU; 0 of what failed."""
    found = answer.get("repeats_s")
    return tokens_per_s(answer["case"], statistics.median(found)) if found else 0.0


def ratio(one: Answer, other: Answer) -> float | None:
    return round(rate(one) / rate(other), 4) if rate(other) else None


def mfu_of(answer: Answer, kind: str) -> float:
    model = lookup(answer.get("card") or _CARD[0])
    return mfu(rate(answer), answer["case"].size, kind, (model.peak_bf16_flops or 0.0) if model else 0.0) if rate(answer) else 0.0


def facts(answer: Answer, side: str) -> Answer:
    if "failed" in answer:
        return {f"{side}_failed": answer["failed"]}
    return {
        f"{side}_mfu_full": round(mfu_of(answer, "full"), 4), f"{side}_mfu_causal": round(mfu_of(answer, "causal"), 4),
        f"{side}_all_s": [round(one, 4) for one in answer["repeats_s"]], f"{side}_options": answer["case"].words(),
        f"{side}_gib": answer["gib"] and round(answer["gib"], 1), f"{side}_parameters": answer["parameters"],
        **{f"{side}_{name}": answer[name] for name in ("attention", "phases_s", "profile") if answer.get(name)},
        **({"product_tflops": round(answer["product_flops"] / 1e12, 1)} if "product_flops" in answer else {}),
    }  # fmt: skip


def line_of(answer: Answer) -> Answer:
    """Of one case, as the file of results has it."""
    told = {"options": answer["case"].words(), "tokens_per_s": round(rate(answer)), "took_s": answer.get("took_s")}
    return {**told, **facts(answer, "case")}


_CARD = [""]


def shown(answer: Answer) -> str:
    _CARD[0] = answer.get("card", _CARD[0])
    if "failed" in answer:
        return str(answer["failed"])
    memory = f", {answer['gib']:.1f} GiB" if answer["gib"] else ""
    product = f", a product {answer['product_flops'] / 1e12:.0f} TFLOP/s" if "product_flops" in answer else ""
    shares = f"MFU {mfu_of(answer, 'full'):.1%} full, {mfu_of(answer, 'causal'):.1%} causal"
    return f"{rate(answer):,.0f} tokens/s a GPU, {shares}{memory}{product}, took {answer['took_s']:.0f} s"


def tell(words: str) -> None:
    print(f"  {words}", flush=True)


# The plan of a session


def planned(ranks: int) -> list[tuple[list[str], float, float]]:
    """Claims in their order, packed into calls: of each call the claims, what their first cases need, and the seconds it gets. What
    is left of the session goes to further cases, of the first calls first."""
    calls: list[tuple[list[str], float]] = []
    for name in CLAIMS:
        if calls and needed_s([*calls[-1][0], name], ranks) <= CALL_S:
            calls[-1] = ([*calls[-1][0], name], needed_s([*calls[-1][0], name], ranks))
        else:
            calls.append(([name], needed_s([name], ranks)))
    spare_s = PLAN_S - CHECKPOINT_S - sum(needed for _, needed in calls)
    found = []
    for names, needed in calls:
        more_s = max(0.0, min(spare_s, CALL_S - needed))
        spare_s -= more_s
        found.append((names, needed, needed + more_s))
    return found


def needed_s(names: Sequence[str], ranks: int) -> float:
    """By both sides' first cases, with the start of their gangs."""
    total = 2 * END_S
    for side in ("ours", "peer"):
        cases: dict[str, Case] = {}
        for slot, case in cases_of(names, side):
            cases.setdefault(slot, case)
        total += (START_S if cases else 0.0) + sum(expected_s(case, ranks, side) for case in cases.values())
    return total


def tell_plan(ranks: int) -> None:
    beside = f" --ranks {ranks}" if ranks != RANKS else ""
    total = CHECKPOINT_S
    for names, needed, given_s in planned(ranks):
        only = " ".join(f"--only {name}" for name in names)
        print(f"python3 benchmarks/train_gpu.py {only}{beside} --seconds {given_s:.0f} --folder DIR  # at least {needed:.0f} s")
        total += given_s
    print(f"python3 benchmarks/checkpoint_gpu.py --quick  # about {CHECKPOINT_S:.0f} s")
    print(
        f"# {total / 60:.0f} minutes in all, by estimates; one DIR for all, on one machine: what was compiled is found again there"
    )


# The call


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
        "quick": bench.options.quick, "changed": {"ours": bench.options.ours, "peer": bench.options.peer},
    }  # fmt: skip


def cards_gib() -> list[float]:
    """Memory of each GPU, by the driver's own tool: torch takes seconds to import."""
    words = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return [float(line) / 1024 for line in listed.splitlines()]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return []


def given(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is some."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), action="append", help="one claim; may be said again for more")
    parser.add_argument("--seconds", type=float, default=CALL_S, help="that the call may last")
    parser.add_argument("--plan", action="store_true", help="tell which calls measure everything, and how long each takes")
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU; nothing is claimed")
    parser.add_argument(
        "--search", choices=("ours", "peer"), help="try that side's cases for the claims of --only, and claim nothing"
    )
    parser.add_argument("--profile", action="store_true", help="tell what the device did in two more steps of ours")
    parser.add_argument("--ranks", type=int, default=RANKS, help="GPUs to train on")
    parser.add_argument("--ours", type=given, action="append", default=[], metavar="NAME=VALUE", help="an option of our side")
    parser.add_argument("--peer", type=given, action="append", default=[], metavar="NAME=VALUE", help="an option of torchtitan")
    parser.add_argument("--folder", help="for text, logs, compiled code and results; a temporary folder unless told")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "titan"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ours, options.peer = dict(options.ours), dict(options.peer)
    if options.search and not options.only:
        parser.error(f"--search needs --only with one of {', '.join(CLAIMS)}")
    return options


def measured(options: argparse.Namespace, folder: Path) -> int:
    cards = cards_gib()
    is_tiny = options.tiny or len(cards) < options.ranks
    bench = Bench(options, folder, is_tiny, time.time() + options.seconds, min(cards) if cards and not is_tiny else None)
    if is_tiny and find_spec("torchao") is None:
        options.only = [name for name in bench.names if not name.startswith("fp8")]
    bench.measure()
    played = [{"side": side, "slot": slot, **line_of(one)} for (side, slot), many in bench.found.items() for one in many]
    claims = [] if options.search else [JUDGES.get(name, speed)(bench, name, CLAIMS[name]) for name in bench.names]
    claimed = [] if is_tiny or options.ours or options.peer else claims  # no claim is of options that somebody chose
    if is_tiny:
        print("no such GPUs here: the roles were played by a tiny model, and nothing is claimed")
    more = {} if claimed else {"found": played} if options.search else {"played": claims}
    print(json.dumps({"benchmark": "train_gpu", "conditions": conditions(bench), "claims": claimed, **more}))
    return 0 if all(one["holds"] for one in claimed) else 1


def main() -> int:
    """Run the claims that were asked for."""
    options = parsed()
    if options.as_rank:
        end_with_parent()
        from parts import train_ours, train_titan  # type: ignore[import-not-found]  # beside this file; each brings torch

        (train_ours if options.side == "ours" else train_titan).rank_main(Path(options.as_rank))
    if options.plan:
        tell_plan(options.ranks)
        return 0
    if options.folder:
        folder = Path(options.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return measured(options, folder)
    with tempfile.TemporaryDirectory(prefix="phalanx-train-gpu-") as made:
        return measured(options, Path(made))


if __name__ == "__main__":
    sys.exit(main())
