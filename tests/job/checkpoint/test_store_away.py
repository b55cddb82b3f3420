"""An object store that is away, hangs, cuts uploads short or answers with errors: training's saves wait, restores wait, nothing is
damaged. A real S3 server is stopped and started, and a proxy does to its traffic what networks do."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.core.errors import StoreUnavailable
from phalanx.job.checkpoint import whole
from phalanx.job.checkpoint.folder import folder_at
from phalanx.job.checkpoint.keeper.messages import Committed, GivenUp, Troubled, Written
from phalanx.job.checkpoint.manifest import Origin, committed, folder_name
from phalanx.job.checkpoint.object_folder import ObjectFolder, _store_of
from phalanx.job.checkpoint.restore import AT_ONCE, Patience, _choose, patiently
from phalanx.job.checkpoint.shard_file import SaveKey
from phalanx.storage.objects import open_store
from tests.job.checkpoint.keeper_places import end_keepers, ends
from tests.job.checkpoint.small_saves import put, save, steps_that_verify
from tests.job.checkpoint.test_keeper_saves import Gang
from tests.storage.meddler import Meddler, leave
from tests.storage.seaweed import BUCKET, Seaweed


@pytest.fixture
def s3_of_ours(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seaweed]:
    """A server that may be stopped, its address and keys in the environment, where keepers find them; short requests."""
    server = Seaweed(tmp_path_factory.mktemp("weed"))
    server.start()
    monkeypatch.setenv("PHALANX_CHECKPOINT_REQUEST_S", "2")
    for name, value in server.environ.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    _store_of.cache_clear()
    yield server
    server.stop(signal.SIGKILL)


def gang_at(folder: Path, url: str) -> Gang:
    gang = Gang(folder, folder)
    gang.root = folder_at(url)  # type: ignore[assignment]  # a folder of either kind
    return gang


@pytest.fixture
def gang(tmp_path: Path, s3_of_ours: Seaweed) -> Iterator[Gang]:
    gang = gang_at(tmp_path / "keepers", s3_of_ours.url())
    yield gang
    for memory in gang.memories:
        memory.leave()
    end_keepers(gang.folder)


def test_a_store_that_goes_away_for_a_while_costs_nothing_but_time(gang: Gang, s3_of_ours: Seaweed) -> None:
    gang.snapshot(1)
    gang.persist(1, patience_s=120)
    gang.until(Committed)
    gang.until(Written, rank=1)
    s3_of_ours.stop()
    gang.snapshot(2)
    gang.persist(2, patience_s=120)
    told = gang.until(Troubled)
    assert isinstance(told, Troubled) and told.reason.startswith("s3://") and "\n" not in told.reason
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in told.reason
    started_s = time.monotonic()
    gang.snapshot(3)  # training goes on meanwhile
    gang.persist(3, patience_s=120)
    assert time.monotonic() - started_s < 60, "half of the patience"
    told = gang.until(GivenUp)
    assert isinstance(told, GivenUp) and told.key.step == 2 and "step 3 is saved instead" in told.reason and not told.fenced
    s3_of_ours.start()
    for _ in range(6):  # each looks for twenty seconds
        try:
            gang.until(Committed)
            break
        except AssertionError:
            continue
    assert steps_that_verify(gang.root) == [3, 1]  # type: ignore[arg-type]  # a Folder
    entry = whole.open_checkpoint(gang.root / folder_name(3)).tensors["w"][0].entry
    assert entry.length > 0


def test_a_store_that_stays_away_is_given_up_in_bounded_time_and_the_older_one_is_found_later(
    gang: Gang, s3_of_ours: Seaweed
) -> None:
    gang.snapshot(1)
    gang.persist(1)
    gang.until(Committed)
    gang.until(Written, rank=1)
    s3_of_ours.stop()
    gang.snapshot(2)
    gang.persist(2, patience_s=1.0)
    told = gang.until(GivenUp)
    assert isinstance(told, GivenUp) and not told.fenced and "s3://" in told.reason
    gang.until(GivenUp, rank=1)
    assert all(memory.has_room() for memory in gang.memories)
    s3_of_ours.start()
    assert steps_that_verify(gang.root) == [1]  # type: ignore[arg-type]  # a Folder


def nothing(_: bytes) -> bytes:
    return b""


def cutting(at: int) -> Callable[[bytes], bytes]:
    """Lets so many bytes through, and nothing more."""
    left = at

    def cut(data: bytes) -> bytes:
        nonlocal left
        passed, left = data[:left], max(0, left - len(data))
        return passed

    return cut


def failing(data: bytes) -> bytes:
    """Every answer is an error of the server's."""
    return b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" if data.startswith(b"HTTP/") else b""


@pytest.mark.parametrize("how", ["hangs", "cuts uploads short", "answers with errors", "answers nothing"])
def test_a_keepers_save_outlives_it(how: str, meddler: Meddler, s3: Seaweed, tmp_path: Path) -> None:
    gang = gang_at(tmp_path / "keepers", s3.url())
    try:
        gang.snapshot(1)
        match how:
            case "hangs":
                meddler.sent = nothing
            case "cuts uploads short":
                meddler.sent = cutting(200_000)
            case "answers with errors":
                meddler.got = failing
            case _:
                meddler.got = nothing
        gang.persist(1, patience_s=120)
        for _ in range(3):
            try:
                told = gang.until(Troubled)
                break
            except AssertionError:
                continue
        assert isinstance(told, Troubled) and told.reason.startswith("s3://")
        assert committed(ObjectFolder(open_store(f"s3://{BUCKET}", s3.environ), gang.root.name)) == []
        meddler.sent = meddler.got = leave
        for _ in range(6):
            try:
                gang.until(Committed)
                break
            except AssertionError:
                continue
        assert steps_that_verify(gang.root) == [1]  # type: ignore[arg-type]  # a Folder
    finally:
        for memory in gang.memories:
            memory.leave()
        end_keepers(gang.folder)


def test_a_restore_waits_for_a_store_and_then_says_that_it_is_away(meddler: Meddler, s3: Seaweed) -> None:
    origin, root = Origin(config="", data="", world_size=2, layout={"dp": 2}), folder_at(s3.url())
    save(root, 1)
    meddler.sent = nothing
    tries, said = 0, list[str]()

    def pause(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            meddler.sent = leave

    found = patiently(lambda: _choose(root, origin, None, ()), Patience(600, said.append), pause)
    assert found is not None and found.manifest.step == 1 and tries == 2 and found.skipped == () and len(said) == 1
    meddler.sent = nothing
    with pytest.raises(StoreUnavailable, match="s3://"):  # not damage, and not a fresh start
        patiently(lambda: _choose(root, origin, None, ()), AT_ONCE)


def test_what_comes_damaged_over_the_network_is_named_and_not_used(meddler: Meddler, s3: Seaweed) -> None:
    root = folder_at(s3.url())
    save(root, 1)
    marker = bytes([1]) * 64
    meddler.got = lambda data: data.replace(marker, bytes([3]) + marker[1:], 1)
    from phalanx.core.errors import CheckpointError

    with pytest.raises(CheckpointError, match=r"shard-0000.*checksum"):
        whole.verify(root / folder_name(1))


def test_keepers_killed_in_the_middle_of_an_upload_leave_no_checkpoint_and_the_next_save_succeeds(
    meddler: Meddler, s3: Seaweed, tmp_path: Path
) -> None:
    root = folder_at(s3.url())
    save(root, 1)
    for number, let_through in enumerate((20_000, 150_000, 400_000)):  # in the shard of one, of both, in what follows them
        gang = gang_at(tmp_path / f"keepers-{number}", str(root))
        meddler.sent = cutting(let_through)
        gang.snapshot(2 + number)
        gang.persist(2 + number, patience_s=120)
        time.sleep(0.3)  # wherever they are by then
        for memory in gang.memories:
            os.kill(memory.keeper_pid, signal.SIGKILL)
            ends(memory.keeper_pid)
            memory.leave()
        meddler.sent = leave
        found = steps_that_verify(root)
        assert found[-1] == 1 and len(found) <= 2, found
    put(root / folder_name(9), SaveKey(step=9, save="dead"), 0)
    save(root, 10)
    assert steps_that_verify(root)[0] == 10
