"""The trainer as a gang of two real ranks: killed, resumed, and compared bit by bit with a run that nothing disturbed."""

import gzip
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phalanx.core import wire
from phalanx.core.profile import RankTrace
from phalanx.core.trace_request import REQUESTS_VARIABLE, TRACES, TraceRequest
from phalanx.job.checkpoint import manifest
from phalanx.job.data.prepare import prepare
from phalanx.job.serve.sample import load_model
from phalanx.job.train.__main__ import main
from tests.job.checkpoint.gang_launch import Rank, end_gang, logs, start_gang
from tests.job.checkpoint.keeper_places import eventually
from tests.job.train.faulty_trainer import DEADLY_STEP

HYPERPARAMETERS = {
    "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 24, "sequence": 16, "batch_per_rank": 2,
    "steps": 16, "warmup_steps": 2, "eval_batches": 2,
}  # fmt: skip
VOCAB = 389  # odd, so no two ranks can halve it
EVERY = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    out = tmp_path_factory.mktemp("data") / "tokens"
    prepare([Path(asyncio.__file__).parent], out, vocab_size=VOCAB, held_out=0.2)
    return out


@dataclass(frozen=True)
class Attempt:
    """What one launch left behind."""

    folder: Path
    codes: Sequence[int]
    records: Sequence[Sequence[dict[str, Any]]]

    def of_kind(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        return [record for record in self.records[rank] if record["kind"] == kind]

    def losses(self, rank: int = 0) -> dict[int, str]:
        return {record["step"]: record["loss_hex"] for record in self.of_kind("step", rank)}

    def log(self) -> str:
        return logs(self.folder)


TRAINER = ("-m", "phalanx.job.train", "llama")
FAULTY = ("-m", "tests.job.train.faulty_trainer")


def attempt(job: Path, data: Path, number: int, *arguments: Any, saved: int = 0, **more: Any) -> Attempt:
    """As `start_attempt`, and waits for its end; saved: and for that step's checkpoint, on which keepers go on after the ranks."""
    ended = ended_attempt(job, number, start_attempt(job, data, number, *arguments, **more))
    eventually(lambda: not saved or saved in [step for step, _ in manifest.committed(job / "checkpoints")], limit_s=200)
    return ended


def start_attempt(
    job: Path,
    data: Path,
    number: int,
    fault: str = "",
    world_size: int = 2,
    program: Sequence[str] = TRAINER,
    rank_1: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    **changed: float | str,
) -> list[Rank]:
    """`rank_1`: what that rank's environment has otherwise. `env`: what all have."""
    folder = job / f"attempt-{number}"
    given = {
        "PHALANX_JOB": "lm-1", "PHALANX_ATTEMPT": f"lm-1.{number}", "PHALANX_JOB_DIR": str(job), "PHALANX_DATA": str(data),
        "PHALANX_HYPERPARAMETERS": json.dumps(HYPERPARAMETERS | changed), "PHALANX_CHECKPOINT_EVERY": str(EVERY),
        "PHALANX_CHECKPOINT_KEEP_LAST": "2", "PHALANX_FAULT": f"{fault} attempt={number}" if fault else "",
    }  # fmt: skip
    return start_gang(program, folder, world_size, {**given, **(env or {})}, {1: rank_1 or {}})


def ended_attempt(job: Path, number: int, ranks: Sequence[Rank]) -> Attempt:
    folder, codes = job / f"attempt-{number}", end_gang(ranks)
    records = [
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in (folder / f"rank-{rank}.records" for rank in range(len(ranks)))
    ]
    return Attempt(folder, codes, records)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Attempt:
    run = attempt(tmp_path_factory.mktemp("undisturbed"), data, 1)
    assert run.codes == [0, 0], run.log()
    return run


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> list[Attempt]:
    """Rank 0 killed after step 7, then rank 1 after step 15, then to the end; between the two deaths moments lie on a disk."""
    job = tmp_path_factory.mktemp("legs")
    faults = (("sigkill rank=0 step=7", 4), ("sigkill rank=1 step=15", 12), ("", 16))
    (scratch := job / "scratch").mkdir()
    places: tuple[dict[str, Any], ...] = ({}, {"offload": "nvme", "offload_dir": str(scratch)}, {})
    (job / TRACES).write_text(wire.dumps(TraceRequest, TraceRequest(number=1, first=15, count=1)))
    traced = {
        "PHALANX_PROFILE": '{"first": 12, "count": 3}', "PHALANX_ARTIFACTS": str(job / "artifacts"), REQUESTS_VARIABLE: str(job),
    }  # fmt: skip
    legs = [
        attempt(job, data, number, fault, saved=saved, env=traced if number == 3 else None, **place)
        for number, ((fault, saved), place) in enumerate(zip(faults, places, strict=True), start=1)
    ]
    assert list(scratch.iterdir()) == [], "nothing is left of a rank that was killed"
    return legs


def test_an_undisturbed_run_says_what_it_did(undisturbed: Attempt) -> None:
    for rank in (0, 1):
        assert list(undisturbed.losses(rank)) == list(range(1, 17))
    assert undisturbed.losses(0) == undisturbed.losses(1)
    assert sorted(record["step"] for record in undisturbed.of_kind("checkpoint")) == [4, 8, 12, 16]
    assert not undisturbed.of_kind("checkpoint", rank=1) and not undisturbed.of_kind("model", rank=1)
    metrics = {record["name"]: record["value"] for record in undisturbed.of_kind("metric")}
    assert metrics["val_loss_first"] > metrics["val_loss_final"]
    for record in undisturbed.of_kind("step"):
        phases = sum(record[f"{name}_ms"] for name in ("data_wait", "compute", "comm", "optimizer", "checkpoint"))
        assert 0 <= phases <= record["ended_ms"] - record["started_ms"]
        assert record["tokens"] == 2 * 2 * 16 and record["mfu"] == 0.0
    saved = [record["checkpoint_ms"] for record in undisturbed.of_kind("step") if record["step"] % EVERY == 0]
    others = [record["checkpoint_ms"] for record in undisturbed.of_kind("step") if record["step"] % EVERY]
    assert sum(saved) > 0 and min(others) == 0, "a rank that has to wait for a processor may spend a millisecond there at any step"
    starts = [(record["started_ms"], record["ended_ms"]) for record in undisturbed.of_kind("step")]
    assert all(ended <= started for (_, ended), (started, _) in pairwise(starts))


def test_t02_t08_three_legs_equal_one_run_bit_by_bit(undisturbed: Attempt, legs: list[Attempt]) -> None:
    assert [leg.codes[0] for leg in legs[:2]] != [0, 0]
    assert legs[0].codes[0] == -9 and legs[1].codes[1] == -9 and legs[2].codes == [0, 0], legs[2].log()
    assert [leg.of_kind("resumed")[0]["step"] for leg in legs[1:]] == [4, 12]
    assert [(min(leg.losses()), max(leg.losses())) for leg in legs] == [(1, 7), (5, 15), (13, 16)]
    for leg in legs:
        assert leg.losses() == {step: undisturbed.losses()[step] for step in leg.losses()}
    one, three = undisturbed.of_kind("model")[0], legs[2].of_kind("model")[0]
    assert one["weights_digest"] == three["weights_digest"]
    assert one["metrics"] == three["metrics"]


def test_steps_that_a_job_asks_for_are_traced_and_none_of_their_losses_changes(legs: list[Attempt]) -> None:
    """That these are the undisturbed run's is what the test above says. Step 15 is one that somebody asked for while it ran."""
    folder = legs[2].folder.parent / "artifacts" / "profile"
    kinds = ("summary.json", "summary.txt", "trace.json.gz")
    windows = ("13-14", "15-15")
    assert {path.name for path in folder.iterdir()} == {
        f"rank-{rank}-steps-{window}.{kind}" for rank in (0, 1) for window in windows for kind in kinds
    }
    assert [legs[2].of_kind("trace_missed", rank) for rank in (0, 1)] == [[], []]
    for rank in (0, 1):
        asked: RankTrace = wire.loads(RankTrace, (folder / f"rank-{rank}-steps-15-15.summary.json").read_bytes())
        assert [one.step for one in asked.steps] == [15]
        summary: RankTrace = wire.loads(RankTrace, (folder / f"rank-{rank}-steps-13-14.summary.json").read_bytes())
        assert [one.step for one in summary.steps] == [13, 14]
        for one in summary.steps:
            phases = (one.data_wait_ms, one.communication_ms, one.optimizer_ms, one.checkpoint_ms)
            assert min(phases) > 0 and one.data_wait_ms + one.optimizer_ms + one.checkpoint_ms < one.wall_ms
            assert 0 <= one.exposed_communication_ms <= one.communication_ms
    marks = {event["name"] for event in events_of(folder / "rank-0-steps-13-14.trace.json.gz")}
    assert {"step 13", "data wait", "forward and backward", "agreement", "optimizer", "checkpoint"} <= marks


def events_of(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event for event in found if event.get("cat") == "user_annotation"]


def test_the_first_held_out_loss_is_measured_once(legs: list[Attempt]) -> None:
    named = [[record["name"] for record in leg.of_kind("metric")] for leg in legs]
    assert named == [["val_loss_first"], [], ["val_loss_final"]]


def test_the_saved_model_is_whole_and_says_where_it_comes_from(undisturbed: Attempt, data: Path) -> None:
    said = undisturbed.of_kind("model")[0]
    folder = Path(said["path"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["lm-1.1"]
    model, _, sequence = load_model(folder, said["weights_digest"])
    assert sequence == 16 and model.shape.vocab == VOCAB
    lineage = said["lineage"]
    assert lineage["checkpoint"] == max(undisturbed.of_kind("checkpoint"), key=lambda record: record["step"])["digest"]
    assert lineage["recipe"] == "llama" and lineage["environment"].startswith("python 3.")
    assert len(lineage["config"]) == len(lineage["data_manifest"]) == 64


def test_t12_a_checkpoint_whose_cursor_is_not_its_step_is_refused(legs: list[Attempt], data: Path) -> None:
    job = legs[0].folder.parent
    newest = job / "checkpoints" / "step-00000016"
    read, before = manifest.read(newest)[0], (newest / manifest.MANIFEST).read_bytes()
    assert read.extra["samples"] == 16 * 2 * 2
    manifest.commit(newest, replace(read, extra={**read.extra, "samples": 17 * 2 * 2}))
    refused = attempt(job, data, 9)
    assert refused.codes == [2, 2]
    assert "weights and data cursor differ" in refused.log() and "Traceback" not in refused.log()
    (newest / manifest.MANIFEST).write_bytes(before)


@pytest.fixture(scope="module")
def resized(tmp_path_factory: pytest.TempPathFactory, data: Path) -> list[Attempt]:
    """A run of two ranks, and one that went on with one rank and then with four."""
    alone = attempt(tmp_path_factory.mktemp("two-ranks"), data, 1, accumulate=2, steps=10)
    job = tmp_path_factory.mktemp("resized")
    gangs = ((2, "sigkill rank=0 step=5", 4), (1, "sigkill rank=0 step=9", 8), (4, "", 10))
    legs = [
        attempt(job, data, number, fault, world_size=ranks, saved=saved, accumulate=2, steps=10)
        for number, (ranks, fault, saved) in enumerate(gangs, start=1)
    ]
    return [alone, *legs]


def test_T01_T07_a_gang_of_another_size_trains_on_the_same_samples_and_loses_and_repeats_none(resized: list[Attempt]) -> None:
    alone, *legs = resized
    assert legs[2].codes == [0] * 4, legs[2].log()
    assert [leg.of_kind("resumed")[0]["step"] for leg in legs[1:]] == [4, 8]
    assert [(min(leg.losses()), max(leg.losses())) for leg in legs] == [(1, 5), (5, 9), (9, 10)]
    expected = {record["step"]: record for record in alone.of_kind("step")}
    for leg in legs:
        for record in leg.of_kind("step"):
            step = expected[record["step"]]
            assert record["tokens"] == step["tokens"] == 8 * 16
            assert record["loss"] == pytest.approx(step["loss"], rel=1e-4)
            assert record["grad_norm"] == pytest.approx(step["grad_norm"], rel=1e-3)
    one, three = alone.of_kind("model")[0]["metrics"], legs[2].of_kind("model")[0]["metrics"]
    assert three["val_loss_first"] == one["val_loss_first"] and three["tokens"] == one["tokens"]
    assert three["val_loss_final"] == pytest.approx(one["val_loss_final"], rel=1e-4)


def test_a_world_size_that_cannot_keep_the_global_batch_is_told_which_can(resized: list[Attempt], data: Path) -> None:
    job = resized[1].folder.parent
    refused = attempt(job, data, 4, world_size=3, accumulate=2, steps=10)
    assert refused.codes == [2] * 3
    said = "world size is 3: does not divide this run's global batch of 8 samples into whole microbatches of batch_per_rank 2"
    assert f"{said}; go on with one of 1, 2, 4 ranks" in refused.log() and "Traceback" not in refused.log()


def test_the_best_and_every_so_many_checkpoints_stay(tmp_path: Path, data: Path) -> None:
    keep = {
        "PHALANX_CHECKPOINT_KEEP_LAST": "1", "PHALANX_CHECKPOINT_KEEP_BEST": "1", "PHALANX_CHECKPOINT_BEST_METRIC": "val_loss",
        "PHALANX_CHECKPOINT_BEST_MODE": "max", "PHALANX_CHECKPOINT_KEEP_EVERY": "12",
    }  # fmt: skip
    kept = attempt(tmp_path, data, 1, world_size=1, env=keep)
    assert kept.codes == [0], kept.log()
    said = {record["step"]: record["value"] for record in kept.of_kind("metric") if record["name"] == "val_loss"}
    assert list(said) == [4, 8, 12, 16] and max(said, key=lambda step: said[step]) == 4
    found = manifest.committed(tmp_path / "checkpoints")
    assert [step for step, _ in found] == [16, 12, 4]
    metrics = {step: manifest.read(folder)[0].metrics for step, folder in found}
    assert {step: one["val_loss"] for step, one in metrics.items()} == {step: said[step] for step in metrics}


def test_other_hyperparameters_refuse_the_job_s_checkpoints(legs: list[Attempt], data: Path) -> None:
    refused = attempt(legs[0].folder.parent, data, 10, lr=0.001)
    assert refused.codes == [2, 2]
    assert "config of checkpoint step-00000016" in refused.log() and "Traceback" not in refused.log()


@pytest.fixture(scope="module")
def other_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import email

    out = tmp_path_factory.mktemp("other") / "tokens"
    prepare([Path(email.__file__).parent], out, vocab_size=VOCAB, held_out=0.2)
    return out


def test_ranks_with_different_data_never_train_together(tmp_path: Path, data: Path, other_data: Path) -> None:
    refused = attempt(tmp_path, data, 1, rank_1={"PHALANX_DATA": str(other_data)})
    assert refused.codes == [2, 2], refused.log()
    assert refused.log().count("Error: data of rank 1") == 2 and not refused.losses()


@pytest.mark.parametrize(
    ("rank_1", "field"),
    [
        ({"PHALANX_HYPERPARAMETERS": json.dumps(HYPERPARAMETERS | {"lr": 0.5})}, "hyperparameters.lr of rank 1 is 0.5"),
        ({"PHALANX_CHECKPOINT_EVERY": "5"}, "PHALANX_CHECKPOINT_EVERY of rank 1 is 5"),
    ],
)
def test_ranks_with_different_settings_never_train_together(
    tmp_path: Path, data: Path, rank_1: Mapping[str, str], field: str
) -> None:
    refused = attempt(tmp_path, data, 1, rank_1=rank_1)
    assert refused.codes == [2, 2], refused.log()
    assert refused.log().count(f"Error: {field}") == 2


def test_a_diverged_run_shows_where_and_ends_with_one_sentence(tmp_path: Path, data: Path) -> None:
    diverged = attempt(tmp_path, data, 1, lr=1e38, spike_budget=2)
    assert diverged.codes == [2, 2], diverged.log()
    for rank in (0, 1):
        records = diverged.of_kind("step", rank)
        broken = [record["step"] for record in records if not math.isfinite(float(record["loss"]))]
        assert broken == [record["step"] for record in records[-3:]], "two were skipped, then the budget was used up"
        last = records[-1]
        assert f"training diverged at step {last['step']}" in diverged.log()
    assert "Traceback" not in diverged.log() and not diverged.of_kind("model")
    assert [spike["action"] for spike in diverged.of_kind("spike")] == ["skip", "skip", "stop"]
    assert [one["step"] for one in diverged.of_kind("checkpoint")] == [step for step in (4, 8, 12) if step < broken[0]]


def test_a_disk_full_at_the_end_ends_every_rank_with_3_and_the_next_attempt_saves_the_model(
    tmp_path: Path, data: Path, undisturbed: Attempt
) -> None:
    full = attempt(tmp_path, data, 1, program=(*FAULTY, "disk_full_at_the_end"))
    assert full.codes == [3, 3], full.log()
    assert full.log().count("the model could not be written") == 2 and "Traceback" not in full.log()
    assert not full.of_kind("model") and not list((tmp_path / "model").iterdir())
    again = attempt(tmp_path, data, 2)
    assert again.codes == [0, 0], again.log()
    assert again.of_kind("model")[0]["weights_digest"] == undisturbed.of_kind("model")[0]["weights_digest"]


def test_D13_a_batch_that_was_delivered_and_not_trained_on_is_not_skipped(tmp_path: Path, data: Path, undisturbed: Attempt) -> None:
    killed = attempt(tmp_path, data, 1, program=(*FAULTY, "killed_between_fetch_and_update"), saved=4)
    assert killed.codes[1] == -9 and max(killed.losses()) == DEADLY_STEP - 1
    again = attempt(tmp_path, data, 2)
    assert again.codes == [0, 0], again.log()
    assert [record["step"] for record in again.of_kind("resumed")] == [4]
    assert again.losses() == {step: undisturbed.losses()[step] for step in range(5, 17)}


def test_an_attempt_that_was_replaced_commits_nothing_more_not_even_before_the_newer_has(tmp_path: Path, data: Path) -> None:
    newer = attempt(tmp_path, data, 2, fault="sigkill rank=0 step=2")
    assert newer.codes[0] == -9
    older = attempt(tmp_path, data, 1)
    assert older.codes == [2, 2], older.log()
    assert "a newer attempt holds the job's checkpoints" in older.log() and "Traceback" not in older.log()
    assert not older.losses() and list(manifest.step_folders(tmp_path / "checkpoints")) == []


def test_failed_saves_cost_nothing_until_the_last(tmp_path: Path, data: Path) -> None:
    program = (*FAULTY, "without_a_folder")
    alone = attempt(tmp_path, data, 1, world_size=1, env={"PHALANX_CHECKPOINT_PATIENCE_S": "0"}, program=program)
    assert alone.codes == [3], alone.log()
    assert list(alone.losses()) == list(range(1, 17))
    for step in (4, 8, 12):
        assert f"checkpoint of step {step} not saved" in alone.log()
    assert "the last checkpoint (step 16) could not be written" in alone.log() and "Traceback" not in alone.log()
    assert not alone.of_kind("model") and not alone.of_kind("checkpoint")


def test_a_place_that_can_never_hold_checkpoints_is_refused_before_a_step(tmp_path: Path, data: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where a folder is needed")
    refused = attempt(tmp_path, data, 1)
    assert refused.codes == [2, 2], refused.log()
    assert "has a file where a folder is needed; move it away, or choose another place" in refused.log()
    assert not refused.losses() and "Traceback" not in refused.log()


def test_a_store_that_is_away_for_a_while_costs_no_step_and_no_checkpoint(tmp_path: Path, data: Path) -> None:
    away = tmp_path / "checkpoints"
    ranks = start_attempt(tmp_path, data, 1, program=(*FAULTY, "without_a_folder"))
    until = time.monotonic() + 240
    while logs(tmp_path / "attempt-1").count("checkpoint of step 4 not saved yet") < 2:
        assert time.monotonic() < until, logs(tmp_path / "attempt-1")
        time.sleep(0.05)
    away.unlink()
    ended = ended_attempt(tmp_path, 1, ranks)
    assert ended.codes == [0, 0], ended.log()
    assert list(ended.losses()) == list(range(1, 17))
    steps = {record["step"] for record in ended.of_kind("checkpoint")}
    assert {4, 16} <= steps and ended.log().count("checkpoint of step 4 not saved yet") == 2  # one line a rank
    assert "Traceback" not in ended.log() and manifest.committed(away)[0][0] == 16


def test_more_state_than_memory_ends_the_run_before_its_first_step(tmp_path: Path, data: Path) -> None:
    refused = attempt(tmp_path, data, 1, program=(*FAULTY, "little_memory"))
    assert refused.codes == [2, 2], refused.log()
    assert refused.log().count("checkpoint memory is") == refused.log().count("are free;") == 2 and "Traceback" not in refused.log()
    assert not refused.losses()


@pytest.mark.parametrize(("arguments", "named"), [(["lama"], "recipe"), ([], "recipe"), (["llama"], "data")])
def test_a_rank_started_wrongly_says_so_in_one_line(
    arguments: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"Error: {named}") and error.count("\n") == 1


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("arithmetic")
    out = folder / "answer.json"
    codes = end_gang(start_gang(["-m", "tests.job.train.train_cases", str(out), str(data)], folder, 2, {}))
    assert codes == [0, 0], logs(folder)
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer


def test_two_ranks_equal_one_process(arithmetic: dict[str, Any]) -> None:
    for (loss, norm), (plain_loss, plain_norm) in zip(arithmetic["whole"], arithmetic["plain"], strict=True):
        assert loss == pytest.approx(plain_loss, rel=1e-4)
        assert norm == pytest.approx(plain_norm, rel=1e-3)


def test_accumulating_halves_equals_the_whole_batch(arithmetic: dict[str, Any]) -> None:
    for (loss, norm), (half_loss, half_norm) in zip(arithmetic["whole"], arithmetic["halves"], strict=True):
        assert half_loss == pytest.approx(loss, rel=1e-4)
        assert half_norm == pytest.approx(norm, rel=1e-3)


def test_less_memory_gives_the_same_bits_and_a_loss_without_logits_nearly_so(arithmetic: dict[str, Any]) -> None:
    assert arithmetic["less"] == arithmetic["whole"]
    assert arithmetic["fused"] != arithmetic["whole"]
    for (loss, norm), (fused_loss, fused_norm) in zip(arithmetic["whole"], arithmetic["fused"], strict=True):
        assert fused_loss == pytest.approx(loss, rel=1e-5)
        assert fused_norm == pytest.approx(norm, rel=1e-4)
    assert arithmetic["held_out"][2] == pytest.approx(arithmetic["held_out"][0], rel=1e-5)


def test_the_same_run_again_gives_the_same_bits(arithmetic: dict[str, Any]) -> None:
    assert arithmetic["again"] == arithmetic["whole"]
    assert arithmetic["held_out"][0] == arithmetic["held_out"][1]


def test_a_run_that_saves_as_often_as_pays_decides_when_on_rank_zero(tmp_path: Path, data: Path) -> None:
    ended = attempt(tmp_path, data, 1, env={"PHALANX_CHECKPOINT_MTBF_S": "5"}, steps=60)
    assert ended.codes == [0, 0], ended.log()
    steps = sorted(record["step"] for record in ended.of_kind("checkpoint"))
    assert steps[0] == 10 and steps[-1] == 60 and len(steps) >= 3
    assert ended.losses(0) == ended.losses(1)
