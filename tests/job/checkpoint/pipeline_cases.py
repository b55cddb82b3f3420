"""Saves in the background that need a gang: run by `python -m` on two ranks; `test_pipeline.py` reads how each case ended."""

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from phalanx.core.errors import CheckpointError, SetupError
from phalanx.job.checkpoint import beside, manifest
from phalanx.job.checkpoint.commit import Saved, SaveFailed
from phalanx.job.checkpoint.fence import Holder, hold
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.live import LiveState
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.pipeline import Pipeline
from phalanx.job.checkpoint.restore import find
from phalanx.job.checkpoint.retention import Keep
from phalanx.job.checkpoint.save import Identity, SavePolicy
from phalanx.job.checkpoint.sealed import Sealed
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.checkpoint.together import decided_by_rank_zero, told_by_all
from phalanx.job.checkpoint.whole import verify
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.snapshots import Snapshots
from tests.job.checkpoint.checkpoint_cases import ORIGIN, Run, _local
from tests.job.checkpoint.keeper_places import ends

ATTEMPT = "lm-1.1"


@contextmanager
def pipeline_of(run: Run, root: Path, hooked: bool = True) -> Iterator[Pipeline]:
    """As the recipe has it. hooked: the optimizer waits for copies."""
    identity = Identity(origin=ORIGIN, dtype="fp32", device=run.rank.device, attempt=ATTEMPT)
    place = Place(folder=root / "keepers", slot=run.rank.rank, attempt=ATTEMPT)
    policy = SavePolicy(root=root / "checkpoints", every=1, keep=Keep(last=9))
    made = Pipeline(place, policy, identity, LiveState(run.model, run.optimizer), idle_s=10.0)
    if hooked:
        hook = run.optimizer.register_step_pre_hook(lambda *_: made.before_change())
    try:
        yield made
    finally:
        if hooked:
            hook.remove()
        made.close()
        assert "memfd:phalanx-snapshot" not in Path("/proc/self/maps").read_text()  # the next generation needs it


@contextmanager
def with_snapshots(run: Run, root: Path) -> Iterator[tuple[Pipeline, Snapshots]]:
    """As the recipe has it in a gang that recovers inside."""
    identity = Identity(origin=ORIGIN, dtype="fp32", device=run.rank.device, attempt=ATTEMPT)
    place = Place(folder=root / "keepers", slot=run.rank.rank, attempt=ATTEMPT)
    policy = SavePolicy(root=root / "checkpoints", every=1, keep=Keep(last=9))
    snapshots = Snapshots(place, idle_s=10.0)
    live = snapshots.live(run.model, run.optimizer)
    made = Pipeline(place, policy, identity, live, every_step=snapshots)
    try:
        yield made, snapshots
    finally:
        made.close()
        snapshots.close()


def saved_state(root: Path, step: int, rank: Rank) -> dict[str, torch.Tensor]:
    found = find(root / "checkpoints", ORIGIN)
    assert found is not None and found.manifest.step == step, found
    again = Run(rank, seed=1)
    again.load(found)
    return copied(again)


def copied(run: Run) -> dict[str, torch.Tensor]:
    return {name: _local(tensor).clone() for name, tensor in training_state(run.model, run.optimizer).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def slowly(copies: beside.Copies, then: Callable[[], None]) -> None:
    """A copy that lasts longer than a step of this model."""
    for to, source in copies:
        to.copy_(source)
        time.sleep(0.01)
    then()


def case_what_is_saved_is_the_state_after_its_step_though_training_goes_on(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 3)
    with patch.object(beside, "_copy_and", slowly), pipeline_of(run, root) as pipeline:
        then, drawn = copied(run), torch.get_rng_state()
        assert pipeline.save(3, {"samples": 3})
        torch.rand(3)
        run.steps(4, 6)
        assert pipeline.take_stalled_s() > 0.1
        last = pipeline.finish()
        assert isinstance(last, Saved) and last.step == 3
    assert not same(then, copied(run))
    assert same(saved_state(root, 3, rank), then)
    assert torch.equal(torch.get_rng_state(), drawn)


def case_without_the_wait_of_the_optimizer_it_would_be_torn(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 3)
    with patch.object(beside, "_copy_and", slowly), pipeline_of(run, root, hooked=False) as pipeline:
        then = copied(run)
        assert pipeline.save(3, {"samples": 3})
        run.steps(4, 6)
        assert isinstance(pipeline.finish(), Saved)
    assert not same(saved_state(root, 3, rank), then)


def case_t06_a_store_that_does_not_take_anything_blocks_no_step(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    with pipeline_of(run, root) as pipeline:
        if rank.rank == 1:  # one of them is enough
            _limit(pipeline, 4096)
        began, waits = [], []
        for step in range(2, 9):
            run.steps(step, step)
            started = time.monotonic()
            began.append(pipeline.save(step, {"samples": step}))
            waits.append(time.monotonic() - started)
        assert began[:2] == [True, True] and max(waits) < 1.9, (began, waits)  # a bounded wait for room, at most
        assert told_by_all(began) == [began, began]
        instead = [one.step for one in pipeline.news() if isinstance(one, SaveFailed) and "is saved instead" in one.reason]
        assert rank.rank != 1 or instead[0] == 2, instead  # the newest wins
        if rank.rank == 1:
            _limit(pipeline, resource.RLIM_INFINITY)
        assert pipeline.is_due(9, 100)
        assert pipeline.save(9, {"samples": 9}, must=True)
        then = copied(run)
        last = pipeline.finish()
        assert isinstance(last, Saved) and last.step == 9, last
    assert {9} <= {step for step, _ in manifest.committed(root / "checkpoints")} <= {7, 8, 9}
    assert same(saved_state(root, 9, rank), then)


def case_snapshots_of_every_step_go_on_while_the_save_of_one_of_them_is_stuck(root: Path, rank: Rank) -> None:
    run, states = Run(rank), {}
    with with_snapshots(run, root) as (pipeline, snapshots):
        if rank.rank == 1:
            _limit(pipeline, 4096)
        began, took = [], []
        for step in range(1, 9):
            run.steps(step, step)  # the optimizer's hook waits for every rank's snapshot of the step before
            assert snapshots.sealed()[:1] == ((step - 1,) if step > 1 else ())
            states[step] = copied(run)
            began.append(pipeline.save(step, {"samples": step}) if step >= 2 else False)
            started = time.monotonic()
            assert snapshots.take(run.model, run.optimizer, rank, step, {"samples": step})
            took.append(time.monotonic() - started)
            dist.barrier()
        assert began == [False, True, *[False] * 6], began  # one of them is written, and each step has its snapshot
        assert max(took) < 1.0, took
        assert snapshots.sealed()[0] == 8 and snapshots.note(8)["samples"] == 8
        dist.barrier()
        if rank.rank == 1:
            _limit(pipeline, resource.RLIM_INFINITY)
        run.steps(9, 9)
        assert pipeline.save(9, {"samples": 9}, must=True)
        snapshots.take(run.model, run.optimizer, rank, 9, {})
        states[9] = copied(run)
        last = pipeline.finish()
        assert isinstance(last, Saved) and last.step == 9, last
        again = Run(rank, seed=5)
        snapshots.new_model()
        snapshots.restore(again.model, again.optimizer, rank, 9)
        assert same(copied(again), states[9])
    assert [step for step, _ in manifest.committed(root / "checkpoints")] == [9, 2]
    assert same(saved_state(root, 9, rank), states[9])
    written = [entry.key for shard in verify(root / "checkpoints" / "step-00000002").shards for entry in shard.parts]
    assert len(written) == len(set(written)), "what two ranks hold is written by one"
    assert not (root / "keepers").exists()


def case_a_save_of_a_snapshot_is_of_its_step_though_training_goes_on(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 2)
    with patch.object(beside, "_copy_and", slowly), with_snapshots(run, root) as (pipeline, snapshots):
        assert pipeline.save(2, {"samples": 2})
        snapshots.take(run.model, run.optimizer, rank, 2, {})
        assert snapshots.copier.memory is not None and snapshots.copier.memory.sealed() == (), "it is copied beside"
        then = copied(run)
        run.steps(3, 3)
        snapshots.take(run.model, run.optimizer, rank, 3, {})
        assert snapshots.copier.memory.sealed() == (2,)
        assert isinstance(pipeline.finish(), Saved)
    assert not same(copied(run), then)
    assert same(saved_state(root, 2, rank), then)


def case_with_memory_for_two_on_one_rank_all_have_two_and_skip_the_same_steps(root: Path, rank: Rank) -> None:
    run = Run(rank)
    with patch.object(Memory, "attach", _only_two if rank.rank == 1 else Memory.attach), with_snapshots(run, root) as made:
        pipeline, snapshots = made
        assert snapshots.copier.memory is not None and snapshots.copier.memory.buffers == 2
        if rank.rank == 1:
            _limit(pipeline, 4096)
        took, had = [], []
        for step in range(1, 6):
            run.steps(step, step)
            had.append(snapshots.sealed())
            assert pipeline.save(step, {"samples": step}) if step == 2 else True
            took.append(snapshots.take(run.model, run.optimizer, rank, step, {}))
        assert took == [True, True, True, False, False], took  # one is being saved, and the newest whole one is never overwritten
        assert had[4] == (3, 2), had
        assert told_by_all(had) == [had, had], "else they would have no step in common"
        if rank.rank == 1:
            _limit(pipeline, resource.RLIM_INFINITY)
        assert isinstance(pipeline.finish(), Saved)
        run.steps(6, 6)
        assert snapshots.take(run.model, run.optimizer, rank, 6, {})


_attach = Memory.attach


def _only_two(place: Place, parts: Sequence[Part] | None = None, buffers: int = 3, *more: Any, **words: Any) -> Memory:
    if parts and buffers > 2:
        raise SetupError("checkpoint memory", "9 bytes", "too little")
    return _attach(place, parts, buffers, *more, **words)


def case_no_rank_changes_its_state_before_every_rank_has_its_snapshot(root: Path, rank: Rank) -> None:
    """Else the step that all have in memory could be two behind one that somebody has made."""
    run = Run(rank)
    run.steps(1, 1)
    times_s: list[float] = []
    slow = patch.object(beside, "_copy_and", slowly if rank.rank == 1 else beside._copy_and)
    with slow, with_snapshots(run, root) as (_, snapshots):
        snapshots.copier.sealed_then = lambda memory, step: times_s.append(time.monotonic())
        hook = run.optimizer.register_step_post_hook(lambda *_: times_s.append(time.monotonic()))
        snapshots.take(run.model, run.optimizer, rank, 1, {})
        run.steps(2, 2)
        hook.remove()
        sealed_s, changed_s = times_s
        assert max(told_by_all(sealed_s)) <= changed_s, "one clock: both ranks are on this machine"


def case_a_keeper_that_was_killed_is_replaced_at_the_next_snapshot(root: Path, rank: Rank) -> None:
    run = Run(rank)
    with with_snapshots(run, root) as (pipeline, snapshots):
        memory = snapshots.copier.memory
        assert memory is not None
        killed = memory.keeper_pid
        for step in (1, 2):
            run.steps(step, step)
            snapshots.take(run.model, run.optimizer, rank, step, {})
            snapshots.settle()
            if step == 1:
                os.kill(killed, signal.SIGKILL)
                ends(killed)
        assert memory.keeper_pid != killed
        other = Sealed.at(snapshots.copier.place)
        assert other.steps() == (2, 1), "what a successor would find"
        other.close()
        assert pipeline.save(2, {"samples": 2})


def case_a_keeper_that_was_killed_is_replaced_at_the_next_save(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    with pipeline_of(run, root) as pipeline:
        assert pipeline.save(1, {"samples": 1})
        pipeline._copier.wait()
        os.kill(_memory(pipeline).keeper_pid, signal.SIGKILL)
        dist.barrier()
        run.steps(2, 2)
        assert pipeline.save(2, {"samples": 2})
        then = copied(run)
        assert isinstance(pipeline.finish(), Saved)
    assert [step for step, _ in manifest.committed(root / "checkpoints")] == [2, 1]
    assert same(saved_state(root, 2, rank), then)


def case_who_waits_for_the_last_save_says_so_on_every_rank_and_may_be_called_out(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    times = 0

    def waiting() -> None:
        nonlocal times
        times += 1
        if times == 3:
            raise TimeoutError("the generation is over")
        if times == 8 and rank.rank == 1:
            _limit(pipeline, resource.RLIM_INFINITY)

    with pipeline_of(run, root) as pipeline:
        pipeline._waiting = waiting
        if rank.rank == 1:
            _limit(pipeline, 4096)
        assert pipeline.save(1, {"samples": 1})
        try:
            pipeline.finish()
        except TimeoutError:
            assert times == 3
        else:
            raise AssertionError("was not called out")
        last = pipeline.finish()
        assert isinstance(last, Saved) and last.step == 1, last
        assert times >= 8 and told_by_all(times) == [times, times]


def case_an_attempt_that_was_replaced_hears_of_it_on_every_rank(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    decided_by_rank_zero(lambda: (root / "checkpoints").mkdir(parents=True))
    decided_by_rank_zero(lambda: hold(root / "checkpoints", Holder(attempt="lm-1.2")))
    with pipeline_of(run, root) as pipeline:
        assert pipeline.save(1, {"samples": 1})
        try:
            pipeline.finish()
        except CheckpointError as error:
            assert "newer attempt" in str(error)
        else:
            raise AssertionError("was not refused")
    assert manifest.committed(root / "checkpoints") == []


def case_a_save_that_fails_for_good_is_told_and_the_next_one_succeeds(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    with pipeline_of(run, root) as pipeline:
        if rank.rank == 1:
            pipeline._patience_s = 0.0  # rank 0 waits, and is told
            _limit(pipeline, 4096)
        dist.barrier()
        assert pipeline.save(1, {"samples": 1})
        last = pipeline.finish()
        assert isinstance(last, SaveFailed) and last.reason.startswith("rank 1: "), last
        if rank.rank == 1:
            _limit(pipeline, resource.RLIM_INFINITY)
        pipeline._patience_s = 60.0
        assert pipeline.save(2, {"samples": 2})
        assert isinstance(pipeline.finish(), Saved)


def case_tensors_that_lie_elsewhere_or_not_in_one_piece_are_found_again(root: Path, rank: Rank) -> None:
    run = Run(rank)
    run.steps(1, 1)
    live = LiveState(run.model, run.optimizer)
    before = live.parts()
    assert live.parts() is before
    state = {name: tensor.clone() for name, tensor in training_state(run.model, run.optimizer).items()}
    set_training_state(run.model, run.optimizer, state)  # puts other tensors in the moments' places
    assert _bytes(live) == _bytes(LiveState(run.model, run.optimizer))
    for moments in run.optimizer.state.values():
        moments["exp_avg_sq"] = torch.rand(4, 6, device=rank.device).t()  # a plain one whose memory is not in its own order
    odd = LiveState(run.model, run.optimizer)
    odd.parts()
    for moments in run.optimizer.state.values():
        moments["exp_avg_sq"].add_(1.0)
    assert _bytes(odd) == _bytes(LiveState(run.model, run.optimizer))


def _bytes(live: LiveState) -> dict[str, bytes]:
    return {part.key: tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for part, tensor in live.parts()}


def _memory(pipeline: Pipeline) -> Memory:
    assert pipeline._memory is not None
    return pipeline._memory


def _limit(pipeline: Pipeline, num_bytes: int) -> None:
    resource.prlimit(_memory(pipeline).keeper_pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


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
                sys.stderr.write(mine)
            ended[name] = "\n".join(told_by_all(mine)).strip()
        if dist.get_rank() == 0:
            (folder / "ended.json").write_text(json.dumps(ended))
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
