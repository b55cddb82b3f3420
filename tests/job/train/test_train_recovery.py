"""The trainer in a gang that recovers, under the real shim: rank 0 is killed or hangs, the survivor keeps its process, and every
loss is bit for bit that of a run that nothing disturbed."""

import asyncio
import fcntl
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.trace_request import REQUESTS_VARIABLE, TRACES, TraceRequest
from phalanx.job.data.prepare import prepare
from tests.job.checkpoint.gang_launch import end_gang, start_gang
from tests.job.checkpoint.keeper_places import eventually
from tests.job.train.recovery_gang import HANG_SOON, TIMES, TRAINER, ShimGang, start

STEPS, EVERY = 40, 15
LONG = 400
"""Steps of a run in which somebody has time to come back."""
SHAPE = {
    "dim": 16,
    "layers": 2,
    "heads": 2,
    "ffn_dim": 24,
    "sequence": 16,
    "batch_per_rank": 2,
    "warmup_steps": 2,
    "eval_batches": 2,
    "recompute_every": 4,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "tokens"
    prepare([Path(asyncio.__file__).parent], out, vocab_size=389, held_out=0.2)
    return out


def environment(job: Path, data: Path, fault: str = "", steps: int = STEPS) -> dict[str, str]:
    return {
        "PHALANX_JOB": "lm-1", "PHALANX_ATTEMPT": "lm-1.1", "PHALANX_JOB_DIR": str(job), "PHALANX_DATA": str(data),
        "PHALANX_HYPERPARAMETERS": json.dumps(SHAPE | {"steps": steps}), "PHALANX_CHECKPOINT_EVERY": str(EVERY),
        "PHALANX_CHECKPOINT_KEEP_LAST": "2", "PHALANX_FAULT": f"{fault} attempt=1" if fault else "",
    }  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> ShimGang:
    return plain(tmp_path_factory.mktemp("undisturbed"), data, STEPS)


@pytest.fixture(scope="module")
def undisturbed_long(tmp_path_factory: pytest.TempPathFactory, data: Path) -> ShimGang:
    return plain(tmp_path_factory.mktemp("undisturbed_long"), data, LONG)


def plain(job: Path, data: Path, steps: int, world_size: int = 2) -> ShimGang:
    """A gang without a coordinator, for its records only."""
    ranks = start_gang(TRAINER, job / "a", world_size, environment(job, data, steps=steps))
    assert end_gang(ranks) == [0] * world_size
    return ShimGang(job / "a", world_size, ranks[0])


def digest(gang: ShimGang) -> str:
    said: str = gang.records(0, "model")[0]["weights_digest"]
    return said


@pytest.mark.parametrize(("fault", "spares"), [("sigkill", 1), ("sigstop", 1), ("hang", 0)])
def test_rank_zero_falls_and_the_losses_are_those_of_the_undisturbed_run(
    tmp_path: Path, data: Path, undisturbed: ShimGang, fault: str, spares: int
) -> None:
    """Which is also one whose steps 21 to 30 somebody wants traced: that is dropped, and training goes on."""
    times = TIMES if fault == "sigkill" else HANG_SOON
    (tmp_path / TRACES).write_text(wire.dumps(TraceRequest, TraceRequest(number=1, first=21, count=10)))
    env = environment(tmp_path, data, f"{fault} rank=0 step=22") | {REQUESTS_VARIABLE: str(tmp_path)}
    gang = start(tmp_path / "a", env, spares=spares, times=times)
    assert gang.end() == [0, 0], gang.log()
    for rank in (0, 1):
        (untraced,) = gang.records(rank, "trace_missed")
        assert "the gang recovered" in untraced["why"] and untraced["step"] in (21, 22)
    assert not (gang.folder / "artifacts" / "profile").exists()
    (recovered,) = gang.records(0, "recovered")
    assert recovered["generation"] == 2
    assert recovered["replaced"] == [0]
    assert recovered["pids"] == [gang.pids()[0]]
    assert recovered["steps_lost"] <= 1
    assert ("killed by SIGKILL" if fault == "sigkill" else "it hung") in recovered["why"]
    for rank in (0, 1):
        assert gang.losses(rank) == undisturbed.losses(rank), gang.log()
    assert digest(gang) == digest(undisturbed)
    assert "generation 2 of the gang" in (gang.folder / "rank-1.log").read_text()
    assert not gang.records(0, "resumed"), "its state came from memory"
    assert not gang.records(0, "corruption") + gang.records(1, "corruption"), "a new generation is no corruption"


def test_without_a_spare_the_survivor_goes_on_alone_with_the_same_samples_and_the_gang_is_whole_again(
    tmp_path: Path, data: Path, undisturbed_long: ShimGang
) -> None:
    env = environment(tmp_path, data, "sigkill rank=0 step=22", LONG)
    gang = start(tmp_path / "a", env, spares=0, times=replace(TIMES, grow_ms=0), sizes=(1,))
    assert gang.end() == [0, 0], gang.log()
    shrunk, grown = gang.records(1, "recovered") + gang.records(0, "recovered")
    assert (shrunk["generation"], shrunk["absent"], shrunk["planned"], shrunk["replaced"]) == (2, [0], False, [])
    assert (grown["generation"], grown["absent"], grown["planned"], grown["replaced"]) == (3, [], True, [0])
    assert shrunk["steps_lost"] <= 1
    assert grown["steps_lost"] == 0
    assert grown["step"] > shrunk["step"] + 1
    alone = [record["step"] for record in gang.records(1, "step") if record["step"] not in gang.losses(0)]
    assert alone == list(range(shrunk["step"] + 1 + shrunk["steps_lost"], grown["step"] + 1)), "and no step twice"
    assert gang.losses(1) == undisturbed_long.losses(), "two microbatches are added up alike, wherever they were computed"
    assert digest(gang) == digest(undisturbed_long)
    assert not gang.records(1, "resumed") + gang.records(0, "resumed"), "its state came from memory"


def test_who_is_left_alone_with_the_last_step_saves_the_model(tmp_path: Path, data: Path, undisturbed: ShimGang) -> None:
    env = environment(tmp_path, data, f"sigkill rank=0 step={STEPS - 1}")
    gang = start(tmp_path / "a", env, spares=0, sizes=(1,))
    assert gang.end() == [0, 0], gang.log()
    assert [one["absent"] for one in gang.records(1, "recovered")] == [[0]]
    assert gang.losses(1) == undisturbed.losses(1)
    assert gang.records(1, "model")[0]["weights_digest"] == digest(undisturbed)


def test_a_survivor_makes_steps_while_its_memory_is_still_being_taken(
    tmp_path: Path, data: Path, undisturbed_long: ShimGang
) -> None:
    """Tens of gigabytes last as long as this test has the keepers wait for their turn."""
    env = environment(tmp_path, data, steps=LONG)
    gang = start(tmp_path / "a", env, spares=0, times=replace(TIMES, grow_ms=0), sizes=(1,))

    def made() -> int:
        return max(gang.losses(1), default=0)

    eventually(lambda: made() >= 10, 300)
    turn = os.open(tmp_path / "a" / "keepers", os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    os.kill(gang.pids()[0], signal.SIGKILL)
    eventually(lambda: gang.records(1, "recovered"), 300)
    reached = made()
    eventually(lambda: made() >= reached + 20, 300)
    assert not gang.records(0, "recovered"), "nobody comes out of a generation whose newest step is kept nowhere"
    os.close(turn)
    assert gang.end() == [0, 0], gang.log()
    shrunk, *grown = gang.records(1, "recovered") + gang.records(0, "recovered")
    assert shrunk["steps_lost"] <= 1
    assert all((one["planned"], one["steps_lost"]) == (True, 0) for one in grown), "if its process was there in time"
    assert gang.losses(1) == undisturbed_long.losses()


def test_of_three_that_live_two_go_on_and_one_waits_in_its_place_until_the_end(tmp_path: Path, data: Path) -> None:
    """The state of four places is cut anew onto two, and each step has the samples that it has with four. What has no part in the
    last generation ends well with the others."""
    env = environment(tmp_path, data, "sigkill rank=0 step=22")
    whole = plain(tmp_path / "whole", data, STEPS, world_size=4)
    gang = start(tmp_path / "a", env, world_size=4, spares=0, sizes=(1, 2), times=replace(TIMES, grow_ms=3_600_000))
    assert gang.end() == [0, 0, 0, 0], gang.log()
    (shrunk,) = gang.records(1, "recovered")
    assert shrunk["absent"] == [0, 3]
    assert shrunk["steps_lost"] <= 1
    assert max(gang.losses(3)) in (21, 22), "it waits, though it lives"
    assert "the gang has finished without this rank" in (gang.folder / "rank-3.log").read_text()
    assert sorted(gang.losses(1)) == list(range(1, STEPS + 1))
    for step, losses in gang.losses(1).items():
        seen, wanted = (float.fromhex(min(some)) for some in (losses, whole.losses(1)[step]))
        assert abs(seen - wanted) < 1e-4 * wanted, step
    assert gang.records(1, "model")[0]["step"] == STEPS


def test_ranks_that_do_not_wait_for_the_dead_one_itself_come_out_of_their_collectives_too(tmp_path: Path, data: Path) -> None:
    """Of a ring of four, one waits for two that wait for the dead one."""
    gang = start(tmp_path / "a", environment(tmp_path, data, "sigkill rank=0 step=22"), world_size=4)
    assert gang.end() == [0, 0, 0, 0], gang.log()
    (recovered,) = gang.records(0, "recovered")
    assert recovered["replaced"] == [0], "the others kept their processes"
    assert sorted(gang.losses()) == list(range(1, STEPS + 1))
    assert all(len(seen) == 1 for seen in gang.losses().values())


def test_two_deaths_one_after_the_other_and_then_the_survivor_of_both(tmp_path: Path, data: Path, undisturbed: ShimGang) -> None:
    """Rank 0 before anything is in memory, so all begin anew; then rank 1, which by then is the oldest process."""
    env = environment(tmp_path, data)
    gang = start(tmp_path / "a", env, program=("-m", "tests.job.train.falling_trainer"))
    assert gang.end() == [0, 0], gang.log()
    assert [one["replaced"] for one in gang.records(0, "recovered")] == [[0], [1]]
    for rank in (0, 1):
        assert gang.losses(rank) == undisturbed.losses(rank)
    assert digest(gang) == digest(undisturbed)


def test_a_death_in_the_middle_of_a_copy_and_one_after_the_keeper_s_cost_a_step_and_no_bit(
    tmp_path: Path, data: Path, undisturbed: ShimGang
) -> None:
    gang = start(tmp_path / "a", environment(tmp_path, data), program=("-m", "tests.job.train.struck_trainer"))
    assert gang.end() == [0, 0], gang.log()
    first, second = gang.records(0, "recovered")
    assert [one["replaced"] for one in (first, second)] == [[0], [1]]
    assert (first["step"], first["steps_lost"]) == (8, 1), "the snapshot of step 9 was never whole"
    assert (second["step"], second["steps_lost"]) == (19, 0), "a new keeper held what the killed one had held"
    assert not gang.records(0, "resumed"), "nobody read a checkpoint"
    for rank in (0, 1):
        assert gang.losses(rank) == undisturbed.losses(rank)
    assert digest(gang) == digest(undisturbed)


def test_a_place_that_is_lost_with_its_memory_comes_back_from_a_replica(tmp_path: Path, data: Path, undisturbed: ShimGang) -> None:
    env = environment(tmp_path, data) | {"PHALANX_REPLICAS": "1"}
    gang = start(tmp_path / "a", env, program=("-m", "tests.job.train.bereft_trainer"))
    assert gang.end() == [0, 0], gang.log()
    (recovered,) = gang.records(0, "recovered")
    assert recovered["replaced"] == [1] and recovered["step"] >= 1
    assert not gang.records(0, "resumed"), "nobody read a checkpoint"
    assert "from a replica in slot 0" in (gang.folder / "rank-1.log").read_text()
    for rank in (0, 1):
        assert gang.losses(rank) == undisturbed.losses(rank), gang.log()
    assert digest(gang) == digest(undisturbed)


def test_a_smaller_gang_without_replicas_yet_goes_back_to_what_the_larger_one_had(tmp_path: Path, data: Path) -> None:
    """Of each place of the larger one something is left: its own memory, of other parts than it has now, or its replica."""
    env = environment(tmp_path, data) | {"PHALANX_REPLICAS": "1"}
    program, times = ("-m", "tests.job.train.twice_bereft_trainer"), replace(TIMES, grow_ms=3_600_000)
    gang = start(tmp_path / "a", env, program=program, world_size=4, spares=0, sizes=(1, 2), times=times)
    assert gang.end() == [0, 0, 0, 0], gang.log()
    first, second = gang.records(0, "recovered")
    assert first["absent"] == [2, 3]
    assert second["absent"] in ([1, 3], [2, 3]), "place 2 stands in for place 1, unless a new process has place 1 by then"
    assert second["step"] == first["step"], gang.log()
    assert not gang.records(0, "resumed"), "nobody read a checkpoint"
    assert sorted(gang.losses()) == list(range(1, STEPS + 1))


def test_without_replicas_the_same_loss_goes_back_to_the_last_checkpoint(tmp_path: Path, data: Path, undisturbed: ShimGang) -> None:
    env = environment(tmp_path, data)
    gang = start(tmp_path / "a", env, program=("-m", "tests.job.train.bereft_trainer"))
    assert gang.end() == [0, 0], gang.log()
    assert [one["replaced"] for one in gang.records(0, "recovered")] == [[1]]
    for rank in (0, 1):
        assert gang.losses(rank) == undisturbed.losses(rank), gang.log()
