"""URLs of stores: what each means, and one clear error for each that means nothing."""

import re
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import SetupError, SpecError, StoreUnavailable
from phalanx.storage.objects import open_store
from phalanx.storage.places import Place, checked_key, parse_place
from phalanx.storage.remote import Patience


@pytest.mark.parametrize(
    ("text", "place", "url"),
    [
        ("/data/x", Place("file", path=Path("/data/x")), "file:///data/x"),
        ("file:///data/a%20b", Place("file", path=Path("/data/a b")), "file:///data/a%20b"),
        ("file://localhost/data", Place("file", path=Path("/data")), "file:///data"),
        ("memory://", Place("memory"), "memory://"),
        ("s3://bkt", Place("s3", bucket="bkt"), "s3://bkt"),
        ("s3://bkt/a/b/", Place("s3", bucket="bkt", prefix="a/b"), "s3://bkt/a/b"),
        ("gs://bkt_1.x/p", Place("gs", bucket="bkt_1.x", prefix="p"), "gs://bkt_1.x/p"),
        ("az://box/p", Place("az", bucket="box", prefix="p"), "az://box/p"),
        (
            "abfs://box@acc.dfs.core.windows.net/p",
            Place("az", bucket="box", prefix="p", account="acc"),
            "abfs://box@acc.dfs.core.windows.net/p",
        ),
    ],
)
def test_what_a_url_means(text: str, place: Place, url: str) -> None:
    assert parse_place(text) == place
    assert place.url == url
    assert parse_place(url) == place


@pytest.mark.parametrize(
    "text", ["s3://AKIA:secret@bkt/p", "s3://AKIA:sec/ret+x@bkt/p", "s3://AKIA:secret", "gs://u:secret/x/y@z", "x://AKIA:sec/ret@h"]
)
def test_no_error_shows_what_may_be_a_password(text: str) -> None:
    """Also one with a slash, as Amazon's keys may have, with which a URL's host ends early."""
    with pytest.raises(SetupError) as caught:
        parse_place(text)
    assert not {"AKIA", "sec", "ret"} & set(re.split(r"[^A-Za-z]+", str(caught.value)))
    assert "secret" not in str(caught.value)


def test_a_relative_path_is_one_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_place("blobs").path == tmp_path / "blobs"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write a path"),
        ("ftp://host/x", "unknown scheme"),
        ("S4://bkt", "unknown scheme"),
        ("s3://", "names no bucket; write s3://bucket/prefix"),
        ("s3:///prefix", "names no bucket"),
        ("s3://A_B/x", "cannot be a bucket's name"),
        ("s3://ab", "cannot be a bucket's name"),
        ("s3://bkt/../x", "its prefix"),
        ("s3://bkt/a//b", "its prefix"),
        ("s3://bkt/" + "x" * 201, "its prefix"),
        ("s3://bkt/%2e%2e/x", "its prefix"),
        ("s3://bkt\n", "control characters"),
        ("s3://[bkt", "is no URL"),
        ("file://host/x", "names another machine"),
        ("file:///", "name a folder"),
        ("/a/../b", "without '..'"),
        ("memory://x", "write memory:// alone"),
        ("abfs://box@Acc!/p", "write abfs://container@account"),
        ("az://-x/p", "cannot be a bucket's name"),
    ],
)
def test_a_url_that_means_nothing_is_refused_and_named(text: str, says: str) -> None:
    with pytest.raises(SetupError, match="store: ") as caught:
        parse_place(text)
    assert says in caught.value.fix


@pytest.mark.parametrize("text", ["s3://AKIA:hunter2@bkt/x", "s3://bkt/x?sig=hunter2", "gs://bkt/x#hunter2", "az://me:hunter2@box"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SetupError) as caught:
        parse_place(text)
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=80), st.sampled_from(["s3://", "gs://", "az://", "abfs://", "file:///", "memory://", ""]))
def test_any_text_is_a_place_or_one_error(text: str, start: str) -> None:
    try:
        place = parse_place(start + text)
    except SetupError as error:
        assert error.field == "store"
    else:
        assert place.scheme in ("file", "memory", "s3", "gs", "az")
        assert ".." not in place.prefix.split("/")
        if place.scheme == "file":
            assert place.path.is_absolute()
        else:
            assert parse_place(place.url) == place


@given(st.text(max_size=60))
def test_an_accepted_key_never_leaves_its_folder(key: str) -> None:
    try:
        checked_key(key)
    except SpecError:
        return
    root = Path("/root-of-store")
    assert root in (root / key).parents
    assert ".." not in (root / key).parts
    assert key.isprintable()


@pytest.mark.parametrize("url", ["gs://bkt/x", "abfs://box@acc.dfs.core.windows.net/x"])
def test_other_clouds_open_without_a_question(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert open_store(url, {}).url == url


def test_azure_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(SetupError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://box/x", {})


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_another_cloud_that_does_not_answer_may_be_asked_again(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their clients, with keys that nobody knows, against a port where nobody listens."""
    from tests.storage.seaweed import free_ports

    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    brief = Patience(connect_s=0.5, request_s=1.0, retries_s=0.5, retries_max=1)
    if scheme == "az":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aGVsbG8=")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", nobody)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    else:
        account = tmp_path / "account.json"
        fields = f'"gcs_base_url": "{nobody}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""'
        account.write_text(f"{{{fields}}}")
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    store = open_store(f"{scheme}://box-{secrets.token_hex(3)}/x", {}, brief)
    with pytest.raises(StoreUnavailable, match="try again"):
        store.put("a", b"x")
