"""Cases that need a gang: run by `python -m` on two ranks, one after the other; `test_checkpoint.py` reads how each ended.

Every function named `case_*` gets its own folder and this rank; what it asserts, it asserts on every rank.
"""

import hashlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from phalanx.core.checkpoints import FENCE
from phalanx.core.errors import Bug, CheckpointError, StoreUnavailable
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.checkpoint import manifest, shard_file
from phalanx.job.checkpoint import save as saving
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.disk_folder import DiskFolder
from phalanx.job.checkpoint.fence import Holder
from phalanx.job.checkpoint.manifest import MANIFEST, Origin
from phalanx.job.checkpoint.owners import local_parts
from phalanx.job.checkpoint.restore import Found, find, load, load_state
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.save import Identity, SavePolicy, save
from phalanx.job.checkpoint.shard_file import Part, SaveKey, ShardIndex
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.together import decided_by_rank_zero, told_by_all
from phalanx.job.checkpoint.whole import open_checkpoint
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.step import train_step
from phalanx.storage.atomic import write_atomic

RECIPE = LlamaRecipe(dim=16, layers=2, heads=2, ffn_dim=24, sequence=8, batch_per_rank=2, steps=20, warmup_steps=2)
SHAPE = LlamaShape(vocab=97, dim=16, layers=2, heads=2, ffn_dim=24)  # 97: not divisible by the ranks
ORIGIN = Origin(config="c", data="d", world_size=2, layout={"dp": 2})


class Run:
    """A small model in training."""

    def __init__(self, rank: Rank, seed: int = 0, shape: LlamaShape = SHAPE) -> None:
        self.rank = rank
        self.model: Llama = sharded_llama(shape, replace(RECIPE, seed=seed), rank, make_mesh(rank), "fp32")
        self.optimizer = make_adamw(self.model, RECIPE)

    def steps(self, first: int, last: int) -> list[str]:
        """Losses, as hex, of steps first..last."""
        return [
            train_step(self.model, self.optimizer, self._batch, RECIPE, step, lambda: 0.0).loss.hex()
            for step in range(first, last + 1)
        ]

    def _batch(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + self.rank.rank)
        return torch.randint(97, (1, RECIPE.batch_per_rank, RECIPE.sequence + 1), generator=generator)

    def save(self, root: Path, step: int, keep_last: int = 9, attempt: str = "") -> Saved | SaveFailed:
        identity = Identity(origin=ORIGIN, dtype="fp32", device=self.rank.device, attempt=attempt)
        policy = SavePolicy(root=root, every=1, keep=Keep(last=keep_last))
        dist.barrier()  # a rank that goes on saves while the other still looks at what the last save left
        return save(policy, identity, step, training_state(self.model, self.optimizer), {"samples": step})

    def load(self, found: Found) -> Found:
        return load(found, ORIGIN, self.model, self.optimizer, self.rank.device)


def case_t02_resume_is_bitwise_with_a_vocabulary_not_divisible_by_the_ranks(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 3)
    torch.rand(1 + rank.rank)  # ranks stand at different places of their generators
    assert isinstance(run.save(root, 3), Saved)
    drawn, losses = torch.rand(4), run.steps(4, 7)
    again = Run(rank, seed=1)
    found = find(root, ORIGIN)
    assert found is not None and found.manifest.step == 3 and found.skipped == () and found.manifest.dtype == "fp32"
    again.load(found)
    assert torch.equal(torch.rand(4), drawn)
    assert again.steps(4, 7) == losses
    one, two = training_state(run.model, run.optimizer), training_state(again.model, again.optimizer)
    assert one.keys() == two.keys()
    assert all(torch.equal(_local(one[name]), _local(two[name])) for name in one)


def case_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    damages: dict[str, tuple[str, Callable[[Path], None]]] = {
        "flipped shard bit": ("shard-00001-", lambda folder: _flip(_one(folder, "shard-00001"))),
        "flipped bit of the other rank's": ("shard-00000-", lambda folder: _flip(_one(folder, "shard-00000"))),
        "flipped index bit": ("part-00001-", lambda folder: _flip(_one(folder, "part-00001"))),
        "flipped manifest bit": (MANIFEST, lambda folder: _flip(folder / MANIFEST)),
        "cut short": ("shard-00000-", lambda folder: os.truncate(_one(folder, "shard-00000"), 100)),
        "missing": ("shard-00001-", lambda folder: _one(folder, "shard-00001").unlink()),
        "no index": ("part-00000-", lambda folder: _one(folder, "part-00000").unlink()),
    }
    for number, (name, (file, damage)) in enumerate(damages.items()):
        place = root / str(number)
        assert isinstance(run.save(place, 1), Saved)
        assert isinstance(run.save(place, 2), Saved)
        _on_rank_zero(lambda damage=damage, place=place: damage(place / "step-00000002"))  # type: ignore[misc]  # bound by default
        found = find(place, ORIGIN)
        assert found is not None
        found = Run(rank, seed=1).load(found)
        assert found.name == "step-00000001", name
        assert len(found.skipped) == 1 and found.skipped[0].startswith(f"step-00000002/{file}"), (name, found.skipped)
    assert isinstance(run.save(place, 2), Saved)  # the damaged one is replaced
    found = find(place, ORIGIN)
    assert found is not None and found.name == "step-00000002" and not found.skipped
    assert run.load(found).name == "step-00000002"


def case_a_part_that_only_one_rank_reads_makes_all_ranks_go_back(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 2)
    run.save(root, 2)
    third = run.steps(3, 3)
    run.save(root, 3)

    def damage() -> str:
        shard = open_checkpoint(root / "step-00000003").shards[1]
        own = next(entry for entry in shard.parts if entry.name == "model.blocks.0.attention.qkv.weight")
        _flip(root / "step-00000003" / shard.file, own.offset)
        return own.key

    key = decided_by_rank_zero(damage)
    again = Run(rank, seed=1)
    found = find(root, ORIGIN)
    assert found is not None and found.name == "step-00000003"  # its tensors are verified when they are read
    loaded = again.load(found)
    assert loaded.name == "step-00000002" and f"{key} does not match its checksum" in loaded.skipped[0], loaded.skipped
    assert again.steps(3, 3) == third


def case_when_all_are_damaged_nothing_is_started_over_silently(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.save(root, 1)
    _on_rank_zero(lambda: _flip(_one(root / "step-00000001", "shard-00000")))
    found = find(root, ORIGIN)
    assert found is not None
    message = _refused(lambda: run.load(found))
    assert "step-00000001/shard-00000-" in message and "damaged" in message
    _on_rank_zero(lambda: _one(root / "step-00000001", "shard-00000").unlink())
    assert "step-00000001/shard-00000-" in _refused(lambda: find(root, ORIGIN))


def case_without_a_manifest_it_does_not_exist(root: Path, rank: Rank) -> None:
    assert find(root, ORIGIN) is None
    run = Run(rank)
    run.save(root, 1)
    run.save(root, 2)
    _on_rank_zero((root / "step-00000002" / MANIFEST).unlink)
    found = find(root, ORIGIN)
    assert found is not None and found.name == "step-00000001" and not found.skipped


def case_another_run_s_checkpoint_is_refused(root: Path, rank: Rank) -> None:
    Run(rank).save(root, 1)
    for changed, word in (
        (replace(ORIGIN, config="x"), "config"),
        (replace(ORIGIN, data="x"), "data"),
    ):
        message = _refused(lambda changed=changed: find(root, changed))  # type: ignore[misc]  # bound by default
        assert message.startswith(f"{word} of checkpoint step-00000001"), message


def case_a_folder_of_an_older_version_is_refused_and_not_skipped(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.save(root, 1)
    inner = '{"step":2,"files":[],"format":2}'
    sealed = f'{{"sha256":"{hashlib.sha256(inner.encode()).hexdigest()}","manifest":{inner}}}'
    _on_rank_zero(lambda: write_atomic(root / "step-00000002" / MANIFEST, sealed.encode()))
    message = _refused(lambda: find(root, ORIGIN))
    assert "step-00000002" in message and "has format 2, this version reads 3" in message, message


def case_names_shapes_and_dtypes_are_strict(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.save(root, 1)
    checkpoint = open_checkpoint(root / "step-00000001")
    state = training_state(run.model, run.optimizer)
    load_state(checkpoint, state)
    name = "model.norm.weight"
    assert name in _refused(lambda: load_state(checkpoint, {**state, name: state[name].to(torch.bfloat16)}))
    assert "more" in _refused(lambda: load_state(checkpoint, {**state, "more": state[name]}))
    assert name in _refused(lambda: load_state(checkpoint, {key: value for key, value in state.items() if key != name}))
    found = find(root, ORIGIN)
    assert found is not None
    wider = Run(rank, shape=replace(SHAPE, vocab=98))
    assert "embedding" in _refused(lambda: wider.load(found))


def case_t10_what_could_not_be_loaded_is_never_committed(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    run.save(root, 1, keep_last=1)
    name = "optimizer.state.norm.weight.exp_avg"
    assert name in training_state(run.model, run.optimizer)

    def without_a_moment(state: dict[str, torch.Tensor], mesh: DeviceMesh | None) -> list[tuple[Part, torch.Tensor]]:
        return local_parts({key: value for key, value in state.items() if key != name}, mesh)

    with patch.object(saving, "local_parts", without_a_moment):  # a writer that forgets
        failed = run.save(root, 2, keep_last=1)
    assert isinstance(failed, SaveFailed) and name in failed.reason, failed
    assert [folder.name for _, folder in manifest.step_folders(root)] == ["step-00000001"]


def case_t11_replicas_that_parted_ways_are_not_committed(root: Path, rank: Rank) -> None:
    def and_the_other_s(state: dict[str, torch.Tensor], mesh: DeviceMesh | None) -> list[tuple[Part, torch.Tensor]]:
        mine = local_parts(state, mesh)
        steps = {name: state[name] for name in state if name.endswith(".step")} if rank.rank else {}
        more = [(Part(name=name, dtype="F32", shape=(), start=(), size=()), value + 1) for name, value in steps.items()]
        return [one for one in mine if one[0].name not in steps] + more

    run = Run(rank)
    run.steps(1, 1)
    with patch.object(saving, "local_parts", and_the_other_s):
        failed = run.save(root, 1)
    assert isinstance(failed, SaveFailed) and "two replicas have parted ways" in failed.reason, failed


def case_what_all_ranks_have_is_written_once(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    assert isinstance(run.save(root, 1), Saved)
    written = [(entry.name, entry.start) for shard in open_checkpoint(root / "step-00000001").shards for entry in shard.parts]
    assert len(written) == len(set(written))
    steps = [
        shard.rank for shard in open_checkpoint(root / "step-00000001").shards for entry in shard.parts if ".step" in entry.name
    ]
    assert {0, 1} == set(steps)  # both write some of them


def case_a_newer_attempt_fences_an_older_one(root: Path, rank: Rank) -> None:
    run = Run(rank)
    assert isinstance(run.save(root, 1, attempt="lm-7.9"), Saved)
    assert isinstance(run.save(root, 2, attempt="lm-7.10"), Saved)
    assert isinstance(run.save(root, 3, attempt="lm-8.1"), Saved)  # of another job: no order between the two
    before = (root / "step-00000002" / MANIFEST).read_bytes()
    for step in (2, 4):  # in its place, and beside it
        assert "a newer attempt" in _refused(lambda step=step: run.save(root, step, attempt="lm-7.9"))  # type: ignore[misc]  # bound
    assert (root / "step-00000002" / MANIFEST).read_bytes() == before
    assert not (root / "step-00000004" / MANIFEST).exists()
    found = find(root, ORIGIN)
    assert found is not None and found.manifest.attempt == "lm-8.1"


def case_an_attempt_that_only_started_fences_the_one_before(root: Path, rank: Rank) -> None:
    run = Run(rank)
    assert isinstance(run.save(root, 1, attempt="lm-7.1"), Saved)
    _on_rank_zero(lambda: manifest.check_fence(root, Holder(attempt="lm-7.2")))  # as a trainer does when it starts
    assert "lm-7.1 may write no more" in _refused(lambda: run.save(root, 2, attempt="lm-7.1"))
    _on_rank_zero(lambda: (root / FENCE).write_text("{"))  # what cannot be read fences nobody, and is written anew
    assert isinstance(run.save(root, 2, attempt="lm-7.2"), Saved)
    assert '"lm-7.2"' in (root / FENCE).read_text()


def case_whatever_rank_zero_meets_reaches_everyone(root: Path, rank: Rank) -> None:
    def fail(error: Exception) -> str:
        raise error

    for error, told in ((CheckpointError("a", 1, "b"), CheckpointError), (StoreUnavailable("full"), StoreUnavailable)):
        assert str(_raised(lambda error=error: decided_by_rank_zero(lambda: fail(error)), told)) == str(error)  # type: ignore[misc]  # bound
    seen = _raised(lambda: decided_by_rank_zero(lambda: fail(RuntimeError("odd"))), RuntimeError if rank.rank == 0 else Bug)
    assert "odd" in str(seen)


def case_retention_keeps_the_newest_and_clears_what_was_never_committed(root: Path, rank: Rank) -> None:
    run = Run(rank)
    _on_rank_zero(lambda: (root / "step-00000001").mkdir(parents=True))
    for step in (2, 3, 4):
        run.save(root, step, keep_last=2)
    assert [folder.name for _, folder in manifest.step_folders(root)] == ["step-00000004", "step-00000003"]


def case_nothing_is_removed_before_the_newer_was_read_back(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.save(root, 1, keep_last=1)
    written = shard_file.write

    def bad_disk(folder: DiskFolder, parts: Any, *, key: SaveKey, rank: int) -> ShardIndex:
        index = written(folder, parts, key=key, rank=rank)
        if rank == 1:
            _flip(folder.path / index.file)
        return index

    with patch.object(shard_file, "write", bad_disk):
        failed = run.save(root, 2, keep_last=1)
    assert isinstance(failed, SaveFailed) and "read back it was damaged" in failed.reason and "shard-00001" in failed.reason, failed
    assert [folder.name for _, folder in manifest.step_folders(root)] == ["step-00000001"]
    assert isinstance(run.save(root, 3, keep_last=1), Saved)
    assert [folder.name for _, folder in manifest.step_folders(root)] == ["step-00000003"]


def case_a_full_disk_costs_the_save_and_nothing_else(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.save(root, 1, keep_last=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    failed = run.save(root, 2, keep_last=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(failed, SaveFailed) and failed.step == 2, failed
    assert failed.reason and "\n" not in failed.reason
    assert not (root / "step-00000002").exists()
    found = find(root, ORIGIN)
    assert found is not None and found.name == "step-00000001"
    assert isinstance(run.save(root, 3, keep_last=1), Saved)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _one(folder: Path, begin: str) -> Path:
    return next(folder.glob(f"{begin}-*"))


def _flip(path: Path, at: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)


def _on_rank_zero(act: Callable[[], object]) -> None:
    dist.barrier()
    decided_by_rank_zero(lambda: (act(), None)[1])


def _refused(act: Callable[[], object]) -> str:
    return str(_raised(act, CheckpointError))


def _raised(act: Callable[[], object], kind: type[Exception]) -> Exception:
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"raised no {kind.__name__}")


def main(folder: Path) -> None:
    cases = {name: value for name, value in globals().items() if name.startswith("case_")}
    ended: dict[str, str] = {}
    with gang() as rank:
        for name, case in cases.items():
            try:
                case(folder / name, rank)
                mine = ""
            except Exception:  # noqa: BLE001 (told to the test, which fails with it)
                mine = f"rank {rank.rank}: {traceback.format_exc()}"
                sys.stderr.write(mine)  # also here: the other rank may wait where this one no longer goes
            ended[name] = "\n".join(told_by_all(mine)).strip()
        if dist.get_rank() == 0:
            (folder / "ended.json").write_text(json.dumps(ended))
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]))
