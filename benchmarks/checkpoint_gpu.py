"""What a save of a 7B model's state costs on two GPUs of one host, against PyTorch's own.

Usage: python benchmarks/checkpoint_gpu.py [--only ID] [--quick] [--ranks N] [--layers N] [--accumulate N] [--folder DIR]. The last
line is one JSON object; the exit code is 1 when a claim does not hold. Two CUDA GPUs are needed, and host memory for two copies of
the state; without them the same roles are played by a tiny model on the CPU, and nothing is claimed. With --ranks 1 one GPU holds
as much state as each of the two, half of the layers, and computes as long: twice the microbatches.

A decoder of about 7 billion parameters is trained with FSDP2 (float32 weights and moments, bfloat16 arithmetic): about 43 GB of
state on each GPU. A stall is by how much longer a step lasts, all GPU work included, when a save begins before it: the call, the
copy that does not fit beside forward and backward, and what it takes from them. Both of our snapshots are filled one after the
other while keepers write the first to disk, and the larger stall counts; what is left of the writing is not waited for. The peer is
torch.distributed.checkpoint's `async_save`, its stager kept, memory pinned and shared, with a gloo group of its own; what it would
write is dropped, so that its stall is measured without a disk beside it. Its first save, which takes the memory, is told apart:
torch 2.11's stager lets go of it after each, so that every save is a first one there; here it is kept from doing so.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from parts.gang import ANSWER, answer_of_ranks  # type: ignore[import-not-found]  # beside this file

RANKS = 2
DIM, FFN_DIM, HEADS, LAYERS, VOCAB = 4096, 11008, 32, 34, 32_000
"""7.14 billion parameters: 42.9 GB of float32 weights and two moments on each of two GPUs."""
SEQUENCE = 2048
ACCUMULATE = 4
"""Microbatches of one sample: forward and backward then last longer than a copy at 50 GB/s."""
TINY_DIM, TINY_FFN_DIM, TINY_HEADS, TINY_LAYERS, TINY_VOCAB, TINY_SEQUENCE = 64, 176, 4, 2, 256, 64
PLAIN_STEPS, PLAIN_STEPS_QUICK = 6, 3
SAVES = 2
"""As many as there are snapshots."""
PEER_SAVES = 3
STALL_MS_MAX = 100.0
EXCESS_MARGIN = 1.1
STALL_RATIO_MAX = 0.1
BANDWIDTH_BYTES = 4 * 2**30

Answer = dict[str, Any]


# The claims


def gpu_stall_ms(answer: Answer) -> Answer:
    """At most 100 ms where the copy fits beside forward and backward at the measured bandwidth, else the excess and a tenth."""
    stall_ms = 1e3 * max(0.0, *answer["ours_s"])
    excess_ms = 1e3 * max(0.0, answer["copy_s"] - answer["compute_s"])
    most = STALL_MS_MAX if not excess_ms else EXCESS_MARGIN * excess_ms
    return {
        "id": "gpu_stall_ms", "ours": round(stall_ms, 1), "peer": _peer_ms(answer), "ratio": None, "unit": "ms",
        "in_the_call_ms": round(1e3 * statistics.median(answer["ours_call_s"]), 1), "gb": answer["gb"],
        "all_ms": [round(1e3 * one, 1) for one in answer["ours_s"]], "compute_s": round(answer["compute_s"], 3),
        "step_s": round(answer["step_s"], 3), "pinned_gb_s": round(answer["pinned_gb_s"], 1),
        "copy_s": round(answer["copy_s"], 3), "target": f"ours <= {most:g}", "holds": stall_ms <= most,
    }  # fmt: skip


def gpu_stall_ratio(answer: Answer) -> Answer:
    ours, peer = 1e3 * max(0.0, *answer["ours_s"]), _peer_ms(answer)
    return {
        "id": "gpu_stall_ratio", "ours": round(ours, 1), "peer": peer, "ratio": round(ours / peer, 4), "unit": "ms",
        "peer_first_ms": round(1e3 * answer["peer_first_s"], 1), "gb": answer["gb"],
        "target": f"ratio <= {STALL_RATIO_MAX}", "holds": ours / peer <= STALL_RATIO_MAX,
    }  # fmt: skip


CLAIMS: dict[str, Callable[[Answer], Answer]] = {"gpu_stall_ms": gpu_stall_ms, "gpu_stall_ratio": gpu_stall_ratio}


def _peer_ms(answer: Answer) -> float:
    return round(1e3 * float(statistics.median(answer["peer_s"])), 1)


# A gang of ranks: this file again, with torchrun's environment


def gang(options: argparse.Namespace, folder: str) -> Answer:
    """What rank 0 says after both have trained."""
    words = [sys.executable, __file__, *sys.argv[1:], "--as-rank", folder]
    answer: Answer = answer_of_ranks(words, options.ranks, Path(folder))
    return answer


def rank_main(options: argparse.Namespace) -> None:
    import torch.distributed as dist

    from phalanx.job.train.device import gang as joined

    folder = Path(options.as_rank)
    with joined() as rank:
        answer = measured(folder, options)
        if rank.rank == 0:
            (folder / ANSWER).write_text(json.dumps(answer))
        dist.barrier()
    os._exit(0)  # as the trainer does


class Trainer:
    """A decoder in training, and our saves of it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        import torch

        from phalanx.core.recipe import LlamaRecipe
        from phalanx.job.models.llama import LlamaShape
        from phalanx.job.train.device import prepare_device, this_rank
        from phalanx.job.train.optimizer import make_adamw
        from phalanx.job.train.parallel import make_mesh, sharded_llama

        self.folder = folder
        self.rank = this_rank(prepare_device())
        large = self.rank.device.type == "cuda"
        self.vocab, sequence = (VOCAB, SEQUENCE) if large else (TINY_VOCAB, TINY_SEQUENCE)
        dim, ffn_dim, heads, layers = (
            (DIM, FFN_DIM, HEADS, options.layers) if large else (TINY_DIM, TINY_FFN_DIM, TINY_HEADS, TINY_LAYERS)
        )
        shape = LlamaShape(vocab=self.vocab, dim=dim, layers=layers, heads=heads, ffn_dim=ffn_dim)
        self.recipe = LlamaRecipe(
            dim=dim, layers=layers, heads=heads, ffn_dim=ffn_dim, batch_per_rank=1, accumulate=options.accumulate,
            sequence=sequence, steps=10_000,
        )  # fmt: skip
        started_s = time.perf_counter()
        self.model = sharded_llama(shape, self.recipe, self.rank, make_mesh(self.rank), "bf16" if large else "fp32")
        self.optimizer = make_adamw(self.model, self.recipe)
        self.count = 0
        self.compute_s = 0.0
        self.before_change: Callable[[], object] = lambda: None
        self.optimizer.register_step_pre_hook(lambda *_: self._changes())
        generator = torch.Generator().manual_seed(self.rank.rank)
        batch = torch.randint(self.vocab, (options.accumulate, 1, sequence + 1), generator=generator)
        self.batch = batch.to(self.rank.device)
        self.tell(f"model after {time.perf_counter() - started_s:.1f} s")

    def _changes(self) -> None:
        self.before_change()

    def pipeline(self) -> Any:
        import torch

        from phalanx.job.checkpoint.keeper.place import Place
        from phalanx.job.checkpoint.live import LiveState
        from phalanx.job.checkpoint.manifest import Origin
        from phalanx.job.checkpoint.pipeline import Pipeline
        from phalanx.job.checkpoint.retention import Keep
        from phalanx.job.checkpoint.save import Identity, SavePolicy

        origin = Origin(config="", data="", world_size=self.rank.world_size, layout={"dp": self.rank.world_size})
        policy = SavePolicy(root=self.folder / "checkpoints", every=1, keep=Keep(last=1))
        place = Place(folder=self.folder / "keepers", slot=self.rank.rank)
        identity = Identity(origin=origin, dtype="fp32", device=torch.device(self.rank.device))
        started_s = time.perf_counter()
        made = Pipeline(place, policy, identity, LiveState(self.model, self.optimizer), idle_s=10.0)
        self.tell(f"snapshot memory after {time.perf_counter() - started_s:.1f} s")
        return made

    def step(self, begin: Callable[[], Callable[[], object]] | None = None) -> tuple[float, float]:
        """Seconds of one update of the slowest rank, a save's call included if one begins before it; and of that call."""
        import torch.distributed as dist

        from phalanx.job.train.device import synchronise
        from phalanx.job.train.step import train_step

        self.count += 1
        synchronise(self.rank.device)
        dist.barrier()
        started_s = time.perf_counter()
        self.before_change = begin() if begin is not None else lambda: None
        called_s = time.perf_counter() - started_s
        facts = train_step(self.model, self.optimizer, lambda _: self.batch, self.recipe, self.count, time.perf_counter)
        whole_s = time.perf_counter() - started_s
        self.before_change = lambda: None
        if begin is None:
            self.compute_s = facts.compute_s
        return worst(whole_s), worst(called_s)

    def state(self) -> dict[str, Any]:
        from phalanx.job.checkpoint.state import training_state

        return training_state(self.model, self.optimizer)

    def tell(self, words: str) -> None:
        if self.rank.rank == 0:
            print(f"  {words}", flush=True)


def dropping() -> Any:
    """A storage writer that is handed what was staged, and writes nothing."""
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
    from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
    from torch.futures import Future

    class Dropped(StorageWriter):
        def reset(self, checkpoint_id: Any = None) -> None: ...

        def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

        def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
            return plan

        def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
            return plans

        def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
            done: Future[list[WriteResult]] = Future()
            done.set_result([WriteResult(item.index, 0, None) for item in plan.items])
            return done

        def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None: ...

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return True

    return Dropped()


def dcp_saves(trainer: Trainer) -> tuple[Callable[[], Callable[[], object]], Callable[[], None]]:
    """torch's own, at its best on a GPU: begins one, and waits for what is left of it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import async_save

    on_gpu = trainer.rank.device.type == "cuda"
    group = dist.new_group(backend="gloo")
    stager = DefaultStager(StagingOptions(on_gpu, on_gpu, True, on_gpu))
    setattr(stager._state_dict_stager, "close", lambda: None)  # noqa: B010 (torch 2.11 forgets its memory after each save, and fails)
    answers: list[Any] = []

    def begin() -> Callable[[], object]:
        answers.append(async_save(trainer.state(), storage_writer=dropping(), process_group=group, async_stager=stager))
        staged = getattr(answers[-1], "staging_completion", None)
        return lambda: staged.result() if staged is not None else None

    def settled() -> None:
        getattr(answers[-1], "upload_completion", answers[-1]).result()
        if on_gpu:
            torch.cuda.synchronize()

    return begin, settled


def measured(folder: Path, options: argparse.Namespace) -> Answer:
    """Plain steps, steps with a save of ours, steps with a save of the peer's. Python's collector rests in all of them."""
    from phalanx.job.train.collector import collected_at_steps

    with collected_at_steps():
        return measured_steps(Trainer(folder, options), options)


def measured_steps(trainer: Trainer, options: argparse.Namespace) -> Answer:
    bandwidth = pinned_gb_s(trainer)
    trainer.step()
    plain = [trainer.step()[0] for _ in range(PLAIN_STEPS_QUICK if options.quick else PLAIN_STEPS)]
    step_s, compute_s = statistics.median(plain), worst(trainer.compute_s)
    trainer.tell(f"steps {shown(plain)} s, forward and backward {compute_s:.2f} s")
    ours = our_stalls(trainer, step_s)
    gb = ours["gb"]
    peer = [stall_of_peer - step_s for stall_of_peer in peer_steps(trainer)]
    trainer.tell(f"async_save: {shown(peer)} s, the first takes its memory")
    return {
        "gb": gb, "step_s": step_s, "compute_s": compute_s, "pinned_gb_s": bandwidth, "copy_s": gb / bandwidth,
        "ours_s": ours["stalls"], "ours_call_s": ours["calls"], "peer_first_s": peer[0], "peer_s": peer[1:],
        "card": trainer.rank.device_name,
    }  # fmt: skip


def our_stalls(trainer: Trainer, step_s: float) -> Answer:
    pipeline = trainer.pipeline()
    gb = sum(part.num_bytes for part in pipeline._memory.layout.parts) / 1e9

    def begin() -> Callable[[], object]:
        if not pipeline.save(trainer.count, {}, must=True):
            raise SystemExit("a save was put off")
        return pipeline.before_change  # type: ignore[no-any-return]

    stalls, calls = [], []
    for _ in range(SAVES):
        whole_s, call_s = trainer.step(begin)
        stalls.append(whole_s - step_s)
        calls.append(call_s)
        beside = pipeline._copier._beside
        trainer.tell(
            f"ours: {stalls[-1]:.3f} s, of which the call {call_s:.3f} s; the copy took {worst(beside.copied_s):.3f} s, and was "
            f"sealed after {worst(beside.done_s):.3f} s"
        )
    os.kill(pipeline._memory.keeper_pid, signal.SIGKILL)  # it would go on writing into the peer's turn
    pipeline.leave()
    return {"gb": gb, "stalls": stalls, "calls": calls}


def peer_steps(trainer: Trainer) -> list[float]:
    """Seconds of steps before which its save begins; one more than of ours."""
    begin, settled = dcp_saves(trainer)
    found = []
    for _ in range(PEER_SAVES):
        found.append(trainer.step(begin)[0])
        settled()
    return found


def pinned_gb_s(trainer: Trainer) -> float:
    """What this host moves from a GPU into page-locked memory, while the other GPU does the same; the slower of the two."""
    import torch
    import torch.distributed as dist

    device = trainer.rank.device
    size = BANDWIDTH_BYTES if device.type == "cuda" else 2**20
    source = torch.empty(size, dtype=torch.uint8, device=device)
    to = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    found = []
    for _ in range(4):
        dist.barrier()
        started_s = time.perf_counter()
        to.copy_(source, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(worst(time.perf_counter() - started_s))
    rate = size / statistics.median(found[1:]) / 1e9
    trainer.tell(f"pinned memory takes {rate:.1f} GB/s a GPU")
    return rate


def worst(seconds: float) -> float:
    """Of all ranks: who waits for one of them waits for the slowest."""
    import torch
    import torch.distributed as dist

    taken = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken.item())


def shown(seconds: list[float]) -> str:
    return ", ".join(f"{one:.3f}" for one in seconds)


def conditions(answer: Answer, options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {"python": platform.python_version()}
    for name in ("phalanx", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "from its source"
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "card": answer["card"],
        "versions": versions, "ranks": options.ranks, "layers": options.layers, "accumulate": options.accumulate, "seeds": [0],
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CLAIMS), help="tell one claim; both come of the same run")
    parser.add_argument("--quick", action="store_true", help=f"{PLAIN_STEPS_QUICK} plain steps")
    parser.add_argument("--ranks", type=int, choices=(1, RANKS), default=RANKS, help="GPUs to train on")
    parser.add_argument("--layers", type=int, help=f"of the model, {LAYERS // RANKS} for each rank unless told")
    parser.add_argument("--accumulate", type=int, help=f"microbatches of a step, {ACCUMULATE} for two ranks unless told")
    parser.add_argument("--folder", help="where checkpoints are written; a temporary folder unless told")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.layers = options.layers or LAYERS // RANKS * options.ranks
    options.accumulate = options.accumulate or ACCUMULATE * RANKS // options.ranks
    if options.as_rank:
        rank_main(options)
    with tempfile.TemporaryDirectory(prefix="phalanx-checkpoint-gpu-", dir=options.folder) as folder:
        answer = gang(options, folder)
    real = answer["card"] != "cpu"
    claims = [CLAIMS[name](answer) for name in ([options.only] if options.only else CLAIMS)] if real else []
    if not real:
        print("no such GPUs here: the roles were played by a tiny model, and nothing is claimed")
    print(json.dumps({"benchmark": "checkpoint_gpu", "conditions": conditions(answer, options), "claims": claims}))
    return 0 if all(one["holds"] for one in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
