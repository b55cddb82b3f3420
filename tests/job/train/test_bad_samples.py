"""Damaged samples in tars under their loader, and the proof of what it gave: by the same rules as tokens."""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from phalanx.core.errors import DataError
from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.deliveries import DeliveryLog
from phalanx.job.data.draws import PlainOrder, positions
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Mixture, Source
from phalanx.job.data.push import push_into
from phalanx.job.data.quarantine import SetAside
from phalanx.job.data.sound import BadData
from phalanx.job.data.tars.open import Sample, SampleData, open_samples, samples_in
from phalanx.job.data.tars.pack import pack
from phalanx.job.data.tars.stored import tars_in
from phalanx.job.train.field_datasets import FieldBatches, FieldLoader
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.objects import open_store
from tests.job.data.image_folders import write_images
from tests.job.train.test_bad_data import Meeting

BATCH, STEPS = 6, 25
"""Of 60 samples: two epochs and a half."""
BAD = (7, 40)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    folder = tmp_path_factory.mktemp("bad_samples")
    write_images(folder / "images")
    pack(folder / "images", folder / "whole")
    return open_samples(folder / "whole")


@pytest.fixture
def folder(whole: SampleData, tmp_path: Path) -> Path:
    """A copy with two damaged samples."""
    shutil.copytree(whole.place, tmp_path / "data")
    damage(tmp_path / "data", whole, BAD)
    return tmp_path / "data"


@pytest.fixture
def order(whole: SampleData) -> PlainOrder:
    return PlainOrder(num_samples=len(whole), seed=1, global_batch=BATCH)


def damage(folder: Path, data: SampleData, numbers: Sequence[int]) -> None:
    for number in numbers:
        with (folder / "samples-00000.tar").open("r+b") as file:
            file.seek(data.asked([number])[0].places["png"].offset + 9)
            file.write(b"\xff\xfe\xff\xfe")


def given(sample: Sample) -> tuple[int, bytes]:
    return sample.number, sample.fields["png"]


def batches(data: Any, order: Any, stop: int = STEPS, **more: Any) -> FieldBatches:
    return FieldBatches(data, order, given, None, stop, collate=list, **more)


def drawn(order: PlainOrder, step: int) -> list[int]:
    found: list[int] = order.draws(positions(order, step)).sample.tolist()
    return found


def met_first(order: PlainOrder) -> int:
    return next(step for step in range(STEPS) if set(BAD) & set(drawn(order, step)))


QUARANTINE = BadData(policy="quarantine", share_max=0.1)


def test_by_default_a_damaged_sample_ends_the_run_at_its_step(folder: Path, order: PlainOrder) -> None:
    dataset = batches(open_samples(folder), order)
    seen: list[Any] = []
    with pytest.raises(BadBlock, match=r"samples-00000\.tar.*\.png.*are damaged"):
        seen.extend(DataLoader(dataset, batch_size=None))
    assert len(seen) == met_first(order) == dataset.state_dict()["delivered"] // BATCH
    assert [[number for number, _ in batch] for batch in seen] == [drawn(order, step) for step in range(len(seen))]


def test_a_run_goes_on_without_them_and_its_state_says_so(folder: Path, whole: SampleData, order: PlainOrder) -> None:
    dataset = batches(open_samples(folder), order, bad_data=QUARANTINE)
    found = list(dataset)
    for step, batch in enumerate(found):
        assert [got == was for (got, _), was in zip(batch, drawn(order, step), strict=True)] == [
            was not in BAD for was in drawn(order, step)
        ]
        assert batch == [given(whole.read(number)) for number, _ in batch] and not {number for number, _ in batch} & set(BAD)
    state = json.loads(json.dumps(dataset.state_dict()))
    firsts = {bad: next(step for step in range(STEPS) if bad in drawn(order, step)) for bad in BAD}
    assert state["format"] == 2 and {
        (aside["source"], aside["block"], aside["since"], *aside["samples"][0]) for aside in state["quarantine"]
    } == {("data", bad, step * BATCH, bad, bad + 1) for bad, step in firsts.items()}

    data, end = open_samples(folder), STEPS + 9
    resumed, on = batches(data, order, end), batches(whole, order, end, bad_data=QUARANTINE)
    loader = FieldLoader(data, order, given, None, end, collate_fn=list)
    for one in (resumed, on, loader):  # of which two would stop at damage, and the other has a whole copy
        one.load_state_dict(state)
    assert list(resumed) == list(on) == list(loader)


def gang(
    damaged: Path, whole: SampleData, job: Path, order: PlainOrder, attempt: int, size: int, stop: int, state: dict[str, Any] | None
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Only the first rank's copy is damaged, so that the others would never know; the records name the whole one."""
    meeting = Meeting(size)

    def rank_of(rank: int) -> tuple[list[Any], dict[str, Any]]:
        data = open_samples(damaged) if rank == 0 else whole
        policy = BadData(policy="quarantine", share_max=0.1, agree=meeting.of(rank))
        dataset = batches(data, order, stop, rank=rank, world_size=size, bad_data=policy, threads=1)
        dataset.load_state_dict(state or dataset.state_dict())
        with closing(DeliveryLog(job / "deliveries", dataset.head(attempt))) as log:
            dataset.record(log)
            return list(dataset), dataset.state_dict()

    with ThreadPoolExecutor(size) as pool:
        ranks = list(pool.map(rank_of, range(size)))
    assert all(found == ranks[0][1] for _, found in ranks)
    return [[item for part in parts for item in part] for parts in zip(*(found for found, _ in ranks), strict=True)], ranks[0][1]


def test_ranks_agree_and_the_audit_of_all_of_it_is_complete(
    folder: Path, whole: SampleData, order: PlainOrder, tmp_path: Path
) -> None:
    """Over a resize: the samples are those of an undisturbed run with the same set aside, and each epoch has each of them once."""
    first, state = gang(folder, whole, tmp_path, order, 1, 3, STEPS - 8, None)
    then, end = gang(folder, whole, tmp_path, order, 2, 2, STEPS, state)
    assert 1 <= len(end["quarantine"]) <= 2
    alone = batches(whole, order, bad_data=QUARANTINE)
    alone.load_state_dict({**end, "delivered": 0, "data": {}, "order": alone.state_dict()["order"]})
    assert first + then == list(alone)
    shutil.rmtree(folder)
    shutil.copytree(whole.place, folder)  # restored by the time of the audit
    found = audit_folder(tmp_path)
    assert (found.complete, found.steps, found.set_aside) == (True, STEPS, len(end["quarantine"])), found.says
    assert found.contents == "compared" and "2 whole epochs of data, each sample exactly once" in found.says
    assert found.sources[0].replaced > 0


def recorded(data: SampleData, order: PlainOrder, job: Path, attempt: int = 1, **more: Any) -> FieldBatches:
    dataset = batches(data, order, **more)
    with closing(DeliveryLog(job / "deliveries", dataset.head(attempt))) as log:
        dataset.record(log)
        assert len(list(dataset)) == STEPS
    return dataset


def test_an_audit_names_the_first_sample_that_had_other_bytes(whole: SampleData, order: PlainOrder, tmp_path: Path) -> None:
    dataset = batches(whole, order)
    with closing(DeliveryLog(tmp_path / "deliveries", dataset.head(1))) as log:
        for step in range(9):
            mine = order.draws(positions(order, step))
            came = mine.sample if step < 6 else mine.sample[::-1]
            log.delivered(step, mine.source, mine.sample, whole.contents(came.tolist()))
    found = audit_folder(tmp_path)
    assert found.fault is not None and (found.fault.kind, found.fault.step) == ("content", 7)
    assert found.fault.sample == drawn(order, 6)[0] and "other contents" in found.says


def test_an_audit_compares_just_the_fields_that_were_read(whole: SampleData, order: PlainOrder, tmp_path: Path) -> None:
    recorded(whole, order, tmp_path, fields=["png"])
    found = audit_folder(tmp_path)
    assert (found.complete, found.contents) == (True, "compared"), found.says
    assert whole.read(3, ["png"]).content != whole.read(3).content == int(whole.contents([3])[0])
    with pytest.raises(DataError, match="has the deliveries of this rank already"):
        recorded(whole, order, tmp_path)


def test_in_which_order_a_rank_asks_for_fields_is_all_the_same(whole: SampleData, order: PlainOrder) -> None:
    """For their content is, too, and an audit holds the heads of the ranks against each other."""
    assert batches(whole, order, fields=["png", "cls"]).head(1) == batches(whole, order, fields=["cls", "png", "cls"]).head(1)
    assert whole.read(3, ["png", "cls"]).content == whole.read(3, ["cls", "png"]).content


def test_a_run_that_goes_on_with_other_fields_is_compared_by_those_of_each_attempt(
    whole: SampleData, order: PlainOrder, tmp_path: Path
) -> None:
    state: dict[str, Any] | None = None
    for attempt, fields in enumerate((["png"], None, ["cls", "png"]), start=1):
        dataset = batches(whole, order, 2 * attempt, fields=fields)
        dataset.load_state_dict(state or dataset.state_dict())
        with closing(DeliveryLog(tmp_path / "deliveries", dataset.head(attempt))) as log:
            dataset.record(log)
            assert len(list(dataset)) == 2
        state = dataset.state_dict()
    found = audit_folder(tmp_path)
    assert (found.complete, found.contents, found.steps) == (True, "compared", 6), found.says


def test_what_lies_elsewhere_or_is_other_data_by_now_is_said(
    folder: Path, whole: SampleData, order: PlainOrder, tmp_path: Path
) -> None:
    recorded(open_samples(folder), order, tmp_path, bad_data=QUARANTINE)
    folder.rename(tmp_path / "moved")
    found = audit_folder(tmp_path)
    assert found.complete and found.contents == f"not compared: data is not on this machine ({folder})"
    write_images(tmp_path / "images", each=3)
    pack(tmp_path / "images", folder)
    with pytest.raises(DataError, match="is not the data that the run has read"):
        audit_folder(tmp_path)
    assert audit_folder(tmp_path, compare=False).complete


def test_all_that_is_damaged_in_a_batch_is_set_aside_at_once(folder: Path, whole: SampleData, order: PlainOrder) -> None:
    step = 2
    damage(folder, whole, drawn(order, step)[1:4])
    told: list[tuple[int, list[int]]] = []

    def tell(at: int, found: Sequence[SetAside]) -> None:
        told.append((at, sorted(one.block for one in found)))

    dataset = batches(open_samples(folder), order, step + 1, bad_data=replace(QUARANTINE, told=tell))
    assert len(list(dataset)) == step + 1
    assert (step + 1, sorted({*drawn(order, step)[1:4], *(set(BAD) & set(drawn(order, step)))})) in told


def test_a_mixture_goes_on_without_a_sample_of_one_source_whose_tars_lie_in_a_store(
    folder: Path, whole: SampleData, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "store")
    push_into(Path(whole.place), store)
    shutil.copy(folder / "samples-00000.tar", tmp_path / "store")
    write_images(tmp_path / "images", side=7)
    pack(tmp_path / "images", tmp_path / "near")
    near = open_samples(tmp_path / "near")
    mixture = Mixture([Source("far", weight=3), Source("near", weight=1)])
    order = MixedOrder(mixture, {"far": 60, "near": 60}, seed=1, global_batch=BATCH)
    with closing(NodeCache(tmp_path / "cache", 2**25)) as cache:
        far = samples_in(*tars_in(store, cache))
        dataset = batches({"far": far, "near": near}, order, bad_data=QUARANTINE)
        asked = replace(dataset.head(1), asked=batches({"far": whole, "near": near}, order).head(1).asked)
        with closing(DeliveryLog(tmp_path / "deliveries", asked)) as log:
            dataset.record(log)
            assert [len(batch) for batch in dataset] == [BATCH] * STEPS
    aside = [(one["source"], one["block"]) for one in dataset.state_dict()["quarantine"]]
    assert sorted(aside) == [("far", 7), ("far", 40)]
    found = audit_folder(tmp_path)
    assert (found.complete, found.contents) == (True, "compared"), found.says
    assert [source.replaced > 0 for source in found.sources] == [True, False]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nobody to agree with": ({"world_size": 2, "bad_data": QUARANTINE}, "2 ranks must set the same blocks aside"),
    "too much": ({"bad_data": BadData(policy="quarantine")}, r"quarantine of data.*1 of 60 samples.*1 % may be replaced"),
}


@pytest.mark.parametrize(("more", "message"), REFUSED.values(), ids=REFUSED)
def test_what_may_not_be_set_aside_ends_the_run(folder: Path, order: PlainOrder, more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(batches(open_samples(folder), order, **more))


def test_a_block_names_the_sample_in_each_tar_of_these_bytes(whole: SampleData) -> None:
    sha256 = whole.manifest.shards[0].tar_sha256
    block = Block(data=whole.manifest_hash, shard=sha256, block=7)
    assert whole.touching(block) == ((7, 8),) and whole.touching(replace(block, block=59)) == ((59, 60),)
    twice = SampleData(whole.tars, replace(whole.manifest, samples=120, shards=whole.manifest.shards * 2), whole.manifest_hash)
    assert twice.touching(block) == ((7, 8), (67, 68))
    for other in ({"data": "other"}, {"shard": "other"}, {"block": 60}, {"block": -1}):
        assert whole.touching(replace(block, **other)) == ()


def test_epochs_of_a_trainer_and_their_length_are_those_of_tokens(whole: SampleData, order: PlainOrder) -> None:
    dataset = batches(whole, order, 10, epoch_steps=4)
    assert (len(dataset), [len(list(dataset)) for _ in range(4)]) == (4, [4, 4, 2, 0])
    with pytest.raises(TypeError, match="have no length"):
        len(FieldBatches(whole, order, given))
