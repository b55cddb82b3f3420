"""A run that was killed is gone on with from the shards that it had finished, and ends in the very same folder."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core.errors import SetupError
from phalanx.job.data import file_pieces
from phalanx.job.data.journal import JOURNAL
from phalanx.job.data.open import open_data
from phalanx.job.data.prepare import PrepareProgress, prepare
from tests.job.data.prepare_cases import contents, write_texts

PIECE_BYTES = 100_000
SHARD_TOKENS_MAX = 60_000

KILLED = """
import os, signal, sys
from pathlib import Path
from phalanx.job.data import file_pieces
from phalanx.job.data.prepare import prepare
text, out, tokenizer, phase, reports, piece_bytes, shard_tokens = sys.argv[1:]
file_pieces.PIECE_BYTES, file_pieces.TASK_PIECES = int(piece_bytes), 1
left = int(reports)
def die(progress):
    global left
    left -= progress.phase.startswith(phase)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    more = {"tokenizer": Path(tokenizer)} if tokenizer else {"vocab_size": 300, "training_text_bytes_max": 100_000}
    prepare([text], Path(out), progress=die, shard_tokens_max=int(shard_tokens), **more)
"""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(file_pieces, "TASK_PIECES", 1)


@pytest.fixture(scope="module")
def undisturbed(texts: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    prepare([texts], out, tokenizer=tokenizer, shard_tokens_max=SHARD_TOKENS_MAX)
    return contents(out)


def killed(texts: Path, out: Path, tokenizer: Path | None, phase: str, reports: int) -> Path:
    """The folder that a run leaves which SIGKILL ends at its n-th report of a phase."""
    words = [str(texts), str(out), str(tokenizer or ""), phase, str(reports), str(PIECE_BYTES), str(SHARD_TOKENS_MAX)]
    assert subprocess.run([sys.executable, "-c", KILLED, *words]).returncode == -signal.SIGKILL
    assert not out.exists()
    return out.parent / f".{out.name}.preparing"


def again(texts: Path, out: Path, tokenizer: Path, **more: object) -> int:
    """Prepares once more; how many bytes of text were done when the first task was."""
    seen: list[PrepareProgress] = []
    prepare([texts], out, tokenizer=tokenizer, progress=seen.append, **{"shard_tokens_max": SHARD_TOKENS_MAX, **more})  # type: ignore[arg-type]
    return next((item.done_bytes for item in seen if item.phase.startswith("encoding")), 0)


@pytest.mark.parametrize(("phase", "reports"), [("reading", 3), ("encoding", 1), ("encoding", 6), ("encoding", 11)])
def test_a_kill_at_any_moment_ends_in_the_same_folder(
    texts: Path, tokenizer: Path, tmp_path: Path, undisturbed: dict[str, bytes], phase: str, reports: int
) -> None:
    left = killed(texts, tmp_path / "out", tokenizer, phase, reports)
    lines = [json.loads(line) for line in (left / JOURNAL).read_text().splitlines()[1:]] if (left / JOURNAL).exists() else []
    finished = {name: (left / name).stat().st_ino for name in (f"{line['name']}.xxh3" for line in lines)}
    done = again(texts, tmp_path / "out", tokenizer)
    assert contents(tmp_path / "out") == undisturbed
    assert {name: (tmp_path / "out" / name).stat().st_ino for name in finished} == finished, "the very same files"
    if reports > 5:
        assert finished
        assert done > 150_000, "it went on from there"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_tokenizer_that_was_trained_is_used_again(texts: Path, tmp_path: Path) -> None:
    left = killed(texts, tmp_path / "out", None, "encoding", 6)
    trained = (left / "tokenizer.json").stat().st_ino
    seen: list[PrepareProgress] = []
    more = {"vocab_size": 300, "training_text_bytes_max": 100_000, "shard_tokens_max": SHARD_TOKENS_MAX}
    first = prepare([texts], tmp_path / "out", progress=seen.append, **more)  # type: ignore[arg-type]  # all are whole numbers
    assert "training the tokenizer" not in {item.phase for item in seen}
    assert (tmp_path / "out" / "tokenizer.json").stat().st_ino == trained
    assert prepare([texts], tmp_path / "other", **more) == first  # type: ignore[arg-type]  # all are whole numbers


def test_a_run_is_killed_twice(texts: Path, tokenizer: Path, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    killed(texts, tmp_path / "out", tokenizer, "encoding", 6)
    killed(texts, tmp_path / "out", tokenizer, "encoding", 6)
    assert again(texts, tmp_path / "out", tokenizer) > 400_000
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("damage", ["a flipped byte", "half a line"])
def test_what_is_not_whole_is_made_again(
    texts: Path, tokenizer: Path, tmp_path: Path, undisturbed: dict[str, bytes], damage: str
) -> None:
    left = killed(texts, tmp_path / "out", tokenizer, "encoding", 11)
    shard, journal = sorted(left.glob("train*.bin"))[1], left / JOURNAL
    if damage == "a flipped byte":
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data)
    else:
        journal.write_bytes(journal.read_bytes()[:-40])
    again(texts, tmp_path / "out", tokenizer)
    assert contents(tmp_path / "out") == undisturbed


def test_other_parameters_or_other_text_begin_anew(tokenizer: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", files=60, lines=250)
    wanted = prepare([texts], tmp_path / "wanted", tokenizer=tokenizer, min_chars=1, shard_tokens_max=SHARD_TOKENS_MAX)
    killed(texts, tmp_path / "out", tokenizer, "encoding", 6)
    assert again(texts, tmp_path / "out", tokenizer, min_chars=1) < 2 * PIECE_BYTES
    assert contents(tmp_path / "out") == contents(tmp_path / "wanted")
    assert wanted.parameters["min_chars"] == 1
    killed(texts, tmp_path / "other", tokenizer, "encoding", 6)
    (texts / "0000.txt").write_text("another text\n")
    assert again(texts, tmp_path / "other", tokenizer) < 2 * PIECE_BYTES
    prepare([texts], tmp_path / "wanted", tokenizer=tokenizer, shard_tokens_max=SHARD_TOKENS_MAX, force=True)
    assert contents(tmp_path / "other") == contents(tmp_path / "wanted")


def test_a_run_whose_processes_were_killed_keeps_its_shards_too(
    texts: Path, tokenizer: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    from tests.job.data.test_prepare_processes import workers

    reports = 0

    def kill(progress: PrepareProgress) -> None:
        nonlocal reports
        reports += progress.phase.startswith("encoding")
        if reports == 8:
            for one in workers():
                one.kill()

    with pytest.raises(SetupError, match="one of the processes was killed"):
        prepare([texts], tmp_path / "out", tokenizer=tokenizer, shard_tokens_max=SHARD_TOKENS_MAX, processes=2, progress=kill)
    assert again(texts, tmp_path / "out", tokenizer) > 300_000
    assert contents(tmp_path / "out") == undisturbed
    open_data(tmp_path / "out")
