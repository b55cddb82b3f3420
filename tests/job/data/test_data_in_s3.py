"""Prepared data in a real S3 server: pushed, opened by its URL, read and streamed; and what the server refuses."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from phalanx.core.data_asked import ForeseeAsked
from phalanx.core.errors import DataError, SetupError, StoreUnavailable
from phalanx.core.training_data import Blocks, DataCache, DataSource, MixtureSource
from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.deliveries import DeliveryLog, Head, content_of
from phalanx.job.data.draws import PlainOrder, positions, rows_of_rank
from phalanx.job.data.foreseen import foreseen
from phalanx.job.data.open import open_data
from phalanx.job.data.order_facts import facts_of
from phalanx.job.data.push import push, pushed
from phalanx.job.data.shown import shown_unread, verified
from phalanx.job.data.store_source import StoreSource
from phalanx.job.data.stored import open_stored
from phalanx.job.data.stream import BatchStream
from phalanx.job.data.tars.open import open_samples
from phalanx.job.data.tars.stream import Making, sample_stream
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.hedged import HedgedReads
from phalanx.storage.objects import open_store
from phalanx.storage.remote import Patience
from tests.job.data.random_tokens import write_tokens
from tests.job.data.test_stored_samples import write_samples
from tests.storage.conftest import seaweed as seaweed
from tests.storage.meddler import Meddler
from tests.storage.seaweed import Seaweed, free_ports

SIZES = [6 * 2**20 - 7, 5000, 2**20]
"""Tokens: shards of 12, 1 and 2 blocks."""
SEQUENCE = 999
BRIEF = Patience(connect_s=1.0, request_s=2.0, retries_s=0.3, retries_max=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_s3") / "data"
    write_tokens(folder, SIZES)
    return folder


@pytest.fixture
def s3(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """The server, with its address and keys in the environment, as ranks find them."""
    for name, value in seaweed.environ.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    return seaweed


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[NodeCache]:
    cache = NodeCache(tmp_path / "cache", 64 * 2**20)
    yield cache
    cache.close()


def test_a_pushed_data_set_is_opened_by_its_url_and_is_the_same(folder: Path, s3: Seaweed, cache: NodeCache) -> None:
    url, there = s3.url(), open_data(folder)
    told = pushed(folder, url, lambda *_: None)
    lies = [path.stat().st_size for path in folder.iterdir()]
    assert (told["place"], told["manifest_hash"], told["files"], told["size_bytes"]) == (
        url, there.manifest_hash, len(lies), sum(lies),
    )  # fmt: skip
    data = open_data(url, verify=True, cache=cache)
    assert (data.manifest_hash, data.vocab_size) == (there.manifest_hash, there.vocab_size)
    order = rows_of_rank(PlainOrder(num_samples=there.num_samples("train", SEQUENCE), seed=3, global_batch=8))
    with BatchStream(data, "train", SEQUENCE, order, stop=60) as stream:
        for step, rows in enumerate(stream):
            assert (rows == there.gather("train", order(step), SEQUENCE)).all()


def test_data_in_a_store_is_shown_by_little_of_it(
    prepared_once: Path, s3: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_DATA_CACHE", str(tmp_path / "cache"))
    push(prepared_once, url := s3.url())
    found, here = shown_unread(url), shown_unread(prepared_once)
    assert found == {**here, "path": url, "samples": here["samples"][:1]}
    assert len(here["samples"]) > 1 and found["lengths"]["counted"] == found["splits"]["train"]["documents"]


def test_a_run_over_a_store_is_audited_with_its_contents(folder: Path, s3: Seaweed, tmp_path: Path) -> None:
    """Through a cache of another place and size than the run's, which is not on this machine."""
    url, there = s3.url(), open_data(folder)
    push(folder, url)
    asked = DataSource(path=url, cache=DataCache(folder="/of/another/node", limit="9MiB"))
    order = PlainOrder(num_samples=there.num_samples("train", SEQUENCE), seed=3, global_batch=8)
    log = DeliveryLog(
        tmp_path / "deliveries",
        Head(
            attempt=1, generation=0, rank=0, world_size=1, start=0, sequence=SEQUENCE, data={"data": there.manifest_hash},
            asked=asked, order=facts_of(order),
        ),
    )  # fmt: skip
    with_limit = {"PHALANX_DATA_CACHE": str(tmp_path / "audited"), "PHALANX_DATA_CACHE_LIMIT": "26MB"}
    for step in range(9):
        mine = order.draws(positions(order, step))
        given = mine.sample if step < 8 else mine.sample[::-1]
        log.delivered(step, mine.source, mine.sample, content_of(there.gather("train", given, SEQUENCE)))
    log.close()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in with_limit.items():
            patched.setenv(name, value)
        found = audit_folder(tmp_path)
    assert found.contents == "compared"
    assert found.fault is not None and (found.fault.kind, found.fault.step) == ("content", 9)


def test_pushed_samples_are_opened_by_their_url_and_are_the_same(s3: Seaweed, cache: NodeCache, tmp_path: Path) -> None:
    """In a tar of two units, and one that is shown and verified where it lies."""
    url = s3.url()
    write_samples(tmp_path / "samples")
    there = open_samples(tmp_path / "samples")
    assert push(tmp_path / "samples", url) == url
    data = open_samples(url, cache=cache)
    order = PlainOrder(num_samples=len(there), seed=3, global_batch=8)
    of = (order, Making(decode=lambda sample: (sample.number, sample.key, sample.fields)), list)
    with sample_stream(data, *of, stop=6) as far, sample_stream(there, *of, stop=6) as near:
        assert data.manifest_hash == there.manifest_hash and list(far) == list(near)
    found = verified(url)
    assert (found["samples"], found["checksums_ok"], found["path"]) == (len(there), True, url)
    asked = DataSource(path=url, cache=DataCache(folder=str(cache.folder)))
    head = Head(
        attempt=1, generation=0, rank=0, world_size=1, start=0, sequence=0, fields=("cls",), data={"data": data.manifest_hash},
        asked=asked, order=facts_of(order),
    )  # fmt: skip
    with closing(DeliveryLog(tmp_path / "deliveries", head)) as log:
        for step in range(4):
            mine = order.draws(positions(order, step))
            log.delivered(step, mine.source, mine.sample, there.contents(mine.sample.tolist(), ["cls"]))
    told = audit_folder(tmp_path)
    assert (told.complete, told.contents) == (True, "compared") and "1 whole epoch of data" in told.says


def test_what_is_not_there_or_not_allowed_says_what_to_change(
    folder: Path, s3: Seaweed, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.url()
    with pytest.raises(DataError, match=rf"{url}.*is no prepared data; name another place"):
        open_data(url, cache=cache)
    push(folder, url)
    data = open_data(url, cache=cache)
    open_store(url).delete("train-00000.bin")
    with pytest.raises(DataError, match=rf"{url}/train-00000\.bin is not there; put the data there again"):
        data.gather("train", np.array([0]), SEQUENCE)
    with pytest.raises(SetupError, match="there is no bucket 'nowhere'; make it, or name another"):
        open_data("s3://nowhere/data", cache=cache)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(SetupError, match=r"refuses these credentials.*check AWS_ACCESS_KEY_ID"):
        open_data(url, cache=cache)


def test_a_server_that_goes_away_is_tried_again_and_then_told(
    folder: Path, s3: Seaweed, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few broken connections are nobody's concern. A server that is gone is one, after the patience that was stated."""
    url = s3.url()
    push(folder, url)
    port = urlsplit(s3.endpoint).port
    assert port
    proxy = Meddler(port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    source = StoreSource(open_store(url, patience=BRIEF), cache, patience_s=30)
    data = open_stored(source)
    proxy.drop = 12
    assert (data.gather("train", np.arange(9), SEQUENCE) == open_data(folder).gather("train", np.arange(9), SEQUENCE)).all()
    proxy.close()
    alive, source._patience_s = source.ranges, 0.5
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    source.ranges = HedgedReads(open_store(url, patience=BRIEF).read_range, 4)
    with pytest.raises(StoreUnavailable, match=rf"{url}.*\(tried for \d+ s\)"):
        data.gather("train", np.array([6000]), SEQUENCE)
    source.ranges = alive
    assert len(data.gather("train", np.array([6000]), SEQUENCE)) == 1


def test_a_manifest_in_a_store_is_looked_at_before_a_job_is_submitted(folder: Path, s3: Seaweed, tmp_path: Path) -> None:
    """Nothing else of it is, so the submitting machine has no cache. A bucket that is not there may be one of the nodes' store."""
    url = s3.url()
    here = {"AWS_ENDPOINT_URL": s3.endpoint}
    asked = ForeseeAsked(data=DataSource(path=url), env=here, sequence=SEQUENCE, held_out=1)
    (said,) = foreseen(replace(asked, env={}))
    assert "the store at this machine's AWS_ENDPOINT_URL has no such data" in said
    with pytest.raises(DataError, match=r"data\.path: 's3://.*has no manifest\.json, so it is no prepared data"):
        foreseen(asked)
    push(folder, url)
    with pytest.raises(DataError, match="nothing is held out"):
        foreseen(asked)
    write_tokens(tmp_path / "held", [SEQUENCE + 1], held_out=SEQUENCE + 1)
    mixed = DataSource(sources={"far": MixtureSource(path=url), "near": MixtureSource(path=str(tmp_path / "held"))})
    assert foreseen(ForeseeAsked(data=mixed, env={}, sequence=SEQUENCE, held_out=1)) == ()
    small = ForeseeAsked(data=replace(mixed, cache=DataCache(limit="8.5MiB")), env={}, sequence=SEQUENCE, held_out=1)
    with pytest.raises(DataError, match=r"data\.cache\.limit: '8\.5MiB': train-00000\.bin of s3://.* has 12582898 bytes"):
        foreseen(small)
    blocks = Blocks(block_samples=1000, window_blocks=7)
    fits = replace(small, data=replace(small.data, cache=DataCache(limit="13MiB"), shuffle=blocks))
    with pytest.raises(DataError, match=r"a window of 7000 samples of each source .* has 13986000 bytes; write a size above that"):
        foreseen(fits)
    assert foreseen(replace(fits, data=replace(fits.data, cache=DataCache(limit="14MiB")))) == ()
    (said,) = foreseen(ForeseeAsked(data=DataSource(path="s3://nowhere/at-all"), env={}, sequence=SEQUENCE))
    assert "could not be looked at from here" in said and "there is no bucket 'nowhere'" in said
