"""Texts in object stores: one process over this process's memory as a store, and two over a real S3 server."""

import gzip
import importlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from phalanx.core.errors import DataError, SetupError, StoreUnavailable
from phalanx.job.data import file_pieces, object_files
from phalanx.job.data.object_files import ObjectFile, Version
from phalanx.job.data.prepare import PrepareProgress, prepare
from phalanx.job.data.stored_corpus import find_objects, translated
from phalanx.storage.objects import ObjectStore, open_store
from phalanx.storage.places import Place
from tests.drawn import examples
from tests.job.data.prepare_cases import contents, texts_of
from tests.storage.conftest import seaweed as seaweed
from tests.storage.seaweed import BUCKET, Seaweed

ROWS = [f"row {row} 🐍 says é and {row * row} more words " * (row % 9 + 1) for row in range(200)]


def lines(rows: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in rows).encode()


def parquet(rows: list[str]) -> bytes:
    arrow: Any = importlib.import_module("pyarrow")
    file = io.BytesIO()
    importlib.import_module("pyarrow.parquet").write_table(arrow.table({"text": rows}), file, row_group_size=15)
    return file.getvalue()


OBJECTS = {
    "web/a.jsonl": lines(ROWS[:100]),
    "web/deep/b.jsonl.gz": gzip.compress(lines(ROWS[100:150])),
    "web/deep/c.parquet": parquet(ROWS[150:180]),
    **{f"web/notes/{number}.txt": text.encode() for number, text in enumerate(ROWS[180:])},
}
OTHERS = {"web/.hidden/x.txt": b"not taken", "web/notes/.x.txt": b"not taken", "webs.txt": b"not taken"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """What s3://bucket is to this process alone."""
    made = ObjectStore(Place("s3", "bucket"), MemoryStore())
    monkeypatch.setattr("phalanx.storage.objects.open_store", lambda url, field: made)
    monkeypatch.setattr(object_files, "_PAUSE_S", 0.0)
    object_files.opened.cache_clear()
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", 1500)
    for key, data in {**OBJECTS, **OTHERS}.items():
        made.put(key, data)
    return made


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What a test before this one talked to has another address."""
    object_files.opened.cache_clear()


def documents(out: Path) -> list[str]:
    return sorted(text for split in texts_of(out).values() for text in split)


def test_a_prefix_of_a_store_is_the_folder_that_it_holds(store: ObjectStore, tokenizer: Path, tmp_path: Path) -> None:
    for key, data in {**OBJECTS, **OTHERS}.items():
        path = tmp_path / "local" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    there = prepare(["s3://bucket/web/"], tmp_path / "there", tokenizer=tokenizer)
    here = prepare([tmp_path / "local" / "web"], tmp_path / "here", tokenizer=tokenizer)
    assert documents(tmp_path / "there") == sorted(ROWS)
    assert there.shards == here.shards
    assert there.sources[0].sha256 == here.sources[0].sha256
    assert there.sources[0].name == "s3://bucket/web/"


@pytest.mark.parametrize(
    ("rest", "names"),
    [
        ("web/a.jsonl", ["a.jsonl"]),
        ("web/**.jsonl*", ["a.jsonl", "deep/b.jsonl.gz"]),
        ("web/**/*.parquet", ["deep/c.parquet"]),
        ("web/*", ["a.jsonl"]),
        ("web/notes/[0-2].txt", ["0.txt", "1.txt", "2.txt"]),
        ("*.txt", ["webs.txt"]),
        ("web/notes/1?.txt", [f"{number}.txt" for number in range(10, 20)]),
    ],
)
def test_patterns_match_names_in_their_order(store: ObjectStore, rest: str, names: list[str]) -> None:
    files, direct = find_objects(f"s3://bucket/{rest}")
    assert [file.name for file in files] == names
    assert direct is (rest == "web/a.jsonl")
    assert all(file.etag and file.size_bytes for file in files)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.sampled_from(["**/", "**", "*", "?", "a", "b", "/", "[ab]", "[!a]", ".", "["]), max_size=7),
    st.text("ab/.[", max_size=8),
)
def test_any_pattern_is_an_expression_and_keeps_to_one_folder_without_two_stars(parts: list[str], name: str) -> None:
    pattern = "".join(parts)
    matches = re.compile(translated(pattern), re.DOTALL).fullmatch(name)
    if matches and "**" not in pattern:
        assert name.count("/") == pattern.count("/")
    if not set(pattern) & set("*?["):
        assert bool(matches) is (pattern == name)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("s3://bucket/wep/", DataError, "holds no object; look for a mistyped prefix"),
        ("s3://bucket/wep/a.jsonl", DataError, "holds no object"),
        ("s3://bucket/web/**.csv", DataError, "matches no object"),
        ("s3://bucket/web/a.jsonl?X-Amz-Signature=abc", SetupError, "credentials come from the environment"),
        ("s3://me:secret@bucket/web", SetupError, "credentials come from the environment"),
        ("https://bucket/web", SetupError, "unknown scheme"),
        ("memory://", SetupError, r"write a path, s3://"),
        ("s3:///web", SetupError, "names no bucket"),
        ("s3://bucket/a/../b", DataError, "part"),
    ],
)
def test_a_url_that_names_nothing_is_one_clear_error(
    store: ObjectStore, tokenizer: Path, tmp_path: Path, url: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        prepare([url], tmp_path / "out", tokenizer=tokenizer)
    assert "secret" not in str(caught.value)
    assert "abc" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["web/a.jsonl", "web/deep/b.jsonl.gz", "web/deep/c.parquet", "web/notes/3.txt"])
@pytest.mark.parametrize("gone", [False, True])
def test_an_object_that_changes_between_the_readings_is_noticed(
    store: ObjectStore, tokenizer: Path, tmp_path: Path, key: str, gone: bool
) -> None:
    def change(progress: PrepareProgress) -> None:
        if progress.phase.startswith("reading") and progress.done_bytes == progress.total_bytes:
            if gone:
                store.delete(key)
            else:
                store.put(key, OBJECTS[key])  # the same bytes, and still another version

    with pytest.raises(DataError, match="changed while it was being prepared") as caught:
        prepare(["s3://bucket/web"], tmp_path / "out", tokenizer=tokenizer, progress=change)
    assert caught.value.value == f"s3://bucket/{key}"


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_that_was_ended_is_gone_on_with_unless_an_object_changed(
    store: ObjectStore, tokenizer: Path, tmp_path: Path, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pieces, "TASK_PIECES", 1)

    def end(progress: PrepareProgress) -> None:
        if progress.phase.startswith("encoding") and progress.done_bytes > 10_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(["s3://bucket/web"], tmp_path / "out", tokenizer=tokenizer, shard_tokens_max=800, progress=end)
    rows = [*ROWS[:99], "another one"] if changed else ROWS[:100]
    store.put("web/a.jsonl", lines(rows))
    seen: list[PrepareProgress] = []
    made = prepare(["s3://bucket/web"], tmp_path / "out", tokenizer=tokenizer, shard_tokens_max=800, progress=seen.append)
    first = next(item.done_bytes for item in seen if item.phase.startswith("encoding"))
    assert (first < 5_000) is changed
    assert made == prepare(["s3://bucket/web"], tmp_path / "other", tokenizer=tokenizer, shard_tokens_max=800)
    assert documents(tmp_path / "out") == sorted([*rows, *ROWS[100:]])


class Restless(ObjectStore):
    """That store, which is away at each reading of a range whose number `goes` says."""

    def __init__(self, store: ObjectStore, goes: Callable[[int], bool]) -> None:
        super().__init__(store.place, store._store)
        self.tries: Counter[tuple[str, int]] = Counter()
        self._goes = goes

    def read_range(self, key: str, start: int, length: int, etag: str = "") -> memoryview:
        self.tries[key, start] += 1
        if self._goes(self.tries[key, start]):
            raise StoreUnavailable("s3://bucket: it went away; try again")
        return super().read_range(key, start, length, etag)


def test_a_store_that_goes_away_is_asked_again_and_then_named(
    store: ObjectStore, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restless = Restless(store, lambda tries: tries % 2 == 1)
    monkeypatch.setattr("phalanx.storage.objects.open_store", lambda url, field: restless)
    prepare(["s3://bucket/web"], tmp_path / "out", tokenizer=tokenizer)
    assert documents(tmp_path / "out") == sorted(ROWS)
    assert min(restless.tries.values()) >= 2
    monkeypatch.setattr(restless, "_goes", lambda tries: True)
    with pytest.raises(StoreUnavailable, match="it went away"):
        prepare(["s3://bucket/web"], tmp_path / "other", tokenizer=tokenizer)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 300), st.booleans()), max_size=12), st.integers(1, 90))
def test_an_object_reads_as_the_file_that_it_is(steps: list[tuple[int, int, bool]], block: int) -> None:
    data = bytes(number * 7 % 251 for number in range(600))
    made = ObjectStore(Place("s3", "bucket"), MemoryStore())
    made.put("a", data)
    plain = io.BytesIO(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_files, "opened", lambda url: made)
        patch.setattr(object_files, "BLOCK_BYTES", block)
        patch.setattr(object_files, "_OVER_BYTES", block // 2)
        with ObjectFile(Version("s3://bucket/a", len(data), made.head("a").etag)) as found:
            for at, length, moves in steps:
                if moves:
                    assert found.seek(at) == plain.seek(at)
                wanted = plain.read(length)
                assert _read(found, length) == wanted
                assert found.tell() == plain.tell()


def _read(file: ObjectFile, length: int) -> bytes:
    parts = []
    while length and (part := file.read(length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def test_two_processes_read_from_a_real_server(
    seaweed: Seaweed, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environ.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    url = seaweed.url()
    real = open_store(url, seaweed.environ)
    for key, data in OBJECTS.items():
        real.put(key, data)
    pattern = f"{url}/web/**"
    for processes in (1, 2):
        prepare([pattern], tmp_path / str(processes), tokenizer=tokenizer, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert documents(tmp_path / "1") == sorted(ROWS)

    def change(progress: PrepareProgress) -> None:
        if progress.phase.startswith("reading"):
            real.put("web/a.jsonl", lines(ROWS[:99]))

    with pytest.raises(DataError, match=r"changed while it was being prepared") as caught:
        prepare([pattern], tmp_path / "out", tokenizer=tokenizer, progress=change)
    assert str(caught.value.value).endswith("/web/a.jsonl")
    with pytest.raises(SetupError, match="there is no bucket 'no-such-bucket'"):
        prepare(["s3://no-such-bucket/web/a.jsonl"], tmp_path / "out", tokenizer=tokenizer)
    object_files.opened.cache_clear()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(SetupError, match="refuses these credentials") as refused:
        prepare([f"s3://{BUCKET}/web/a.jsonl"], tmp_path / "out", tokenizer=tokenizer)
    assert "hunter2" not in str(refused.value)
