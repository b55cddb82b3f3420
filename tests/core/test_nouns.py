"""Units, ids, devices and the wire."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import wire
from phalanx.core.devices import DeviceRequest, NodeSlice, Placement, parse_devices
from phalanx.core.errors import Exit, NotFound, PhalanxError, UserError, WorldError
from phalanx.core.ids import AttemptId, JobId, NodeId, attempt_id, split_attempt
from phalanx.core.messages import Chunk, FromAgent, Renew
from phalanx.core.records import Metric, RankRecord
from phalanx.core.units import device_seconds, duration_ms, show_amount, show_duration, show_size, size_bytes, write_duration


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("1.5h", 5_400_000), ("2d", 172_800_000), ("250ms", 250)])
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@given(st.integers(0, 10**15) | st.integers(0, 10**6).map(lambda minutes: 60_000 * minutes))
def test_what_people_are_told_to_write_is_read_as_the_same(ms: int) -> None:
    assert duration_ms(write_duration(ms)) == ms


def test_durations_are_written_as_people_do() -> None:
    written = [write_duration(ms) for ms in (86_340_000, 14_400_000, 86_400_000, 2_592_000_000, 90_000, 1500, 0)]
    assert written == ["1439m", "4h", "24h", "30d", "90s", "1500ms", "0h"]


@pytest.mark.parametrize(("text", "size"), [("16GiB", 2**34), ("80GB", 80 * 10**9), ("1024", 1024)])
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "s", "-1s", "1e3s", "1 week", "٣s"])
def test_units_refuse_what_they_do_not_know(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration"):
        duration_ms(text)


def test_people_read_units() -> None:
    assert [show_duration(ms) for ms in (4_200, 200_000, 3_720_000, 90_000_000)] == ["4.2s", "3m 20s", "1h 02m", "1d 01h"]
    assert [show_amount(value) for value in (0.0166, 0.01, 0, 12.345, 100, 4999.94, 1_234_567.8)] == [
        "0.0166", "0.01", "0", "12.35", "100", "4999.9", "1234567.8",
    ]  # fmt: skip
    assert [show_amount(value) for value in (1e-300, 0.99999, 2 / 3)] == ["0", "1", "0.6667"]
    assert [show_size(size) for size in (10, 1023, 3_435_973_837, 2**41)] == ["10 B", "1023 B", "3.2 GiB", "2.0 TiB"]
    assert device_seconds(2_000 * 1_500) == 3.0


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_attempt_ids_split_where_they_were_joined(sequence: int, number: int) -> None:
    job = JobId(f"tiny-lm-{sequence}")
    assert split_attempt(attempt_id(job, number)) == (job, number)


@pytest.mark.parametrize("text", ["", "x", "x-1", "../x-1.1", "x-1.1/..", "X-1.1", "x-1.1\n"])
def test_hostile_attempt_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an attempt id"):
        split_attempt(AttemptId(text))


def test_device_requests() -> None:
    assert parse_devices("H100:8") == DeviceRequest(("H100",), 8)
    assert parse_devices("H100|A100-80 | H100:8") == DeviceRequest(("H100", "A100-80"), 8)
    assert parse_devices("2") == DeviceRequest((), 2)
    assert parse_devices("L4:0.25") == DeviceRequest(("L4",), 1, 250)
    for text in ("8xH100", "0", "0.0", "1.5", "|A:1", "H100:"):
        with pytest.raises(ValueError, match="TYPE:COUNT"):
            parse_devices(text)


def test_world_size_counts_every_device() -> None:
    assert Placement((NodeSlice(NodeId("a"), (0, 1)), NodeSlice(NodeId("b"), (3,)))).world_size == 3


def test_unions_travel_by_their_tag_and_unknown_keys_are_dropped() -> None:
    assert wire.loads(FromAgent, b'{"kind":"renew","number":3,"from_a_newer_agent":1}') == Renew(3)
    chunk = Chunk("log", AttemptId("x-1.1"), 0, 0, "")
    assert wire.loads(FromAgent, wire.dumps(FromAgent, chunk)) == chunk


@pytest.mark.parametrize("text", ["", "{}", '{"kind":"none"}', '{"kind":"renew"}', '{"kind":"renew","number":"x"}'])
def test_malformed_messages_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        wire.loads(FromAgent, text)


def test_errors_come_in_three_kinds_with_exit_codes() -> None:
    error = NotFound("job", "x-9", "run `phalanx ls`")
    assert isinstance(error, UserError)
    assert (str(error), error.exit_code) == ("job: 'x-9': run `phalanx ls`", Exit.NOT_FOUND)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.field, again.value, again.fix) == (NotFound, "job", "x-9", "run `phalanx ls`")
    assert (WorldError("away").exit_code, PhalanxError.exit_code) == (Exit.UNREACHABLE, Exit.BUG)


def test_a_loss_that_is_no_number_travels() -> None:
    metric = Metric(rank=0, step=1, name="val_loss", value=math.inf, at_ms=0)
    assert wire.loads(RankRecord, wire.dumps(RankRecord, metric)) == metric
