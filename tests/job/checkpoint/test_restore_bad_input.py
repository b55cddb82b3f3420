"""What may be wrong when a checkpoint is loaded, on a disk and in a real S3 server: each is one clear error or a recovery."""

from dataclasses import replace

import pytest
import torch

from phalanx.core.errors import CheckpointError, StoreUnavailable
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.folder import Folder, folder_at
from phalanx.job.checkpoint.manifest import MANIFEST, folder_name
from phalanx.job.checkpoint.restore import Patience, _choose, load_state, patiently
from phalanx.job.checkpoint.shard_file import Damaged
from phalanx.job.checkpoint.whole import open_checkpoint
from tests.job.checkpoint.small_saves import LENGTH, RANKS, content, save
from tests.storage.meddler import Meddler, leave
from tests.storage.seaweed import Seaweed

ORIGIN = content().origin


def empty(length: int = RANKS * LENGTH, dtype: torch.dtype = torch.uint8, name: str = "w") -> dict[str, torch.Tensor]:
    return {name: torch.zeros(length, dtype=dtype)}


def test_fewer_ranks_than_shards_load_all_of_them(root: Folder) -> None:
    save(root, 7)
    state = empty()
    load_state(open_checkpoint(root / folder_name(7)), state)  # one process, what two ranks wrote
    assert bool((state["w"] == 7).all())


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (empty(name="v"), "part of this run but not saved|saved but not part of this run"),
        (empty(length=10), r"is saved as U8 \(200000,\), this run has U8 \(10,\)"),
        (empty(dtype=torch.int8), "is saved as U8 .* this run has I8"),
    ],
)
def test_another_model_s_tensors_are_refused_before_anything_is_changed(
    root: Folder, state: dict[str, torch.Tensor], said: str
) -> None:
    save(root, 1)
    with pytest.raises(CheckpointError, match=said):
        load_state(open_checkpoint(root / folder_name(1)), state)
    assert all(not tensor.any() for tensor in state.values())


def test_another_model_s_checkpoint_is_refused_and_never_skipped(root: Folder) -> None:
    save(root, 1)
    save(root, 2)
    for other, said in ((replace(ORIGIN, config="another"), "config of checkpoint"), (replace(ORIGIN, data="another"), "data of")):
        with pytest.raises(CheckpointError, match=f"{said}.*step-00000002") as caught:
            _choose(root, other, None, ())
        assert not isinstance(caught.value, Damaged)


def test_a_manifest_that_was_copied_from_elsewhere_is_named_and_the_one_before_is_used(root: Folder) -> None:
    save(root, 1)
    save(root, 2, "b")
    elsewhere = root / "elsewhere"
    save(elsewhere, 9, "c")
    foreign = (elsewhere / folder_name(9)).read(MANIFEST, 2**20)
    (root / folder_name(2)).write(MANIFEST, foreign)
    found = _choose(root, ORIGIN, None, ())
    assert found is not None and found.name == "step-00000001" and len(found.skipped) == 1
    assert found.skipped[0].startswith("step-00000002/part-00000-c.json is missing")


def test_all_damaged_is_an_error_and_no_fresh_start(root: Folder) -> None:
    for step in (1, 2):
        save(root, step)
        (root / folder_name(step)).remove("shard-00000-a.safetensors")
    with pytest.raises(CheckpointError, match=r"every one is damaged.*step-00000002/shard-00000.*step-00000001/shard-00000"):
        _choose(root, ORIGIN, None, ())


def test_nothing_committed_is_a_fresh_start(root: Folder) -> None:
    assert _choose(root, ORIGIN, None, ()) is None
    (root / folder_name(3)).write("part-00000-x.json", b"{}")
    assert _choose(root, ORIGIN, None, ()) is None and manifest.committed(root) == []


def test_a_store_that_goes_away_in_the_middle_of_a_restore_is_waited_for(meddler: Meddler, s3: Seaweed) -> None:
    root = folder_at(s3.url())
    save(root, 5)
    checkpoint, state = open_checkpoint(root / folder_name(5)), empty()
    left = 150_000  # of 200,000: one rank's part has come

    def stops(data: bytes) -> bytes:
        nonlocal left
        passed, left = data[: max(left, 0)], left - len(data)
        return passed

    meddler.got = stops
    with pytest.raises(StoreUnavailable, match="s3://"):
        load_state(checkpoint, state)

    def back(_: float) -> None:
        meddler.got = leave

    said: list[str] = []
    patiently(lambda: load_state(checkpoint, state), Patience(600, said.append), back)
    assert len(said) == 1 and "s3://" in said[0]
    assert bool((state["w"] == 5).all())


def test_a_part_lost_between_the_look_and_the_reading_is_damage(s3: Seaweed) -> None:
    root = folder_at(s3.url())
    save(root, 1)
    checkpoint = open_checkpoint(root / folder_name(1))
    (root / folder_name(1)).remove("shard-00001-a.safetensors")
    with pytest.raises(Damaged, match=r"shard-00001-a\.safetensors.*is missing"):
        load_state(checkpoint, empty())
