"""Text to shards: what is taken, that the same text gives the same bytes, the format, and what is refused."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from phalanx.core.errors import Conflict, DataError, SetupError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.default_corpus import CORPUS_BYTES_MIN, standard_library_paths
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.open import open_data
from phalanx.job.data.prepare import PrepareProgress, prepare


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_megatron(stem: Path) -> list[list[int]]:
    """Documents of a pair, read as the format is described and not by our code."""
    index = stem.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, bounds = struct.unpack_from("<QBQQ", index, 9)
    assert (version, code) == (1, 8), "8 is uint16"
    at = 9 + struct.calcsize("<QBQQ")
    sizes = struct.unpack_from(f"<{sequences}i", index, at)
    pointers = struct.unpack_from(f"<{sequences}q", index, at + 4 * sequences)
    documents = struct.unpack_from(f"<{bounds}q", index, at + 12 * sequences)
    assert len(index) == at + 12 * sequences + 8 * bounds
    assert documents == tuple(range(sequences + 1))
    tokens = stem.with_suffix(".bin").read_bytes()
    assert pointers[-1] + 2 * sizes[-1] == len(tokens)
    return [list(struct.unpack_from(f"<{size}H", tokens, pointer)) for size, pointer in zip(sizes, pointers, strict=True)]


def all_documents(folder: Path) -> list[tuple[str, list[int]]]:
    return [
        (path.name.split("-")[0], document)
        for path in sorted(folder.glob("*.idx"))
        for document in read_megatron(path.with_suffix(""))
    ]


def test_every_document_comes_back_byte_for_byte(corpus: Path, prepared_once: Path) -> None:
    tokenizer = Tokenizer.from_file(str(prepared_once / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    documents = all_documents(prepared_once)
    assert all(document[-1] == end and end not in document[:-1] for _, document in documents)
    texts = sorted(tokenizer.decode(document[:-1], skip_special_tokens=False) for _, document in documents)
    wanted = [path for path in corpus.rglob("*") if path.suffix == ".py" or path.name == "odd.txt"]
    assert texts == sorted(path.read_bytes().decode() for path in wanted)


def test_held_out_never_overlaps_train(prepared_once: Path) -> None:
    documents = all_documents(prepared_once)
    train, held_out = ({tuple(document) for split, document in documents if split == name} for name in ("train", "held_out"))
    assert train
    assert held_out
    assert not train & held_out


def test_the_manifest_counts_what_is_there(corpus: Path, prepared_once: Path) -> None:
    manifest, data = manifests.read(prepared_once)
    documents = all_documents(prepared_once)
    assert manifest.num_tokens == sum(len(document) for _, document in documents)
    assert sum(split.documents for split in manifest.splits.values()) == len(documents) == 41
    (source,) = manifest.sources
    assert (source.name, source.documents, source.skipped_binary, source.skipped_not_utf8) == ("text", 41, 1, 1)
    assert source.text_bytes == sum(split.text_bytes for split in manifest.splits.values())
    assert len(manifest.shards) > 3
    assert str(corpus.parent).encode() not in data, "no path of this machine"
    assert {entry.name for entry in manifest.files} | {MANIFEST} == set(contents(prepared_once))
    assert manifest.vocab_size == 600
    assert manifest.dtype == "uint16"


def test_the_same_text_gives_the_same_bytes_in_another_process_and_place(
    make_corpus: Callable[[], Path], prepared_once: Path, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from phalanx.job.data.prepare import prepare;"
        "prepare([sys.argv[1]], Path(sys.argv[2]), vocab_size=600, held_out=0.2, shard_tokens_max=20_000)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "error", "-c", code, make_corpus(), tmp_path / "out"], check=True, env=env)
    assert contents(tmp_path / "out") == contents(prepared_once)


def test_adding_a_file_moves_no_other_between_the_splits(
    make_corpus: Callable[[], Path], prepared_once: Path, tmp_path: Path
) -> None:
    folder = make_corpus()
    (folder / "zebra.txt").write_text("one more\n" * 100)
    prepare([folder], tmp_path / "more", vocab_size=600, held_out=0.2)

    def texts(place: Path, split: str) -> set[str]:
        tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
        return {tokenizer.decode(document[:-1]) for name, document in all_documents(place) if name == split}

    for split in ("train", "held_out"):
        assert texts(prepared_once, split) <= texts(tmp_path / "more", split)


def test_files_and_folders_together_each_file_once(corpus: Path, tmp_path: Path) -> None:
    file = next(corpus.glob("*.py"))
    manifest = prepare([file, corpus, corpus / "sub"], tmp_path / "out", vocab_size=300)
    assert [source.documents for source in manifest.sources] == [1, 40, 0]


def test_a_single_file_gives_its_end_to_the_held_out_split(tmp_path: Path) -> None:
    text = "".join(f"line {number} of one long text, été\n" for number in range(3000))
    (tmp_path / "input.txt").write_text(text)
    prepare([tmp_path / "input.txt"], tmp_path / "out", vocab_size=300, held_out=0.1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    held, train = (tokenizer.decode(document[:-1]) for _, document in all_documents(tmp_path / "out"))
    assert train + held == text
    assert held.startswith("line 27")


def test_a_large_vocabulary_takes_wider_tokens() -> None:
    from phalanx.job.data.megatron import index_bytes, token_bytes, token_type

    assert [token_type(size) for size in (65_499, 65_500)] == ["uint16", "int32"]
    assert np.frombuffer(token_bytes([70_000, 1], "int32"), dtype="<i4").tolist() == [70_000, 1]
    index = index_bytes([3, 1, 2], "int32")
    assert struct.unpack_from("<B", index, 17) == (4,)
    assert struct.unpack_from("<3i3q", index, 34) == (3, 1, 2, 0, 12, 16)


def test_progress_reaches_its_total(corpus: Path, tmp_path: Path) -> None:
    seen: list[PrepareProgress] = []
    prepare([corpus], tmp_path / "out", vocab_size=300, progress=seen.append)
    phases = list(dict.fromkeys(item.phase for item in seen))
    assert phases == ["reading", "training the tokenizer", "encoding with gigatoken"]
    for phase in phases:
        last = [item for item in seen if item.phase == phase][-1]
        assert last.done_bytes == last.total_bytes > 0
    encoding = [item.done_bytes for item in seen if item.phase == phases[-1]]
    assert encoding == sorted(encoding)


REFUSED: dict[str, tuple[Callable[[Path], dict[str, object]], str, str]] = {
    "no paths": (lambda _: {"paths": []}, "paths", "name files or folders"),
    "missing": (lambda base: {"paths": [base / "none"]}, "paths", "cannot be read"),
    "binary file": (lambda base: {"paths": [base / "text" / "picture.png"]}, "paths", "binary"),
    "not UTF-8": (lambda base: {"paths": [base / "text" / "latin.txt"]}, "paths", "not UTF-8"),
    "empty file": (lambda base: {"paths": [base / "text" / "empty.txt"]}, "paths", "empty"),
    "device": (lambda _: {"paths": ["/dev/zero"]}, "paths", "and no file; name a file"),
    "empty folder": (lambda base: {"paths": [base / "text" / ".hidden" / "e"]}, "paths", "hold no file"),
    "tiny": (lambda base: {"paths": [base / "text" / "odd.txt"]}, "vocab_size", "yields only"),
    "small vocabulary": (lambda _: {"vocab_size": 256}, "vocab_size", "from 257"),
    "vocabulary over the type": (lambda _: {"vocab_size": 2**31}, "vocab_size", "to 1000000"),
    "nothing held out": (lambda _: {"held_out": 0.0}, "held_out", "above 0"),
    "most held out": (lambda _: {"held_out": 0.9}, "held_out", "above 0"),
    "out is a file": (lambda base: {"out": base / "text" / "odd.txt"}, "out", "is a file"),
    "out is in use": (lambda base: {"out": base / "taken"}, "out", "neither empty"),
    "out holds the text": (lambda base: {"out": base, "force": True}, "out", "holds the text itself"),
    "out is where one stands": (lambda _: {"out": Path.cwd(), "force": True}, "out", "stand in"),
}


@pytest.mark.parametrize(("change", "field", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_prepared_is_refused_and_nothing_is_left(
    make_corpus: Callable[[], Path], tmp_path: Path, change: Callable[[Path], dict[str, object]], field: str, message: str
) -> None:
    folder = make_corpus()
    (folder / ".hidden" / "e").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    arguments: dict[str, object] = {"paths": [folder], "out": tmp_path / "out", "vocab_size": 4096, **change(tmp_path)}
    with pytest.raises(DataError, match=message) as caught:
        prepare(**arguments)  # type: ignore[arg-type] # the table mixes types on purpose
    assert caught.value.field == field
    assert sorted(tmp_path.rglob("*")) == before


def test_force_replaces_a_folder_and_a_prepared_one(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("x")
    prepare([corpus], out, vocab_size=300, force=True)
    assert not (out / "mine.txt").exists()
    old = open_data(out)
    row = old.gather("train", np.arange(1), 16)
    prepare([corpus], out, vocab_size=301, force=True)
    assert open_data(out).vocab_size == 301
    assert (old.gather("train", np.arange(1), 16) == row).all(), "a reader of the old shards keeps them"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pipe_or_a_link_loop_in_a_folder_hangs_nothing(make_corpus: Callable[[], Path], tmp_path: Path) -> None:
    folder = make_corpus()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to("..")
    manifest = prepare([folder], tmp_path / "out", vocab_size=300)
    assert manifest.sources[0].documents == 41
    assert manifest.sources[0].skipped_unreadable == 2


SLOW = """
import os, sys
from pathlib import Path
from phalanx.job.data.prepare import prepare
def hold(progress):
    if progress.phase.startswith("encoding"):
        print("encoding", flush=True)
        sys.stdin.read()
prepare([sys.argv[1]], Path(sys.argv[2]), vocab_size=300, progress=hold)
"""


def test_d03_a_kill_in_the_middle_leaves_no_data_set_and_a_second_run_works(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", SLOW, str(corpus), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "encoding\n"
        with pytest.raises(Conflict, match="another prepare"):
            prepare([corpus], out, vocab_size=300)
        assert not out.exists()
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    with pytest.raises(DataError, match=r"no manifest\.json"):
        open_data(out)
    prepare([corpus], out, vocab_size=300)
    open_data(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_place_that_cannot_be_written_is_the_users_to_change(corpus: Path) -> None:
    with pytest.raises(SetupError, match="choose another place"):
        prepare([corpus], Path("/sys/phalanx-test/out"), vocab_size=300)


def test_without_the_extra_one_sentence_says_what_to_install(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SetupError, match=r"pip install 'phalanx\[train\]'"):
        prepare([corpus], tmp_path / "out")
    code = "import sys; sys.modules['tokenizers'] = None; from phalanx.job.data import open, prepare, show"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_standard_library_is_a_corpus(tmp_path: Path) -> None:
    paths = standard_library_paths()
    assert sum(path.stat().st_size for path in paths) >= CORPUS_BYTES_MIN
    assert not any("site-packages" in path.parts for path in paths)
    started = time.process_time()
    manifest = prepare(["stdlib:"], tmp_path / "out")
    assert time.process_time() - started < 40, "seconds of CPU, so that a busy machine does not matter"
    assert manifest.num_tokens > 1_000_000
    assert manifest.splits["held_out"].tokens > 10_000
    assert [source.name for source in manifest.sources] == ["stdlib:"]
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["format"] == 2


def test_too_small_a_standard_library_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name files or folders with text of your own"):
        standard_library_paths(tmp_path)
