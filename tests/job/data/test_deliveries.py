"""The record of deliveries as files: what a kill, a rollback, a full disk and damage make of it; and the audit of a real folder."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phalanx.core.errors import DataError, StoreUnavailable
from phalanx.core.training_data import DataSource
from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.blocks import BlockShuffle
from phalanx.job.data.deliveries import DeliveryLog, Head, content_of, read_deliveries, read_file
from phalanx.job.data.draws import DataOrder, PlainOrder, positions
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import rank_slice
from phalanx.job.data.order_facts import facts_of, order_from
from phalanx.job.data.quarantine import Quarantined, SetAside, set_aside_of
from tests.job.data.random_tokens import write_tokens

SEQUENCE = 20
PLAIN = PlainOrder(num_samples=100, seed=1, global_batch=8, shuffle=BlockShuffle(5, 3))
ASIDE = SetAside(source="data", shard="s", block=0, samples=((3, 9),), since=16)


def head(
    attempt: int = 1, rank: int = 0, world_size: int = 1, start: int = 0, order: DataOrder = PLAIN, data: TokenData | None = None
) -> Head:
    return Head(
        attempt=attempt, generation=0, rank=rank, world_size=world_size, start=start, order=facts_of(order), sequence=SEQUENCE,
        data={"data": data.manifest_hash if data else "m"}, asked=DataSource(path=str(data.folder)) if data else None,
    )  # fmt: skip


def write(folder: Path, *steps: int) -> Path:
    log = DeliveryLog(folder, head())
    for step in steps:
        rows = np.arange(step, step + 6).reshape(2, 3)
        log.delivered(step, np.zeros(2, dtype=np.int64), np.array([step, step + 1]), content_of(rows))
    log.close()
    return next(folder.iterdir())


@pytest.mark.parametrize(
    "order",
    [
        PLAIN,
        MixedOrder(
            Mixture(
                [Source("a", weight=0.3), Source("b", weight=0.7, shuffle=BlockShuffle(3, 2))],
                changes=[Change(from_step=9, weights={"a": 1})],
            ),
            {"a": 40, "b": 50}, seed=2**63 + 5, global_batch=6, cuts={"a": "x"},
        ),
    ],
)  # fmt: skip
def test_an_order_can_be_made_again_from_what_is_written(tmp_path: Path, order: DataOrder) -> None:
    DeliveryLog(tmp_path, head(order=order)).close()
    (read,) = read_deliveries(tmp_path)
    again = order_from(read.head.order)
    assert again.fingerprint(10**6) == order.fingerprint(10**6) and again.names == order.names
    asked = positions(order, 7, 4)
    assert (again.draws(asked).sample == order.draws(asked).sample).all()


def test_what_was_delivered_is_read_back_and_a_rollback_supersedes(tmp_path: Path) -> None:
    read = read_file(write(tmp_path, 0, 1, 2, 3, 2, 3, 4))
    assert read is not None and list(read.batches) == [0, 1, 2, 3, 4] and (read.superseded, read.torn_bytes) == (2, 0)
    rows = read.batches[3]
    assert rows["sample"].tolist() == [3, 4]
    assert rows["content"].tolist() == content_of(np.arange(3, 9).reshape(2, 3)).tolist()


def test_a_kill_at_any_byte_leaves_whole_batches(tmp_path: Path) -> None:
    path = write(tmp_path, 0, 1)
    whole, one = path.read_bytes(), path.stat().st_size
    for size in range(len(whole) + 1):
        os.truncate(path, one) if size > one else path.write_bytes(whole[:size])
        read = read_file(path)
        assert read is None or list(read.batches) == [0, 1][: len(read.batches)]
    assert read is not None and len(read.batches) == 2
    path.write_bytes(b"")
    assert read_file(path) is None


def test_damage_inside_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, 0, 1, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"is damaged there; restore it"):
        read_deliveries(tmp_path)
    with pytest.raises(DataError, match="holds no records of deliveries"):
        read_deliveries(tmp_path / "none")


def test_where_nothing_is_recorded_it_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no records of deliveries: ranks of a recipe .* `record: false`"):
        read_deliveries(tmp_path)
    with pytest.raises(DataError, match=r"holds no records of deliveries: the job runs a script"):
        audit_folder(tmp_path, none="the job runs a script")
    write(tmp_path / "deliveries", 0).write_bytes(b"\1\0")
    with pytest.raises(DataError, match=r"not even one whole head"):
        audit_folder(tmp_path)


def test_one_rank_of_one_generation_records_once(tmp_path: Path) -> None:
    write(tmp_path, 0)
    with pytest.raises(DataError, match="give each attempt a number of its own"):
        DeliveryLog(tmp_path, head())


def refusing(monkeypatch: pytest.MonkeyPatch, *kinds: int) -> list[int]:
    """A disk that does not take frames of these kinds, as a nearly full one does not take large ones; may be emptied."""
    refused, write = list(kinds), os.pwrite

    def pwrite(file: int, data: bytes, at: int) -> int:
        if data[0] in refused:
            raise OSError(errno.ENOSPC, "no space left")
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return refused


def test_a_head_without_room_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, 1)
    with pytest.raises(StoreUnavailable, match="no space left"):
        DeliveryLog(tmp_path, head())
    assert list(tmp_path.iterdir()) == []


def test_a_batch_is_lost_where_what_was_set_aside_before_it_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, told = refusing(monkeypatch, 2), list[int]()
    log, none = DeliveryLog(tmp_path, head(), lambda step, why: told.append(step)), np.zeros(1, dtype=np.int64)
    for step in range(4):
        if step == 3:
            refused.clear()
        log.set_aside((ASIDE,) if step else ())
        log.delivered(step, none, none, none.astype(np.uint64))
    log.close()
    (found,) = read_deliveries(tmp_path)
    assert (sorted(found.batches), found.lost, found.set_aside, told) == ([0, 3], 2, (ASIDE,), [1])


def test_a_full_disk_costs_evidence_and_no_step(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that takes half a frame and no more."""
    code = f"""
import resource, signal
from pathlib import Path
import numpy as np
from tests.job.data.test_deliveries import DeliveryLog, head, read_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
told = []
log = DeliveryLog(Path({str(tmp_path)!r}), head(), lambda step, why: told.append((step, why)))
path = next(Path({str(tmp_path)!r}).iterdir())
def deliver(step):
    log.delivered(step, np.zeros(9, dtype=np.int64), np.arange(9), np.zeros(9, dtype=np.uint64))
deliver(0)
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
deliver(1)
deliver(2)
assert (log.lost, path.stat().st_size) == (2, size), (log.lost, path.stat().st_size, size)
assert read_file(path).lost == 2, "which is written where it is full"
assert [step for step, _ in told] == [1], told
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
deliver(3)
assert (list(read_file(path).batches), read_file(path).lost) == ([0, 3], 2)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "deliveries cannot be recorded" in done.stderr


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("audited") / "data"
    write_tokens(folder, [900, 1100])
    return open_data(folder)


def run(job: Path, data: TokenData, order: DataOrder, attempt: int, world_size: int, steps: range) -> None:
    """As ranks do: what is recorded is what was gathered."""
    for rank in range(world_size):
        log = DeliveryLog(job / "deliveries", head(attempt, rank, world_size, steps.start, order, data))
        log.set_aside(set_aside_of(order))
        for step in steps:
            mine = order.draws(rank_slice(positions(order, step), rank, world_size))
            log.delivered(step, mine.source, mine.sample, content_of(data.gather("train", mine.sample, SEQUENCE)))
        log.close()


def test_a_folder_is_audited_against_its_data(tokens: TokenData, tmp_path: Path) -> None:
    order = PlainOrder(num_samples=tokens.num_samples("train", SEQUENCE), seed=4, global_batch=8)
    held = Quarantined(order, [ASIDE], 0.5)
    (tmp_path / "checkpoints").mkdir()
    run(tmp_path, tokens, order, 1, 3, range(5))
    run(tmp_path, tokens, held, 2, 2, range(4, 30))
    seen: list[tuple[int, int]] = []
    for place in (tmp_path, tmp_path / "checkpoints", tmp_path / "deliveries"):
        found = audit_folder(place, progress=lambda done, total: seen.append((done, total)))
        assert (found.complete, found.steps, found.contents, found.set_aside) == (True, 30, "compared", 1)
        assert found.sources[0].epochs == 2 and found.sources[0].replaced > 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert audit_folder(tmp_path, compare=False).contents.startswith("not compared")


def test_other_tokens_under_the_right_name_are_found(tokens: TokenData, tmp_path: Path) -> None:
    """The manifest in place is that of the run, and what the run was given was another sample's text."""
    order = PlainOrder(num_samples=tokens.num_samples("train", SEQUENCE), seed=4, global_batch=8)
    log = DeliveryLog(tmp_path / "deliveries", head(order=order, data=tokens))
    for step in range(3):
        mine = order.draws(positions(order, step))
        given = mine.sample.copy()
        if step == 1:
            given[5] = given[6]
        log.delivered(step, mine.source, mine.sample, content_of(tokens.gather("train", given, SEQUENCE)))
    found = audit_folder(tmp_path)
    assert found.fault is not None and (found.fault.kind, found.fault.step, found.fault.rank) == ("content", 2, 0)
    assert found.fault.sample == int(order.draws(positions(order, 1)).sample[5])


def test_damaged_data_leaves_the_verdict_on_the_order(tokens: TokenData, tmp_path: Path) -> None:
    """A flipped byte, which is met when it is read, then a shard that is cut, with which nothing opens."""
    shutil.copytree(tokens.folder, data := tmp_path / "copy")
    order = PlainOrder(num_samples=tokens.num_samples("train", SEQUENCE), seed=4, global_batch=8)
    run(tmp_path, open_data(data), order, 1, 2, range(20))
    shard = data / next(shard.bin.name for shard in tokens.manifest.shards if shard.split == "train")
    whole = bytearray(shard.read_bytes())
    whole[100] ^= 1
    for damage in (bytes(whole), bytes(whole[:-2])):
        shard.write_bytes(damage)
        found = audit_folder(tmp_path)
        assert (found.complete, found.steps, found.damaged) == (True, 20, shard.name), found
        assert found.contents.startswith(f"damaged: {shard.name}") and found.contents.endswith("; nothing compared")
    log = sorted((tmp_path / "deliveries").iterdir())[0]
    os.truncate(log, log.stat().st_size // 2)
    found = audit_folder(tmp_path)
    assert found.fault is not None and found.fault.kind == "missing" and found.damaged == shard.name


def test_data_of_a_store_is_compared_where_it_can_be_read(tokens: TokenData, tmp_path: Path) -> None:
    order = PlainOrder(num_samples=tokens.num_samples("train", SEQUENCE), seed=4, global_batch=8)
    run(tmp_path, tokens, order, 1, 1, range(2))
    for attempt, path, says in (
        (2, tokens.folder.as_uri(), "compared"),
        (3, "nowhere://bucket/corpus", "not compared: data is 'nowhere://bucket/corpus'"),
    ):
        asked = DataSource(path=path)
        DeliveryLog(tmp_path / "deliveries", replace(head(attempt, 0, 1, 2, order, tokens), asked=asked)).close()
        found = audit_folder(tmp_path)
        assert found.complete and found.contents.startswith(says), found.contents


def test_data_that_is_gone_or_another_one_is_said(tokens: TokenData, tmp_path: Path) -> None:
    other = tmp_path / "moved"
    shutil.copytree(tokens.folder, other)
    order = PlainOrder(num_samples=tokens.num_samples("train", SEQUENCE), seed=4, global_batch=8)
    run(tmp_path, open_data(other), order, 1, 1, range(2))
    shutil.rmtree(other)
    found = audit_folder(tmp_path)
    assert found.complete and found.contents == f"not compared: data is not on this machine ({other})"
    write_tokens(other, [900, 1100], seed=9)
    with pytest.raises(DataError, match="is not the data that the run has read"):
        audit_folder(tmp_path)
