"""Record files: complete lines become facts; what is no record is reported and never raised."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.health import BLOCKS_MAX, BadSample, Corruption, DamagedData, LossSpike, ReadTrouble
from phalanx.core.records import CheckpointCommitted, Metric, ModelSaved, RankRecord, Resumed, StepRecord
from phalanx.record.telemetry.records import decode

STEP = StepRecord(
    rank=0,
    step=1,
    total_steps=400,
    loss=8.25,
    loss_hex=(8.25).hex(),
    grad_norm=1.0,
    lr=0.005,
    tokens=1024,
    tokens_per_s=5000.0,
    mfu=0.0,
    started_ms=1_000,
    ended_ms=1_200,
)


def line(record: object) -> bytes:
    return wire.dumps(RankRecord, record).encode() + b"\n"


def test_measurements_and_facts_come_apart() -> None:
    metric = Metric(rank=0, step=0, name="val_loss", value=8.3, at_ms=5)
    resumed = Resumed(rank=0, step=0, checkpoint="", skipped=(), at_ms=1)
    saved = CheckpointCommitted(rank=0, step=100, path="/x", digest="d", size_bytes=3, at_ms=9)
    data = line(resumed) + line(metric) + line(STEP) + line(saved)
    decoded = decode(data, rank=0)
    assert decoded.measurements == (metric, STEP)
    assert decoded.facts == (resumed, saved)
    assert (decoded.consumed, decoded.num_bad, decoded.problems) == (len(data), 0, ())


def test_a_start_that_waits_for_its_checkpoints_is_a_fact_before_any_step() -> None:
    waits = ReadTrouble(rank=0, wait_s=600, reason="s3://bkt: the store does not answer; try again", at_ms=1)
    assert decode(line(waits), rank=0).facts == (waits,)


SPIKE = LossSpike(
    rank=0, step=3, measured=None, norm=2.0, usual=None, limit=None, action="skip", weights_of=2, samples=(32, 47),
    worst=(BadSample(sample=33, row=7, loss=None),), at_ms=1,
)  # fmt: skip


def test_a_spike_is_a_fact_and_holds_nothing_that_json_cannot() -> None:
    assert decode(line(SPIKE), rank=0).facts == (SPIKE,)
    for change in (
        {"measured": "NaN"},
        {"worst": [{"sample": 1, "row": -1, "loss": 2.0}]},
        {"worst": [{"sample": 1, "row": 1, "loss": 2.0}] * 5},
        {"action": "explode"},
    ):
        changed = json.loads(wire.dumps(RankRecord, SPIKE)) | change
        assert decode(json.dumps(changed).encode() + b"\n", rank=0).num_bad == 1, change


def test_what_a_rank_says_of_corruption_is_no_way_into_a_terminal_or_a_huge_event() -> None:
    corrupt = Corruption(rank=0, step=8, place="weights", name="blocks.0.qkv", ranks=(1,), certain=True, at_ms=1)
    assert decode(line(corrupt), rank=0).facts == (corrupt,)
    changes: list[dict[str, object]] = [
        {"name": "\x1b[2J"},
        {"name": "a\n"},
        {"name": "a" * 201},
        {"ranks": []},
        {"ranks": list(range(65))},
        {"ranks": [-1]},
    ]
    for change in changes:
        changed = json.loads(wire.dumps(RankRecord, corrupt)) | change
        assert decode(json.dumps(changed).encode() + b"\n", rank=0).num_bad == 1, change


def test_what_a_rank_says_of_damaged_data_is_no_way_into_a_terminal_or_a_huge_event() -> None:
    damaged = DamagedData(rank=0, step=8, source="web", shard="ab12", blocks=tuple(range(BLOCKS_MAX)), samples=3, at_ms=1)
    assert decode(line(damaged), rank=0).facts == (damaged,)
    changes: list[dict[str, object]] = [
        {"source": "\x1b[2J"}, {"source": ""}, {"source": "a" * 64}, {"shard": "ab\n"}, {"shard": "a" * 65}, {"blocks": []},
        {"blocks": [-1]}, {"blocks": list(range(BLOCKS_MAX + 1))}, {"samples": -1}, {"step": 0},
    ]  # fmt: skip
    for change in changes:
        changed = json.loads(wire.dumps(RankRecord, damaged)) | change
        assert decode(json.dumps(changed).encode() + b"\n", rank=0).num_bad == 1, change


def test_an_incomplete_line_waits() -> None:
    data = line(STEP)
    assert decode(data + data[:20], rank=0).consumed == len(data)
    assert decode(data[:-1], rank=0).consumed == 0


def test_bad_lines_are_reported_and_the_others_kept() -> None:
    bad = [b"garbage", b"{}", b'{"kind":"step"}', b"\xff\xfe", b"[" * 5000, b"null", b'{"kind":"metric","value":null}', b"1" * 200]
    data = b"\n".join(bad) + b"\n" + line(STEP)
    decoded = decode(data, rank=0)
    assert decoded.records == (STEP,)
    assert decoded.num_bad == len(bad)
    assert decoded.consumed == len(data)
    assert len(decode(b"x\n" * 1000, rank=0).problems) == 20


def test_a_rank_speaks_only_for_itself() -> None:
    decoded = decode(line(STEP), rank=1)
    assert decoded.records == ()
    assert "rank 0 in the file of rank 1" in decoded.problems[0]


def test_absurd_values_are_refused() -> None:
    for change in (
        {"step": 0},
        {"step": -1},
        {"tokens": 2**60},
        {"started_ms": -(2**70)},
        {"loss_hex": "x" * 50},
        {"loss_hex": "é"},
        {"data_wait_cause": "é"},
        {"data_wait_cause": "\x1b[31m"},
        {"data_wait_cause": "a" * 33},
    ):
        changed = json.loads(wire.dumps(RankRecord, STEP)) | change
        assert decode(json.dumps(changed).encode() + b"\n", rank=0).num_bad == 1, change
    long_name = Metric(rank=0, step=0, name="n" * 201, value=0.0, at_ms=0)
    assert decode(line(long_name), rank=0).num_bad == 1


@pytest.mark.parametrize("path", ["", "model", "../model", "/jobs/../../etc", "/a\0b", "/a\nb", "/" + "x" * 5_000, "file:///model"])
def test_a_path_that_is_not_absolute_and_plain_is_refused(path: str) -> None:
    saved = CheckpointCommitted(rank=0, step=1, path=path, digest="d", size_bytes=3, at_ms=9)
    model = ModelSaved(rank=0, step=1, path=path, weights_digest="w", metrics={}, lineage={}, at_ms=9)
    for record in (saved, model):
        decoded = decode(line(record), rank=0)
        assert (decoded.facts, decoded.num_bad) == ((), 1)
        assert "path" in decoded.problems[0]


@pytest.mark.parametrize(
    "path", ["s3://bkt/../x", "s3://key:secret@bkt/x", "s3://bkt/x?sig=1", "memory://x/y", "s3://bkt/\x1b[31m"]
)
def test_a_url_of_a_checkpoint_that_is_none_or_hides_something_is_refused(path: str) -> None:
    saved = CheckpointCommitted(rank=0, step=1, path=path, digest="d", size_bytes=3, at_ms=9)
    assert decode(line(saved), rank=0).num_bad == 1


@pytest.mark.parametrize("path", ["s3://bkt/a/lm-1-7/step-00000001", "abfs://box@account.dfs.core.windows.net/a/step-00000001"])
def test_a_checkpoint_may_lie_in_an_object_store_and_a_model_may_not(path: str) -> None:
    saved = CheckpointCommitted(rank=0, step=1, path=path, digest="d", size_bytes=3, at_ms=9)
    model = ModelSaved(rank=0, step=1, path=path, weights_digest="w", metrics={}, lineage={}, at_ms=9)
    assert decode(line(saved), rank=0).facts == (saved,) and decode(line(model), rank=0).num_bad == 1


def test_a_path_may_hold_what_file_systems_take() -> None:
    model = ModelSaved(rank=0, step=1, path="/my jobs/é\u00a0..x/m", weights_digest="w", metrics={}, lineage={}, at_ms=9)
    assert decode(line(model), rank=0).facts == (model,)


def test_a_line_too_long_is_dropped_even_before_it_ends() -> None:
    decoded = decode(b"a" * 300, rank=0, line_bytes_max=200)
    assert (decoded.consumed, decoded.num_bad) == (300, 1)
    decoded = decode(b"a" * 400 + b"\n" + line(STEP), rank=0, line_bytes_max=390)
    assert (decoded.num_bad, decoded.records) == (1, (STEP,))
    assert decode(b"a" * 300, rank=0).consumed == 0


def test_a_diverged_loss_is_kept_however_it_was_written() -> None:
    data = json.loads(wire.dumps(RankRecord, STEP))
    for text in ("NaN", "null", '"NaN"'):
        raw = json.dumps(data).replace('"loss": 8.25', f'"loss": {text}').encode() + b"\n"
        record = decode(raw, rank=0).records[0]
        assert isinstance(record, StepRecord)
        assert math.isnan(record.loss)
    raw = json.dumps(data).replace('"loss": 8.25', '"loss": Infinity').encode() + b"\n"
    assert decode(raw, rank=0).num_bad == 0


@given(st.lists(st.binary(max_size=40) | st.just(line(STEP)), max_size=12), st.integers(0, 2000))
def test_reading_in_two_parts_is_reading_at_once(parts: list[bytes], cut: int) -> None:
    data = b"".join(parts)
    whole = decode(data, rank=0)
    first = decode(data[:cut], rank=0)
    second = decode(data[first.consumed :], rank=0)
    assert first.records + second.records == whole.records
    assert first.consumed + second.consumed == whole.consumed
    assert first.num_bad + second.num_bad == whole.num_bad
