"""What `phalanx data prepare` tells beside the manifest: what was not taken, and what was left of an interrupted run."""

import json
import os
import stat
from pathlib import Path

import pytest

from phalanx.core.data_asked import PrepareAsked
from phalanx.core.errors import DataError, SetupError
from phalanx.job.data import file_pieces
from phalanx.job.data.left_out_list import listed
from phalanx.job.data.prepare import PrepareProgress, prepare
from phalanx.job.data.prepared import prepared
from tests.job.data.prepare_cases import contents, write_jsonl, write_texts


def quiet(*_: object) -> None:
    """No progress."""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Three texts, and of every kind of what is none one or more."""
    folder = write_texts(tmp_path / "odd", files=3, lines=9)
    for number in range(5):
        (folder / f"blob{number}.bin").write_bytes(b"ab\0")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere")
    (folder / "junk.parquet").write_bytes(b"junk")
    (folder / "empty.txt").write_text("")
    (folder / "tiny.txt").write_text("abc")
    write_jsonl(folder / "rows.jsonl", [{"body": "x"}, {"body": "y"}, {"text": "a line that is long enough"}])
    with (folder / "rows.jsonl").open("a") as file:
        file.write("{broken\n")
    return folder


def test_what_is_left_out_is_named_with_its_reason(odd: Path, tmp_path: Path, tokenizer: Path) -> None:
    asked = PrepareAsked(
        paths=(str(odd),), out=tmp_path / "out", tokenizer=tokenizer, min_chars=10, left_out=tmp_path / "list.jsonl", processes=1
    )
    found = prepared(asked, quiet)
    json.dumps(found)
    left = found["left_out"]
    assert {why: (one["count"], one["files"]) for why, one in left.items()} == {
        "binary": (5, 5), "not_utf8": (1, 1), "unreadable": (2, 2), "empty": (1, 1), "not_json": (1, 1), "no_text": (2, 1),
        "short": (1, 1),
    }  # fmt: skip
    assert left["binary"]["examples"] == [f"blob{number}.bin is binary (byte 2 is NUL)" for number in range(3)]
    assert left["not_utf8"]["examples"] == ["latin.txt is not UTF-8 (byte 3 is 0xe9)"]
    assert left["unreadable"]["examples"][0] == "gone.txt cannot be read (No such file or directory)"
    assert left["unreadable"]["examples"][1].startswith("junk.parquet is no Parquet, or damaged (")
    assert left["no_text"]["examples"][0].startswith("byte 0 of rows.jsonl has no text in field 'text'; its fields: body")
    assert left["no_text"]["examples"][0].endswith("and 1 more in it")
    assert left["short"]["examples"] == ["tiny.txt has 3 characters, and --min-chars is 10"]
    listed = [json.loads(line) for line in (tmp_path / "list.jsonl").read_text().splitlines()]
    assert sorted(one["file"] for one in listed if one["why"] == "binary") == [f"blob{number}.bin" for number in range(5)]
    assert {one["why"]: one["count"] for one in listed}["no_text"] == 2
    assert {one["source"] for one in listed} == {"odd"}
    assert found["resumed"] is None
    assert prepared(asked, quiet)["left_out"] == left, "and the list is written again"


def test_pieces_of_one_file_are_told_as_one(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", 1000)
    rows = [{"text": f"line {number} of words"} if number % 2 else {"other": number} for number in range(400)]
    write_jsonl(tmp_path / "in/a.jsonl", rows)
    write_jsonl(tmp_path / "in/b.jsonl", rows)
    asked = PrepareAsked(paths=(str(tmp_path / "in"),), out=tmp_path / "out", tokenizer=tokenizer, processes=1)
    (why, one), *_ = prepared(asked, quiet)["left_out"].items()
    assert (why, one["count"], one["files"]) == ("no_text", 400, 2)
    assert [text.split(" has ")[0] for text in one["examples"]] == ["byte 0 of a.jsonl", "byte 0 of b.jsonl"]


def test_duplicates_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    write_texts(tmp_path / "in/a", files=4, lines=9)
    write_texts(tmp_path / "in/b", files=3, lines=9)
    asked = PrepareAsked(paths=(str(tmp_path / "in"),), out=tmp_path / "out", tokenizer=tokenizer, dedup=True)
    assert prepared(asked, quiet)["left_out"] == {"duplicate": {"count": 3}}


def test_the_list_lies_beside_the_inputs_and_replaces_nothing_else(odd: Path, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep this")
    refused = {
        odd / "list.jsonl": "lies inside the input",
        odd / "0000.txt": "lies inside the input",
        tmp_path / "mine.txt": "no `--left-out` made",
    }
    for path, message in refused.items():
        asked = PrepareAsked(paths=(str(odd),), out=tmp_path / "out", tokenizer=tokenizer, left_out=path)
        with pytest.raises(DataError, match=message) as caught:
            prepared(asked, quiet)
        assert caught.value.field == "left_out"
    assert (tmp_path / "mine.txt").read_text() == "keep this"


@pytest.mark.parametrize(
    ("place", "message"),
    [("/proc/list", "nothing can be made; choose another place"), ("none/list", r"its folder \S+/none is not there; make it$")],
)
def test_where_no_list_can_be_made_is_refused(odd: Path, tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(SetupError, match=message) as caught, listed(tmp_path / place, tmp_path / "out", [str(odd)]):
        pass
    assert caught.value.field == "left_out"


def test_a_list_goes_to_a_pipe_and_is_never_read_from_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with listed(pipe, tmp_path / "out", []) as file:
        assert file is not None
        file.write("one\n")
    assert os.read(reader, 9) == b"one\n" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    ours, other = os.pipe()
    with listed(Path(f"/dev/fd/{other}"), tmp_path / "out", []) as file:
        assert file is not None
        file.write("two\n")
    assert os.read(ours, 9) == b"two\n"
    os.close(ours)
    os.close(other)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("place", ["out/list", "link/deeper/list", "out"])
def test_a_list_that_would_go_with_the_folder_is_refused(tmp_path: Path, place: str, there: bool) -> None:
    (tmp_path / "link").symlink_to("out")
    if there:
        (tmp_path / "out/deeper").mkdir(parents=True)
    with pytest.raises(DataError, match="lies inside --out") as caught, listed(tmp_path / place, tmp_path / "out", []):
        pass
    assert caught.value.field == "left_out" and not list(tmp_path.glob("out/**/*list*"))


@pytest.mark.parametrize(
    "pattern", ["{}/texts/*.jsonl", "file://{}/texts/*.jsonl", "{}/**/*.jsonl", "{}/[t]exts/*", "texts/*.jsonl"]
)
def test_a_list_that_a_pattern_would_read_is_refused(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    with (
        pytest.raises(DataError, match="lies inside the input"),
        listed(tmp_path / "texts/list.jsonl", tmp_path / "out", [pattern.format(tmp_path)]),
    ):
        pass
    assert not list((tmp_path / "texts").iterdir())


def test_a_list_that_no_pattern_reads_may_lie_beside_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with listed(Path("left.jsonl"), tmp_path / "out", ["*.txt"]):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["left.jsonl"]


def test_the_list_from_before_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    real, link = tmp_path / "list", tmp_path / "link"
    link.symlink_to(real)
    real.write_text('{"source": "a"}\n')
    real.chmod(0o600)
    for stopped in (KeyboardInterrupt, DataError("paths", "x", "is not there")):
        with pytest.raises((KeyboardInterrupt, DataError)), listed(link, tmp_path / "out", []) as file:
            assert file is not None
            file.write("half")
            raise stopped
        assert real.read_text() == '{"source": "a"}\n' and len(list(tmp_path.iterdir())) == 2
    with listed(link, tmp_path / "out", []) as file:
        assert file is not None
        file.write('{"source": "b"}\n')
    assert real.read_text() == '{"source": "b"}\n' and real.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_what_is_kept_of_an_interrupted_run_is_told(
    texts: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(file_pieces, "TASK_PIECES", 1)
    out = tmp_path / "out"

    def interrupted(after: int) -> None:
        reports = []

        def stop(at: PrepareProgress) -> None:
            reports.extend([1] * at.phase.startswith("encoding"))
            if len(reports) == after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare([texts], out, tokenizer=tokenizer, progress=stop, shard_tokens_max=60_000)

    interrupted(11)
    finished = len(list(tmp_path.glob(".out.preparing/*.xxh3")))
    kept: list[object] = []
    phases: list[str] = []
    prepare(
        [texts], out, tokenizer=tokenizer, shard_tokens_max=60_000, noted=kept.append,
        progress=lambda at: phases.append(at.phase),
    )  # fmt: skip
    (resumed,) = kept
    assert finished > 1 and (resumed.shards, resumed.dropped) == (finished, 0)  # type: ignore[attr-defined]
    assert resumed.tokens > 60_000 and resumed.documents > 0  # type: ignore[attr-defined]
    assert phases[-1].endswith(f", after {finished} shards of an interrupted run")
    for path in out.iterdir():
        path.unlink()
    out.rmdir()
    interrupted(11)
    told = prepared(PrepareAsked(paths=(str(texts),), out=out, tokenizer=tokenizer, min_chars=5), quiet)["resumed"]
    assert (told["shards"], told["dropped"]) == (0, finished)


def test_a_limit_that_leaves_nothing_is_named(odd: Path, tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(
        DataError, match=r"leaves no text at all: 5 too short, 5 binary, .*--min-chars is 100000.*lower it"
    ) as caught:
        prepare([odd], tmp_path / "out", tokenizer=tokenizer, min_chars=100_000)
    assert (caught.value.field, caught.value.value) == ("min_chars", 100_000)
    (tmp_path / "short.txt").write_text("some text")
    with pytest.raises(DataError, match="has 9 characters, and --min-chars is 10; lower it"):
        prepare([tmp_path / "short.txt"], tmp_path / "out", tokenizer=tokenizer, min_chars=10)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/proc/x", "nothing can be made; choose another place"),
        ("/proc/self/x/y", "choose another place"),
        ("/sys/x", "choose another place"),
        ("file/x", "has a file where a folder is needed"),
        ("x" * 300, "choose a shorter place"),
    ],
)
def test_a_place_where_nothing_can_be_made_is_refused_before_any_text_is_read(
    tmp_path: Path, tokenizer: Path, place: str, message: str
) -> None:
    texts = write_texts(tmp_path / "texts", files=3, lines=9)
    (tmp_path / "file").write_text("x")
    before = contents(texts)
    seen: list[PrepareProgress] = []
    with pytest.raises(SetupError, match=message) as caught:
        prepare([texts], tmp_path / place, tokenizer=tokenizer, progress=seen.append)
    assert (caught.value.field, seen) == ("out", [])
    assert contents(texts) == before and not (tmp_path / "out").exists()
