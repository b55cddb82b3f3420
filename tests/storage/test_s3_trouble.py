"""S3 when something is wrong, against a real server: credentials, buckets, endpoints, and a server that goes away."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from obstore.exceptions import GenericError

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.storage.blobs import BlobStore
from phalanx.storage.objects import PART_BYTES, ObjectStore, open_store
from phalanx.storage.remote import Patience, said_again_if_unsent
from tests.storage.conftest import BRIEF
from tests.storage.meddler import Meddler, flipping, flipping_another_each_time, leave
from tests.storage.seaweed import BUCKET, KEY, SECRET, Seaweed


def test_wrong_credentials_say_so_and_not_what_they_are(seaweed: Seaweed) -> None:
    unknown = open_store(seaweed.url(), {**seaweed.environ, "AWS_ACCESS_KEY_ID": "nobody-knows"}, BRIEF)
    wrong = open_store(seaweed.url(), {**seaweed.environ, "AWS_SECRET_ACCESS_KEY": "hunter2"}, BRIEF)
    for store, code in ((unknown, "InvalidAccessKeyId"), (wrong, "SignatureDoesNotMatch")):
        for ask in (store.check, lambda store=store: store.put("a", b"x"), lambda store=store: store.get("a")):
            with pytest.raises(SetupError, match=f"refuses these credentials.*{code}.*AWS_ACCESS_KEY_ID") as caught:
                ask()
            assert "hunter2" not in str(caught.value)
        with pytest.raises(SetupError, match="refuses these credentials"):
            store.head("a")


def test_a_missing_bucket_is_named(seaweed: Seaweed) -> None:
    store = open_store("s3://no-such-bucket/x", seaweed.environ, BRIEF)
    for ask in (store.check, lambda: store.get("a"), lambda: list(store.list())):
        with pytest.raises(SetupError, match="there is no bucket 'no-such-bucket'; make it"):
            ask()


def test_plain_http_beyond_this_machine_needs_a_word(seaweed: Seaweed) -> None:
    elsewhere = {**seaweed.environ, "AWS_ENDPOINT_URL": "http://user:hunter2@store.example:9000"}
    with pytest.raises(SetupError, match=r"AWS_ENDPOINT_URL.*send data readable") as caught:
        open_store("s3://bkt/x", elsewhere)
    assert "hunter2" not in str(caught.value)
    open_store("s3://bkt/x", {**elsewhere, "AWS_ALLOW_HTTP": "true"})


def test_an_unreadable_bundle_of_authorities_is_named(seaweed: Seaweed, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="AWS_CA_BUNDLE"):
        open_store("s3://bkt/x", {**seaweed.environ, "AWS_CA_BUNDLE": str(tmp_path / "none")})


def test_two_prefixes_of_one_bucket_do_not_see_each_other(seaweed: Seaweed) -> None:
    one, other = (open_store(seaweed.url(), seaweed.environ, BRIEF) for _ in range(2))
    one.put("a", b"1")
    assert list(other.list()) == []
    with pytest.raises(NotFound):
        other.get("a")


def without_keys(seaweed: Seaweed, home: Path) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": seaweed.endpoint, "AWS_REGION": "us-east-1", "HOME": str(home)}


def profiles(home: Path, credentials: str = "", config: str = "") -> None:
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(credentials)
    (home / ".aws/config").write_text(config)


@pytest.fixture
def no_keys_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore itself looks at the process's environment too."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_keys_here")
def test_keys_come_from_a_profile(seaweed: Seaweed, tmp_path: Path) -> None:
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    wrong = "aws_access_key_id = other\naws_secret_access_key = other\n"
    profiles(
        tmp_path,
        f"[default]\n{wrong}\n[train]\n{keys}",
        f"[profile train]\nendpoint_url = {seaweed.endpoint}\nregion = us-east-1\n",
    )
    environ = {"HOME": str(tmp_path), "AWS_PROFILE": "train"}
    store = open_store(seaweed.url(), environ, BRIEF)
    store.put("a", b"x")
    assert store.get("a") == b"x"
    with pytest.raises(SetupError, match="refuses these credentials"):
        open_store(seaweed.url(), without_keys(seaweed, tmp_path), BRIEF).check()


@pytest.mark.usefixtures("no_keys_here")
def test_keys_come_from_a_profile_that_asks_a_process(seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "keys.py"
    script.write_text(f'print(\'{{"Version": 1, "AccessKeyId": "{KEY}", "SecretAccessKey": "{SECRET}"}}\')')
    profiles(tmp_path, config=f"[profile asks]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.setenv("HOME", str(tmp_path))  # boto3 looks there itself
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / ".aws/config"))
    store = open_store(seaweed.url(), {**without_keys(seaweed, tmp_path), "AWS_PROFILE": "asks"}, BRIEF)
    store.put("a", b"x")
    assert store.get("a") == b"x"


def test_a_profile_that_is_not_there_or_not_readable_is_named(seaweed: Seaweed, tmp_path: Path) -> None:
    environ = {**without_keys(seaweed, tmp_path), "AWS_PROFILE": "train"}
    with pytest.raises(SetupError, match="AWS_PROFILE: 'train': no such profile"):
        open_store("s3://bkt/x", environ)
    profiles(tmp_path, "aws_secret_access_key = hunter2\n")
    with pytest.raises(SetupError, match="AWS profile") as caught:
        open_store("s3://bkt/x", environ)
    assert "hunter2" not in str(caught.value)


def test_a_damaged_blob_in_s3_is_found_and_repaired(seaweed: Seaweed) -> None:
    objects = open_store(seaweed.url(), seaweed.environ, BRIEF)
    blobs = BlobStore(objects)
    sha256 = blobs.put(b"hello" * 1000)
    (stored,) = list(objects.list())
    flipped = bytearray(objects.get(stored.key))
    flipped[7] ^= 1
    objects.put(stored.key, bytes(flipped))
    with pytest.raises(NotFound, match="damaged"):
        blobs.get(sha256)
    assert not blobs.has(sha256)
    blobs.put(b"hello" * 1000)
    assert blobs.get(sha256) == b"hello" * 1000


@pytest.fixture
def meddler(seaweed: Seaweed) -> Iterator[Meddler]:
    port = urlsplit(seaweed.endpoint).port
    assert port
    proxy = Meddler(port)
    yield proxy
    proxy.close()


def through(meddler: Meddler, seaweed: Seaweed, url: str) -> ObjectStore:
    return open_store(url, {**seaweed.environ, "AWS_ENDPOINT_URL": meddler.endpoint}, BRIEF)


MARKER = b"the bytes that matter"


def test_bytes_that_change_on_their_way_to_the_store_are_refused_by_it(seaweed: Seaweed, meddler: Meddler) -> None:
    url = seaweed.url()
    meddled, plain = through(meddler, seaweed, url), open_store(url, seaweed.environ, BRIEF)
    meddled.put("a", MARKER)  # the proxy alone changes nothing
    meddler.sent = flipping(MARKER)
    puts: list[Callable[[], object]] = [lambda: meddled.put("a", MARKER + b"!"), lambda: meddled.put_if_absent("new", MARKER)]
    for put in puts:
        with pytest.raises(StoreUnavailable, match="arrived damaged and was refused"):
            put()
    assert plain.get("a") == MARKER
    assert [found.key for found in plain.list()] == ["a"]


def test_a_part_of_a_large_object_that_changes_on_its_way_leaves_the_old_object(seaweed: Seaweed, meddler: Meddler) -> None:
    url = seaweed.url()
    meddled, plain = through(meddler, seaweed, url), open_store(url, seaweed.environ, BRIEF)
    plain.put("a", b"old")
    meddler.sent = flipping(MARKER)
    with pytest.raises(StoreUnavailable):
        meddled.put("a", bytes(PART_BYTES) + MARKER)
    assert plain.get("a") == b"old"


def test_a_blob_that_changes_on_its_way_here_is_not_taken_for_damaged(seaweed: Seaweed, meddler: Meddler) -> None:
    """Else a bad network would empty good blobs."""
    url = seaweed.url()
    blobs = BlobStore(through(meddler, seaweed, url))
    sha256 = blobs.put(MARKER)
    meddler.got = flipping_another_each_time(MARKER)
    with pytest.raises(StoreUnavailable, match="each time another way"):
        blobs.get(sha256)
    meddler.got = leave
    assert blobs.get(sha256) == MARKER


def test_connections_that_break_are_made_again(seaweed: Seaweed, meddler: Meddler) -> None:
    store = through(meddler, seaweed, seaweed.url())
    meddler.drop = 2
    store.put("a", b"x")
    assert meddler.drop == 0
    assert store.get("a") == b"x"


def test_a_server_that_never_answers_is_given_up_in_time(meddler: Meddler, seaweed: Seaweed) -> None:
    store = open_store(seaweed.url(), {**seaweed.environ, "AWS_ENDPOINT_URL": meddler.endpoint}, Patience(1.0, 1.0, 1.0, 2))
    meddler.sent = lambda data: b""
    started_s = time.monotonic()
    for ask in (lambda: store.get("a"), lambda: store.put("a", b"x"), lambda: store.put_if_absent("b", b"x")):
        with pytest.raises(StoreUnavailable, match="try again"):
            ask()
    assert time.monotonic() - started_s < 60, "without limits it would wait for ever"


@pytest.fixture
def short_lived(tmp_path: Path) -> Iterator[Seaweed]:
    server = Seaweed(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)


def test_a_server_that_goes_away_may_be_asked_again_and_loses_nothing(short_lived: Seaweed) -> None:
    impatient = Patience(connect_s=0.5, request_s=5.0, retries_s=1.0, retries_max=2)
    store = open_store(f"s3://{BUCKET}/x", short_lived.environ, impatient)
    store.put("before", b"kept")
    short_lived.stop()
    for ask in asks(store):
        with pytest.raises(StoreUnavailable, match="try again"):
            ask()
    short_lived.start()
    assert store.get("before") == b"kept"
    assert store.put_if_absent("after", b"x")


def asks(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        store.check,
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.put_if_match("a", b"x", "e"),
        lambda: store.get("before"),
        lambda: store.head("before"),
        lambda: list(store.list()),
        lambda: store.delete("before"),
    ]


def test_a_request_that_was_never_sent_is_said_again_once() -> None:
    """A race of the HTTP library with a breaking connection, in its own words; it cannot be brought about at will."""
    tried: list[int] = []

    def unsent(times: int) -> str:
        tried.append(1)
        if len(tried) <= times:
            raise GenericError('Generic S3 error: hyper::Error(Canceled, "connection was not ready")')
        return "stored"

    assert said_again_if_unsent(lambda: unsent(1)) == "stored"
    tried.clear()
    with pytest.raises(GenericError):
        said_again_if_unsent(lambda: unsent(2))
    assert len(tried) == 2
